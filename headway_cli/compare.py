"""`headway compare`: several policies on one trace, in parallel processes."""

import os
from typing import Annotated

import typer

from headway_cli.errors import CliError
from headway_cli.options import RunOptions, TraceArgument, spread


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare")(compare)


@spread(RunOptions)
def compare(
    *,
    options: RunOptions,
    trace: TraceArgument,
    policies: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Separated by commas: reference, threshold, static:prefill=4:decode=8, static:auto (the "
            "cheapest fixed fleet that meets the target), reference:predictor=arima (a planner setting).",
        ),
    ] = "reference,threshold",
    static_sweep: Annotated[
        bool,
        typer.Option("--static-sweep", help="Also try a grid of fixed fleets and show the best of them."),
    ] = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results; - is standard output.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Processes; else one per core.")] = None,
) -> None:
    """Compare policies on one trace: attainment, GPU-hours, distance to the fluid bound, stability."""
    from headway_cli.comparison import Comparison, run_comparison
    from headway_cli.output import STDOUT, check_outputs, write_json
    from headway_cli.policies import parse_policies
    from headway_cli.progress import announce_compilation
    from headway_cli.tables import console, print_comparison

    if jobs is not None and jobs < 1:
        raise CliError(f"--jobs: must be at least 1, got {jobs}")
    check_outputs({"--json": json}, (trace, options.config))
    comparison = Comparison(
        trace=trace,
        options=options,
        candidates=parse_policies(policies),
        static_sweep=static_sweep,
        jobs=jobs or os.cpu_count() or 1,
    )
    announce_compilation()
    result = run_comparison(comparison)
    if json is not None:
        write_json(json, result)
    print_comparison(result, console(to_stderr=json == STDOUT))
