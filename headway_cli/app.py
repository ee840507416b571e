"""The verbs, and how a command ends: an exit code and, for wrong input, one line instead of a traceback.

A verb is one line in VERBS. Its module is imported when the verb is run, so that `headway --help` loads
none of the heavy libraries.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from headway_cli import INTERRUPTED, READER_GONE, WRONG_INPUT

NO_RICH: dict[str, Any] = {"rich_markup_mode": None, "add_completion": False}


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb, its line of help, and its `module:function` (or `module:typer`) where that is not its name."""

    name: str
    summary: str
    place: str = ""

    def load(self) -> Any:  # noqa: ANN401 - a command of the click that typer bundles
        """Import the module, and make a command of the function."""
        known = self.name.replace("-", "_")
        module, _, attribute = (self.place or f"{known}:{known}").partition(":")
        found = getattr(import_module(f"headway_cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            function, found = found, typer.Typer(**NO_RICH)
            found.command(self.name)(function)
        return get_command(found)


VERBS = (
    Verb("simulate", "Simulate a policy on a trace: replica plan, latencies, SLO attainment and cost."),
    Verb("compare", "Compare policies on one trace, or routings: attainment, goodput, GPU-hours, stability."),
    Verb("report", "Render a result as one self-contained HTML page.", "simulate:report"),
    Verb(
        "generate",
        "Write generated load (or any trace, scaled) as a trace file in the plain form.",
        "simulate:generate",
    ),
    Verb(
        "profile",
        "Measure an engine's latencies, and recommend tensor-parallel sizes for a load and its SLO.",
        "profile:verbs",
    ),
    Verb(
        "check", "Validate a configuration file: keys and values, and what `simulate` and `up` would refuse."
    ),
    Verb("schema", "Print the JSON schema of the configuration file.", "settings:schema"),
    Verb("up", "Start gateway, engines and control plane on Ray, and print the addresses; Ctrl-C ends it."),
    Verb(
        "down",
        "End what `headway up` started; with --address, delete the application from that cluster.",
        "up:down",
    ),
    Verb("status", "Show a running deployment: pools, SLO attainment, the last decision and why."),
    Verb("decisions", "Show the planner's decisions: what was measured, decided and done."),
    Verb(
        "offload-traces",
        "Show where long prompts were computed and when, as JSON lines: document 004's time stamps.",
        "decisions:offload_traces",
    ),
    Verb(
        "set",
        "Change settings of a running planner: SLO, GPU budget, minimum and maximum replicas.",
        "settings:set_",
    ),
    Verb(
        "load",
        "Replay a trace against an OpenAI endpoint: latencies and SLO attainment, as clients see them.",
    ),
    Verb(
        "demo",
        "Run everything on a local Ray with simulated engines, and watch replica counts follow a load.",
    ),
)
STUDIES = (
    Verb(
        "share",
        "Simulate deployments that share a GPU budget by priority: attainment, cost, who held what.",
        "studies.share:share",
    ),
    Verb(
        "gpu-plan",
        "Choose GPU types and counts for a trace: the cheapest whole replicas that keep the SLO.",
        "studies.gpu_plan:gpu_plan",
    ),
    Verb(
        "queue-sim",
        "Compare push and pull, simple and SLO-aware queues: waits and SLO violations, over many seeds.",
        "studies.queue_sim:queue_sim",
    ),
    Verb(
        "estimate",
        "Estimate performance profiles with AI Configurator (optional extra `estimate`), no GPU needed.",
        "studies.estimate:estimate",
    ),
)


class _Verbs(TyperGroup):
    """The group of all verbs: names and summaries for the help, the module of the one that is run."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as typer makes groups
        verbs = {verb.name: TyperCommand(verb.name, help=verb.summary) for verb in (*VERBS, *STUDIES)}
        super().__init__(**{**settings, "commands": verbs})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - as below
        name, _, rest = super().resolve_command(ctx, args)
        verb = next(verb for verb in (*VERBS, *STUDIES) if verb.name == name)
        return name, verb.load(), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer keeps these types private
        for title, verbs in (("Commands", VERBS), ("Studies", STUDIES)):
            room = formatter.width - 6 - max(len(verb.name) for verb in verbs)
            rows = [(verb.name, self.commands[verb.name].get_short_help_str(room)) for verb in verbs]
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
