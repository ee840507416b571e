"""The verbs, and how a command ends: an exit code and, for wrong input, one line instead of a traceback.

A verb is one line in OWN, or comes by an entry point of `headway.verbs`. Its module is imported when the verb
is run, so that `headway --help` loads none of the heavy libraries.
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

from headway.extensions import ExtensionPoint
from headway_cli import INTERRUPTED, READER_GONE, WRONG_INPUT
from headway_cli.errors import CliErrors, is_wrong_input

NO_RICH: dict[str, Any] = {"rich_markup_mode": None, "add_completion": False}

OWN: Mapping[str, Mapping[str, str]] = {
    "Try and set up": {
        "demo": (
            "Run everything on a local Ray with simulated engines, and watch replica counts follow a load."
        ),
        "check": "Validate a configuration file: keys and values, and what `simulate` and `up` would refuse.",
        "schema": "Print the JSON schema of the configuration file.",
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
        "status": "Show a running deployment: its health, pools, SLO attainment, the last decision and why.",
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
        "generate": (
            "Write generated load (or any trace, scaled) as a plain trace file, or a fleet's settings."
        ),
    },
    "Engines": {
        "profile": (
            "Measure an engine's latencies, and recommend tensor-parallel sizes for a load and its SLO."
        ),
    },
}
OWN_PLACES: Mapping[str, str] = {
    "generate": "simulate:generate",
    "profile": "profile:verbs",
    "schema": "settings:schema",
    "down": "up:down",
    "offload-traces": "decisions:offload_traces",
    "page": "status:page",
    "set": "settings:set_",
}
"""`module:function` (or `module:typer`) here of the verbs whose module has another name."""


def _all_verbs() -> tuple[Mapping[str, Mapping[str, str]], Mapping[str, str]]:
    """Summaries by section, and `module:function` of each verb, with those of other packages.

    An entry point of the group `headway.verbs` is a mapping of verbs to their section, summary and place. The
    built-in ones cannot be taken over.
    """
    groups = {section: dict(verbs) for section, verbs in OWN.items()}
    places = {name: f"headway_cli.{_own_place(name)}" for verbs in OWN.values() for name in verbs}
    point = ExtensionPoint("headway.verbs", "package with verbs", {})
    for package in point.names():
        for name, (section, summary, place) in point.load(package).items():
            if name not in places:
                groups.setdefault(section, {})[name] = summary
                places[name] = place
    return groups, places


def _own_place(name: str) -> str:
    known = name.replace("-", "_")
    return OWN_PLACES.get(name, f"{known}:{known}")


GROUPS, PLACES = _all_verbs()
VERBS: Mapping[str, str] = {name: summary for verbs in GROUPS.values() for name, summary in verbs.items()}


def load_verb(name: str) -> Any:  # noqa: ANN401 - a command of the click that typer bundles
    """Import the module of a verb, and make a command of its function."""
    module, _, attribute = PLACES[name].partition(":")
    found = getattr(import_module(module), attribute)
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
