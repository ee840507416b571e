"""The verbs, and how a command ends: an exit code and, for wrong input, one line instead of a traceback."""

import os
import sys
from collections.abc import Sequence

import typer
from typer.main import get_command

from headway_cli import (
    check,
    compare,
    decisions,
    demo,
    down,
    estimate,
    generate,
    gpu_plan,
    load,
    offload_traces,
    profile,
    queue_sim,
    report,
    schema,
    set_,
    share,
    simulate,
    status,
    up,
)
from headway_cli.errors import USER_ERRORS
from headway_cli.main import INTERRUPTED, READER_GONE, WRONG_INPUT

VERBS = (
    simulate,
    compare,
    share,
    queue_sim,
    gpu_plan,
    report,
    generate,
    estimate,
    profile,
    check,
    schema,
    up,
    down,
    status,
    decisions,
    offload_traces,
    set_,
    load,
    demo,
)

app = typer.Typer(
    name="headway",
    help="Keep LLM inference inside its latency targets on as few GPUs as possible, live and simulated.",
    add_completion=False,
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
for verb in VERBS:
    verb.register(app)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
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
    except (*USER_ERRORS, OSError) as error:
        return _complain(str(error))
    if code == INTERRUPTED:
        print("headway: interrupted", file=sys.stderr)
    return code if isinstance(code, int) else 0


def _complain(problem: str) -> int:
    print(f"headway: {' '.join(problem.split())}", file=sys.stderr)
    return WRONG_INPUT
