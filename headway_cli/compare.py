"""`headway compare`: several policies, or several routings on a fixed fleet, in parallel processes."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from headway_cli.errors import CliError
from headway_cli.options import RunOptions, TraceArgument, spread

if TYPE_CHECKING:
    from headway_cli.routing_comparison import RoutingComparison

DEFAULT_POLICIES = "headway,reference,threshold"
DEFAULT_LOADS = "70,90,110"
DEFAULT_SEEDS = 3


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare")(compare)


@spread(RunOptions)
def compare(
    *,
    options: RunOptions,
    trace: TraceArgument,
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Separated by commas: headway, reference, threshold, static:prefill=4:decode=8, static:auto "
            "(the cheapest fixed fleet that meets the target), reference:predictor=arima (a setting). "
            f"By default {DEFAULT_POLICIES}.",
        ),
    ] = None,
    routings: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Compare scheduling profiles instead, on a fixed fleet: random,round_robin,least_load,slo. "
            "The last one is measured against the others.",
        ),
    ] = None,
    fleet: Annotated[
        str | None, typer.Option(metavar="FLEET", help="With --routings: prefill=4,decode=8, or mixed=8.")
    ] = None,
    loads: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help=f"With --routings: percent of what the fleet can do at best; else {DEFAULT_LOADS}.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help=f"With --routings: runs of each, else {DEFAULT_SEEDS}; --seed first."),
    ] = None,
    report: Annotated[
        str | None,
        typer.Option("--report", metavar="FILE", help="With --routings: write one self-contained HTML page."),
    ] = None,
    static_sweep: Annotated[
        bool,
        typer.Option("--static-sweep", help="Also try a grid of fixed fleets and show the best of them."),
    ] = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results; - is standard output.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Processes; else one per core.")] = None,
) -> None:
    """Compare policies on one trace, or routings: attainment, goodput, GPU-hours, stability."""
    from headway_cli.output import check_outputs

    if jobs is not None and jobs < 1:
        raise CliError(f"--jobs: must be at least 1, got {jobs}")
    check_outputs({"--json": json, "--report": report}, (trace, options.config))
    processes = jobs or os.cpu_count() or 1
    if routings is None:
        for flag, value in {"--fleet": fleet, "--loads": loads, "--seeds": seeds, "--report": report}.items():
            if value is not None:
                raise CliError(f"{flag}: goes with --routings")
        chosen = DEFAULT_POLICIES if policies is None else policies
        _policies(trace, options, chosen, processes, json, static_sweep=static_sweep)
        return
    if policies is not None or static_sweep:
        raise CliError("--routings: compares routings on one fixed fleet, not policies or fleets")
    if fleet is None:
        raise CliError("--routings: needs --fleet, such as prefill=4,decode=8 or mixed=8")
    if seeds is not None and seeds < 1:
        raise CliError(f"--seeds: must be at least 1, got {seeds}")
    from headway_cli.routing_comparison import RoutingComparison, check_options, parse_loads, parse_names

    check_options(options)
    comparison = RoutingComparison(
        trace=trace,
        options=options,
        fleet=fleet,
        routings=parse_names(routings),
        loads=parse_loads(DEFAULT_LOADS if loads is None else loads),
        seeds=DEFAULT_SEEDS if seeds is None else seeds,
        jobs=processes,
    )
    _routings(comparison, json, report)


def _policies(
    trace: str, options: RunOptions, policies: str, processes: int, json: str | None, *, static_sweep: bool
) -> None:
    from headway_cli.comparison import Comparison, run_comparison
    from headway_cli.output import STDOUT, write_json
    from headway_cli.policies import parse_policies
    from headway_cli.progress import announce_compilation
    from headway_cli.tables import console, print_comparison

    comparison = Comparison(
        trace=trace,
        options=options,
        candidates=parse_policies(policies),
        static_sweep=static_sweep,
        jobs=processes,
    )
    announce_compilation()
    result = run_comparison(comparison)
    if json is not None:
        write_json(json, result)
    print_comparison(result, console(to_stderr=json == STDOUT))


def _routings(comparison: "RoutingComparison", json: str | None, report: str | None) -> None:
    from pathlib import Path

    from headway_cli.output import STDOUT, write_json, write_text
    from headway_cli.progress import announce_compilation
    from headway_cli.routing_comparison import compare_routings
    from headway_cli.routing_tables import print_routings
    from headway_cli.tables import console

    announce_compilation()
    result = compare_routings(comparison)
    if report is not None:
        from headway_cli.page.routings import render_routings

        write_text(Path(report), render_routings(result))
    if json is not None:
        write_json(json, result)
    print_routings(result, console(to_stderr=json == STDOUT))
