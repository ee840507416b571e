"""`headway compare`: several policies, or several routings on a fixed fleet, in parallel processes."""

from typing import Annotated

from headway_cli.compare_policies import Comparison, compare_policies, parse_policies
from headway_cli.compare_routings import (
    RoutingComparison,
    check_options,
    compare_routings,
    parse_loads,
)
from headway_cli.errors import CliError
from headway_cli.flags import option, spread, switch
from headway_cli.options import Jobs, RunOptions, TraceArgument, configuration, listed, process_count
from headway_cli.output import JsonFile, ReportFile, check_outputs, deliver
from headway_cli.page.compare import render
from headway_cli.result_view import print_comparison
from headway_cli.routings_view import print_routings, render_routings
from headway_cli.terminal import announce_compilation

DEFAULT_POLICIES = "headway,reference,threshold"
DEFAULT_LOADS = "70,90,110"
DEFAULT_SEEDS = 3


@spread(RunOptions)
def compare(
    *,
    options: RunOptions,
    trace: TraceArgument,
    policies: Annotated[
        str | None,
        option(
            "LIST",
            "Separated by commas: headway, reference, threshold, static:prefill=4:decode=8, static:auto "
            "(the cheapest fixed fleet that meets the target), reference:predictor=arima (a setting). "
            f"By default {DEFAULT_POLICIES}, and first planner.policy of the configuration if it is another.",
        ),
    ] = None,
    routings: Annotated[
        str | None,
        option(
            "LIST",
            "Compare scheduling profiles instead, on a fixed fleet: random,round_robin,least_load,slo. "
            "The last one is measured against the others.",
        ),
    ] = None,
    fleet: Annotated[str | None, option("FLEET", "With --routings: prefill=4,decode=8, or mixed=8.")] = None,
    loads: Annotated[
        str | None,
        option("LIST", f"With --routings: percent of what the fleet can do at best; else {DEFAULT_LOADS}."),
    ] = None,
    seeds: Annotated[
        int | None, option("N", f"With --routings: runs of each, else {DEFAULT_SEEDS}; --seed first.")
    ] = None,
    report: ReportFile = None,
    static_sweep: Annotated[
        bool, switch("--static-sweep", "Also try a grid of fixed fleets and show the best of them.")
    ] = False,
    json: JsonFile = None,
    jobs: Jobs = None,
) -> None:
    """Compare policies on one trace, or routings: attainment, goodput, GPU-hours, stability."""
    processes = process_count(jobs)
    check_outputs({"--json": json, "--report": report}, (trace, options.config))
    if routings is None:
        for flag, value in {"--fleet": fleet, "--loads": loads, "--seeds": seeds}.items():
            if value is not None:
                raise CliError(f"{flag}: goes with --routings")
        comparison = Comparison(
            trace=trace,
            options=options,
            candidates=parse_policies(_default_policies(options) if policies is None else policies),
            static_sweep=static_sweep,
            jobs=processes,
        )
        announce_compilation()
        found = compare_policies(comparison)
        out = deliver(json, report, found.document, lambda: render(found))
        print_comparison(found.policies, found.fixed, found.fixed_tried, out)
        return
    if policies is not None or static_sweep:
        raise CliError("--routings: compares routings on one fixed fleet, not policies or fleets")
    if fleet is None:
        raise CliError("--routings: needs --fleet, such as prefill=4,decode=8 or mixed=8")
    if seeds is not None and seeds < 1:
        raise CliError(f"--seeds: must be at least 1, got {seeds}")
    check_options(options)
    routed = RoutingComparison(
        trace=trace,
        options=options,
        fleet=fleet,
        routings=listed("--routings", routings),
        loads=parse_loads(DEFAULT_LOADS if loads is None else loads),
        seeds=DEFAULT_SEEDS if seeds is None else seeds,
        jobs=processes,
    )
    announce_compilation()
    result = compare_routings(routed)
    print_routings(result, deliver(json, report, result.document, lambda: render_routings(result)))


def _default_policies(options: RunOptions) -> str:
    configured = configuration(options).planner.policy
    known = configured in DEFAULT_POLICIES.split(",")
    return DEFAULT_POLICIES if known else f"{configured},{DEFAULT_POLICIES}"
