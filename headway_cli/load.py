"""`headway load`: a trace, replayed against an OpenAI endpoint in an open loop."""

from typing import Annotated

import typer

from headway_cli.load_options import LoadOptions
from headway_cli.options import TraceArgument, spread


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("load")(load)


@spread(LoadOptions)
def load(
    *,
    options: LoadOptions,
    trace: TraceArgument,
    url: Annotated[str, typer.Option(metavar="URL", help="The server, such as http://127.0.0.1:8000.")],
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the result; - is standard output.")
    ] = None,
    records: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write one JSON line per request.")
    ] = None,
) -> None:
    """Replay a trace against an OpenAI endpoint: latencies and SLO attainment, as clients see them."""
    from headway.workload import open_trace
    from headway_cli.load_job import LoadJob, run_load
    from headway_cli.load_table import print_load
    from headway_cli.main import INTERRUPTED
    from headway_cli.output import STDOUT, check_outputs, write_json
    from headway_cli.tables import console

    check_outputs({"--json": json, "--records": records}, (trace, options.config))
    with open_trace(trace, options.trace_options()) as opened:
        job = LoadJob(trace=opened, source=trace, url=url, options=options, records=records)
        document, interrupted = run_load(job)
    if json is not None:
        write_json(json, document)
    print_load(document, console(to_stderr=json == STDOUT))
    if interrupted:
        raise typer.Exit(INTERRUPTED)
