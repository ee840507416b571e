"""The verbs, and how a command ends: an exit code and, for wrong input, one line instead of a traceback.

A verb is one line in VERBS or STUDIES. Its module is imported when the verb is run, so that
`headway --help` loads none of the heavy libraries.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from headway_cli import INTERRUPTED, READER_GONE, WRONG_INPUT

NO_RICH: dict[str, Any] = {"rich_markup_mode": None, "add_completion": False}

VERBS: Mapping[str, str] = {
    "simulate": "Simulate a policy on a trace: replica plan, latencies, SLO attainment and cost.",
    "compare": "Compare policies on one trace, or routings: attainment, goodput, GPU-hours, stability.",
    "report": "Render a result as one self-contained HTML page.",
    "generate": "Write generated load (or any trace, scaled) as a trace file in the plain form.",
    "profile": "Measure an engine's latencies, and recommend tensor-parallel sizes for a load and its SLO.",
    "check": "Validate a configuration file: keys and values, and what `simulate` and `up` would refuse.",
    "schema": "Print the JSON schema of the configuration file.",
    "up": "Start gateway, engines and control plane on Ray, and print the addresses; Ctrl-C ends it.",
    "down": "End what `headway up` started; with --address, delete the application from that cluster.",
    "status": "Show a running deployment: pools, SLO attainment, the last decision and why.",
    "decisions": "Show the planner's decisions: what was measured, decided and done.",
    "offload-traces": (
        "Show where long prompts were computed and when, as JSON lines: document 004's time stamps."
    ),
    "set": "Change settings of a running planner: SLO, GPU budget, minimum and maximum replicas.",
    "load": "Replay a trace against an OpenAI endpoint: latencies and SLO attainment, as clients see them.",
    "demo": "Run everything on a local Ray with simulated engines, and watch replica counts follow a load.",
}
STUDIES: Mapping[str, str] = {
    "share": "Simulate deployments that share a GPU budget by priority: attainment, cost, who held what.",
    "recommend": "Choose engine, mode, chunk size, policy and fleet for a trace: the least cost, simulated.",
    "gpu-plan": "Choose GPU types and counts for a trace: the cheapest whole replicas that keep the SLO.",
    "queue-sim": (
        "Compare push and pull, simple and SLO-aware queues: waits and SLO violations, over many seeds."
    ),
    "estimate": (
        "Estimate performance profiles with AI Configurator (optional extra `estimate`), no GPU needed."
    ),
}
PLACES: Mapping[str, str] = {
    "report": "simulate:report",
    "generate": "simulate:generate",
    "profile": "profile:verbs",
    "schema": "settings:schema",
    "down": "up:down",
    "offload-traces": "decisions:offload_traces",
    "set": "settings:set_",
}
"""`module:function` (or `module:typer`) of the verbs whose module has another name."""


def load_verb(name: str) -> Any:  # noqa: ANN401 - a command of the click that typer bundles
    """Import the module of a verb, and make a command of its function."""
    known = name.replace("-", "_")
    folder = "studies." if name in STUDIES else ""
    module, _, attribute = PLACES.get(name, f"{folder}{known}:{known}").partition(":")
    found = getattr(import_module(f"headway_cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(**NO_RICH)
        found.command(name)(function)
    return get_command(found)


class _Verbs(TyperGroup):
    """The group of all verbs: names and summaries for the help, the module of the one that is run."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as typer makes groups
        verbs = {name: TyperCommand(name, help=summary) for name, summary in {**VERBS, **STUDIES}.items()}
        super().__init__(**{**settings, "commands": verbs})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - as below
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_verb(str(name)), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer keeps these types private
        for title, verbs in (("Commands", VERBS), ("Studies", STUDIES)):
            room = formatter.width - 6 - max(map(len, verbs))
            rows = [(name, self.commands[name].get_short_help_str(room)) for name in verbs]
            with formatter.section(title):
                formatter.write_dl(rows)


app = typer.Typer(
    name="headway",
    cls=_Verbs,
    help="Keep LLM inference inside its latency targets on as few GPUs as possible, live and simulated.",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    **NO_RICH,
)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code."""
    from headway_cli.errors import USER_ERRORS

    try:
        code = get_command(app)(list(arguments), prog_name="headway", standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except typer.TyperException as error:
        return _complain(error.format_message())
    except (*USER_ERRORS, OSError) as error:
        return _complain(str(error))
    if code == INTERRUPTED:
        print("headway: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _complain(problem: str) -> int:
    print(f"headway: {' '.join(problem.split())}", file=sys.stderr)
    return WRONG_INPUT
