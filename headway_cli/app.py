"""The verbs, and how a command ends: an exit code and, for wrong input, one line instead of a traceback.

A verb is one line in GROUPS. Its module is imported when the verb is run, so that
`headway --help` loads none of the heavy libraries.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from headway_cli import INTERRUPTED, READER_GONE, WRONG_INPUT
from headway_cli.errors import CliErrors, is_wrong_input

NO_RICH: dict[str, Any] = {"rich_markup_mode": None, "add_completion": False}

GROUPS: Mapping[str, Mapping[str, str]] = {
    "Try and set up": {
        "demo": (
            "Run everything on a local Ray with simulated engines, and watch replica counts follow a load."
        ),
        "check": "Validate a configuration file: keys and values, and what `simulate` and `up` would refuse.",
        "schema": "Print the JSON schema of the configuration file.",
        "completion": "Complete verbs and flags with Tab: print the script for bash or zsh, or install it.",
    },
    "Run": {
        "up": "Start gateway, engines and control plane on Ray, and print the addresses; Ctrl-C ends it.",
        "attach": "Plan for a fleet that others started: the control plane alone, on Ray; Ctrl-C ends it.",
        "down": "End what `headway up` or `attach` started; with --address, delete the application there.",
        "set": "Change settings of a running planner: SLO, GPU budget, minimum and maximum replicas.",
        "load": (
            "Replay a trace against an OpenAI endpoint: latencies and SLO attainment, as clients see them."
        ),
    },
    "Watch": {
        "status": "Show a running deployment: the verdict, pools, SLO attainment, the last decision and why.",
        "top": (
            "Watch a running deployment in this terminal: verdict, pools, latencies, decisions; q ends it."
        ),
        "page": "Open the live page of a running deployment in a browser.",
        "request": "Show one request by its id: where it was placed and why, step by step, and how it ended.",
        "decisions": "Show the planner's decisions: what was measured, decided and done, a line each.",
        "advise": (
            "Show what a dry run's plan would have saved and kept, or acting has, beside the fleet before."
        ),
        "offload-traces": "Show where long prompts were computed and when, as JSON lines.",
    },
    "Plan by simulation": {
        "simulate": "Simulate a policy on a trace: replica plan, latencies, SLO attainment and cost.",
        "compare": "Compare policies on one trace, or routings: attainment, goodput, GPU-hours, stability.",
        "report": "Render a result as one self-contained HTML page.",
        "generate": "Write generated load (or any trace, scaled) as a trace file in the plain form.",
        "recommend": (
            "Choose engine, mode, chunk size, policy and fleet for a trace: the least cost, simulated."
        ),
        "gpu-plan": "Choose GPU types and counts for a trace: the cheapest whole replicas that keep the SLO.",
        "share": "Simulate deployments that share a GPU budget by priority: attainment, cost, who held what.",
        "queue-sim": (
            "Compare push and pull, simple and SLO-aware queues: waits and SLO violations, over many seeds."
        ),
    },
    "Engines": {
        "profile": (
            "Measure an engine's latencies, and recommend tensor-parallel sizes for a load and its SLO."
        ),
        "estimate": (
            "Estimate performance profiles with AI Configurator (optional extra `estimate`), no GPU needed."
        ),
    },
}
VERBS: Mapping[str, str] = {name: summary for verbs in GROUPS.values() for name, summary in verbs.items()}
PLACES: Mapping[str, str] = {
    "estimate": "studies.estimate:estimate",
    "gpu-plan": "studies.gpu_plan:gpu_plan",
    "queue-sim": "studies.queue_sim:queue_sim",
    "recommend": "studies.recommend:recommend",
    "share": "studies.share:share",
    "generate": "simulate:generate",
    "profile": "profile:verbs",
    "schema": "settings:schema",
    "down": "up:down",
    "offload-traces": "decisions:offload_traces",
    "page": "status:page",
    "set": "settings:set_",
}
"""`module:function` (or `module:typer`) of the verbs whose module has another name."""


def load_verb(name: str) -> Any:  # noqa: ANN401 - a command of the click that typer bundles
    """Import the module of a verb, and make a command of its function."""
    known = name.replace("-", "_")
    module, _, attribute = PLACES.get(name, f"{known}:{known}").partition(":")
    found = getattr(import_module(f"headway_cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(**NO_RICH)
        found.command(name)(function)
    return get_command(found)


class _Verbs(TyperGroup):
    """The group of all verbs: names and summaries for the help, the module of the one that is run."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - as typer makes groups
        verbs = {name: TyperCommand(name, help=summary) for name, summary in VERBS.items()}
        super().__init__(**{**settings, "commands": verbs})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:  # noqa: ANN401 - as below
        name, _, rest = super().resolve_command(ctx, args)
        return name, load_verb(str(name)), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - typer keeps these types private
        margin = max(map(len, VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{margin}}", brief(text)) for name, text in verbs.items()])


def brief(summary: str) -> str:
    """A summary without its full stop and what stands behind a colon or semicolon."""
    return re.split("[:;]", summary)[0].removesuffix(".")


app = typer.Typer(
    name="headway",
    cls=_Verbs,
    help="Keep LLM inference inside its latency targets on as few GPUs as possible, live and simulated.",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    **NO_RICH,
)


@app.callback(
    invoke_without_command=True,
    epilog="`headway VERB --help` lists the flags of a verb. Begin with `headway demo`.",
)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"headway {installed('headway')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command; its exit code."""
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
    except Exception as error:
        if not is_wrong_input(error):
            raise
        return _complain(*(error.problems if isinstance(error, CliErrors) else [str(error)]))
    if code == INTERRUPTED:
        print("headway: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _complain(*problems: str) -> int:
    for problem in problems:
        print(f"headway: {' '.join(problem.split())}", file=sys.stderr)
    return WRONG_INPUT
