"""`headway report`: the page of a result that was written with --json."""

from pathlib import Path
from typing import Annotated

import typer


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
    from headway_cli.result_file import read_result

    check_outputs({"--output": output}, (result,))
    write_text(Path(output), render(read_result(result)))
    print(f"wrote {output}")
