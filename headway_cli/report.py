"""`headway report`: the page of a result that was written with --json."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headway_cli.errors import CliError

NEEDED = ("policy", "trace", "slo", "replicas", "intervals", "notes", "gpus_per_replica")


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("report")(report)


def report(
    result: Annotated[str, typer.Argument(metavar="RESULT", help="What `headway simulate --json` wrote.")],
    output: Annotated[str, typer.Option(metavar="FILE", help="Where the HTML page goes.")] = "report.html",
) -> None:
    """Render a result as one self-contained HTML page."""
    from headway_cli.output import check_outputs, write_text
    from headway_cli.page import render

    check_outputs({"--output": output}, (result,))
    write_text(Path(output), render(_read(result)))
    print(f"wrote {output}")


def _read(place: str) -> dict[str, Any]:
    try:
        document = json.loads(Path(place).read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"{place}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CliError(f"{place}: is not JSON: {error}") from error
    missing = [key for key in NEEDED if not isinstance(document, dict) or key not in document]
    if missing:
        raise CliError(f"{place}: is no result of headway simulate: {missing[0]} is missing")
    found: dict[str, Any] = document
    return found
