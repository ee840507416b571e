"""`headway share`: several deployments under one GPU budget."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("share")(share)


def share(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The deployments and their budget (YAML).")],
    split: Annotated[
        bool,
        typer.Option("--split", help="Also run each alone in a fixed part of the budget, for comparison."),
    ] = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results; - is standard output.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write one self-contained HTML page.")
    ] = None,
) -> None:
    """Simulate deployments that share a GPU budget by priority: attainment, cost, who held what."""
    from pathlib import Path

    from headway_cli.output import STDOUT, check_outputs, write_json, write_text
    from headway_cli.page.share import render
    from headway_cli.progress import announce_compilation, bar
    from headway_cli.share_file import read_shared
    from headway_cli.share_job import run_shared, run_split
    from headway_cli.share_tables import print_shared
    from headway_cli.tables import console

    check_outputs({"--json": json, "--report": report}, (file,))
    path = Path(file)
    shared = read_shared(path)
    announce_compilation()
    with bar("simulating") as progress:
        document = run_shared(shared, path, progress)
        if split:
            document["split"] = run_split(shared, path, document)
    if report is not None:
        write_text(Path(report), render(document))
    if json is not None:
        write_json(json, document)
    print_shared(document, console(to_stderr=json == STDOUT))
