"""`headway simulate` and `generate`: a trace or a fleet, its page, and traces to simulate."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import yaml

from headway.config import FleetConfig
from headway.workload import TraceOptions, open_trace, write_trace
from headway.workload.fleet import is_fleet_spec, parse_fleet_spec
from headway_cli.errors import CliError
from headway_cli.flags import argument, option, spread
from headway_cli.fleet import FleetReport
from headway_cli.fleet_runs import BY_USE, fleet_jobs, run_budgets, run_least, run_split, stated_parts
from headway_cli.fleet_view import OVER_TIME, print_fleet
from headway_cli.fleet_view import render as render_fleet
from headway_cli.job import Job, execute
from headway_cli.notes import say_notes
from headway_cli.options import RunOptions, configuration, fleet_settings, static_overrides, trace_options
from headway_cli.output import JsonFile, ReportFile, check_outputs, deliver, trace_lines, write_text
from headway_cli.page.result import render
from headway_cli.result_view import print_result
from headway_cli.terminal import announce_compilation, bar


@spread(RunOptions)
def simulate(
    *,
    options: RunOptions,
    trace: Annotated[
        str | None, argument("TRACE", "A trace file, or generated load such as steady:rate_rps=20.")
    ] = None,
    fleet: Annotated[
        str | None, option("FILE", "Instead of TRACE: a file of several deployments with their requests.")
    ] = None,
    split: Annotated[
        str | None,
        option(
            "PARTS",
            "With --fleet: also each alone in a fixed part of fleet.gpus: chat=9,batch=3, or use: as it was "
            "used.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option("FILE", "With --fleet: also the fleet of this file, such as the same with other settings."),
    ] = None,
    least: Annotated[
        bool,
        option(
            "",
            "With --fleet: find the least fleet.gpus on which all keep what they do without one.",
        ),
    ] = False,
    policy: Annotated[str | None, option("NAME", "headway, reference, threshold or static.")] = None,
    static: Annotated[
        str | None, option("FLEET", "Fixed fleet, prefill=4,decode=8; implies the policy.")
    ] = None,
    json: JsonFile = None,
    report: ReportFile = None,
    offload_traces: Annotated[
        str | None, option("FILE", "With routing.offload: write JSON, a request a line.")
    ] = None,
) -> None:
    """Simulate a policy on a trace: replica plan, latencies, SLO attainment and cost."""
    outputs = {"--json": json, "--report": report, "--offload-traces": offload_traces}
    check_outputs(outputs, (trace, fleet, options.config))
    ways = {"--split": split is not None, "--against": against is not None, "--least": least}
    asked = [flag for flag, given in ways.items() if given]
    if fleet is not None:
        alone = {"TRACE": trace, "--static": static, "--offload-traces": offload_traces}
        if given := next((name for name, value in alone.items() if value is not None), None):
            raise CliError(f"{given}: does not go with --fleet")
        if len(asked) > 1:
            raise CliError(f"{asked[1]}: does not go with {asked[0]}")
        settings = fleet_settings(options, fleet, policy)
        other = None if against is None else (fleet_settings(options, against, policy), Path(against))
        _simulate_fleet(settings, Path(fleet), split, other, least=least, json=json, report=report)
        return
    if trace is None or asked:
        raise CliError(
            "TRACE: missing; or --fleet FILE" if trace is None else f"{asked[0]}: goes with --fleet"
        )
    config = configuration(options, _policy(policy, static))
    if offload_traces is not None and config.routing.offload.mode == "never":
        raise CliError("--offload-traces: routing.offload.mode is never, so there are none")
    if offload_traces is not None and "mixed" not in config.pools:
        raise CliError("--offload-traces: offload is for mixed pools (--aggregated), so there are none")
    job = Job(
        trace=trace,
        config=config,
        options=trace_options(options, config.simulation.seed),
        settings_file=options.config,
    )
    announce_compilation()
    traced = nullcontext() if offload_traces is None else trace_lines(Path(offload_traces))
    with bar("simulating") as progress, traced as traces:
        result = execute(job, progress, traces)
    price, currency = config.price_per_gpu_hour(), config.planner.advice.currency
    priced = {} if price is None else {"price_per_gpu_hour": price, "currency": currency}
    out = deliver(json, report, lambda: result.document() | priced, lambda: render(result, price, currency))
    print_result(result, out)


def _simulate_fleet(
    fleet: FleetConfig,
    file: Path,
    split: str | None,
    other: tuple[FleetConfig, Path] | None,
    *,
    least: bool,
    json: str | None,
    report: str | None,
) -> None:
    jobs, stated = fleet_jobs(fleet, file), [gpus for gpus in fleet.budgets.values() if gpus is not None]
    gpus = sum(stated) if stated else None
    if split is not None and (gpus is None or len(stated) > 1):
        has = (
            "no fleet.gpus to split" if gpus is None else "fleet.gpus of several types; it splits one budget"
        )
        raise CliError(f"--split: {file} has {has}")
    if split is not None and gpus is not None and split != BY_USE:
        stated_parts(gpus, jobs, split)
    others = None if other is None else fleet_jobs(*other)
    announce_compilation()
    if least:
        with bar("simulating") as progress:
            found = run_least(jobs, fleet.budgets, progress)
        print_fleet(found, deliver(json, report, found.document, lambda: render_fleet(found)))
        return
    with bar("simulating") as progress:
        whole = run_budgets(jobs, fleet.budgets, progress)
        beside = None if split is None or gpus is None else run_split(jobs, gpus, split, whole)
        if other is not None and others is not None:
            use = run_budgets(others, other[0].budgets, progress)
            path = other[1]
            beside = replace(use, file=path.name if path.stem in OVER_TIME else path.stem)
    found = FleetReport(gpus=gpus, whole=whole, beside=beside)
    print_fleet(found, deliver(json, report, found.document, lambda: render_fleet(found)))


def _policy(policy: str | None, static: str | None) -> dict[str, object]:
    if static is None:
        return {"planner.policy": policy}
    if policy not in (None, "static"):
        raise CliError(f"--static: a fixed fleet does not go with --policy {policy}")
    return static_overrides("--static", static)


def generate(
    spec: Annotated[
        str,
        argument(
            "SPEC", "Such as diurnal:rate_rps=20,amplitude=0.6,duration_s=7200, or fleet:models=30,hours=24."
        ),
    ],
    output: Annotated[str, option("FILE", "The trace, gzip if it ends in .gz; of fleet: the settings.")],
    rate_scale: Annotated[float, option("K", "Superpose K shifted copies.")] = 1.0,
    seed: Annotated[int, option("N", "Seed, where SPEC names none.")] = 0,
) -> None:
    """Write generated load (or any trace, scaled) as a plain trace file, or a fleet's settings."""
    check_outputs({"--output": output}, (spec,))
    options = TraceOptions(rate_scale=rate_scale, seed=seed)
    if is_fleet_spec(spec):
        if rate_scale != 1.0:
            raise CliError("--rate-scale: does not go with a fleet; its rate_rps says it")
        settings = parse_fleet_spec(spec, seed).settings()
        head = f"# Written by `headway generate {spec} --seed {seed}`.\n"
        write_text(Path(output), head + yaml.safe_dump(settings, sort_keys=False, width=1000))
        print(f"wrote {output}: {len(settings['deployments'])} deployments")
        return
    with open_trace(spec, options) as trace:
        say_notes(trace)
        write_trace(trace, Path(output))
        print(f"wrote {output}: {trace.request_count:,} requests in {trace.duration_s:g} s")
