"""Comparing routings: one fixed fleet, several loads, several seeds; every routing sees the same requests.

runs      routings × loads × seeds; the seed thins and superposes the trace, draws classes and ties
rows      one for each load and routing: means over the seeds and their standard deviations
ahead     for each load and each other routing: the last routing's goodput minus the other's, seed by
          seed, with a 95 % confidence interval (Student's t) of the mean
goodput   requests that met their SLOs, per second of the trace: the same seconds for all. A simulation's
          own `goodput_rps` also counts the seconds until its last request has ended, of which a routing
          that sheds has fewer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from math import sqrt
from statistics import fmean, stdev
from typing import Annotated, Any

from pydantic import Field

from headway.planning.policies import jsonable
from headway.simulation.build import Plan, initial_fleet
from headway.simulation.demand import demand_gpu_s, offered_load
from headway.simulation.report import ClassFigures, Minutes, ReportSlo, SimulationReport, TraceFigures
from headway.workload import open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job, run_all, work
from headway_cli.options import RunOptions, configuration, listed, static_overrides, trace_options

WITHOUT_MEANING: Mapping[str, str] = {
    "rate_scale": "the load is that of --loads",
    "routing": "--routings lists them",
    "initial": "the fleet is that of --fleet from the start",
    **dict.fromkeys(
        ("predictor", "load_predictor_warmup_trace", "no_correction", "adjustment_interval"),
        "for a fixed fleet nothing is planned",
    ),
}
"""Options of a simulation that routings on a fixed fleet leave nothing to decide, and why."""


Runner = Callable[[Sequence[Callable[[], SimulationReport]]], list[SimulationReport]]
"""Makes calls, and returns their outcomes in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and standard deviation over the seeds; None where nothing was measured."""

    mean: float | None
    sd: float | None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread":
        """The spread of the values that are known; the deviation needs two of them."""
        known = [value for value in values if value is not None]
        return cls(mean=fmean(known) if known else None, sd=stdev(known) if len(known) > 1 else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSpread:
    """The outcome of one SLO class."""

    attainment: Spread
    shed_share: Spread
    ttft_met_p99_s: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRow:
    """One routing at one load, over the seeds.

    `ttft_met_p99_s` is of the requests that met their SLOs, `prefix_hit_rate` of all prompts' tokens.
    `minutes` are counts of each minute, means over the seeds (`Minutes`).
    """

    load: float
    rate_scale: float
    routing: str
    requests: float
    attainment: Spread
    goodput_rps: Spread
    shed_share: Spread
    ttft_p90_s: Spread
    ttft_met_p99_s: Spread
    tpot_p90_s: Spread
    prefix_hit_rate: Spread
    minutes: Mapping[str, Sequence[float]]
    classes: Mapping[str, ClassSpread]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    """By how much one routing's goodput is ahead of another's at one load, with its 95 % interval."""

    load: float
    routing: str
    of: str
    goodput_rps: float
    half_width_rps: float | None
    relative: float | None
    relative_half_width: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingsReport:
    """The figures of all routings, and what they were measured on."""

    trace: TraceFigures
    profile: str
    slo: ReportSlo
    fleet: str
    seeds: int
    rows: Annotated[Sequence[RoutingRow], Field(min_length=1)]
    ahead: Sequence[Lead]
    notes: Sequence[str]

    def document(self) -> dict[str, Any]:
        """JSON-able data; rate scale and requests differ between the rows, and are null for the trace."""
        plain: dict[str, Any] = jsonable(self)
        return plain | {"trace": plain["trace"] | {"rate_scale": None, "requests": None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingComparison:
    """The question: `loads` as shares of the fleet's fluid capacity (1 is 100 %), `seeds` runs each."""

    trace: str
    options: RunOptions
    fleet: str
    routings: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: int
    jobs: int

    def job(self, routing: str, rate_scale: float, seed: int) -> Job:
        """One simulation."""
        options = replace(self.options, rate_scale=rate_scale, seed=seed)
        return Job(
            trace=self.trace,
            config=configuration(options, self._fixed(routing)),
            options=trace_options(options, seed),
            label=routing,
            settings_file=self.options.config,
        )

    @property
    def first_seed(self) -> int:
        """The seed of the flags, else of the settings; the others follow it."""
        return configuration(self.options, self._fixed(self.routings[0])).simulation.seed

    def _fixed(self, routing: str) -> dict[str, Any]:
        """Keys that overrule the settings; `sized` is, under a static policy, its fleet from the start."""
        fleet = static_overrides("--fleet", self.fleet)
        return {**fleet, "simulation.initial": "sized", "routing.profile": routing}


def check_options(options: RunOptions) -> None:
    """CliError for an option that would change nothing."""
    for name, why in WITHOUT_MEANING.items():
        value = getattr(options, name)
        if value is not None and value is not False:
            raise CliError(f"--{name.replace('_', '-')}: does not go with --routings: {why}")


def parse_loads(text: str) -> tuple[float, ...]:
    """`70,90,110` in percent → shares."""
    try:
        loads = tuple(float(item) / 100.0 for item in listed("--loads", text))
    except ValueError:
        raise CliError(f"--loads: expected percentages such as 70,90,110, got {text!r}") from None
    if not all(0.0 < load <= 100.0 for load in loads):
        raise CliError(f"--loads: expected percentages above 0 and up to 10000, got {text!r}")
    if repeated := next((load for load in loads if loads.count(load) > 1), None):
        raise CliError(f"--loads: {100.0 * repeated:g} comes twice")
    return loads


def compare_routings(comparison: RoutingComparison, run: Runner | None = None) -> RoutingsReport:
    """Simulate every routing at every load with every seed; `run` makes the calls, else fresh processes."""
    plans = [comparison.job(routing, 1.0, comparison.first_seed).plan() for routing in comparison.routings]
    scales = _rate_scales(comparison, plans[0])
    seeds = range(comparison.first_seed, comparison.first_seed + comparison.seeds)
    keys = [
        (load, routing, seed)
        for load in comparison.loads
        for seed in seeds
        for routing in comparison.routings
    ]
    jobs = [comparison.job(routing, scales[load], seed) for load, routing, seed in keys]
    run = run or partial(run_all, processes=comparison.jobs)
    found = run([partial(work, job) for job in jobs])
    runs: dict[tuple[float, str], list[SimulationReport]] = {}
    for (load, routing, _), report in zip(keys, found, strict=True):
        runs.setdefault((load, routing), []).append(report)
    first, (*others, last) = found[0], comparison.routings
    return RoutingsReport(
        trace=first.trace,
        profile=first.profile,
        slo=first.slo,
        fleet=comparison.fleet,
        seeds=comparison.seeds,
        rows=[
            _row(load, scales[load], routing, runs[load, routing])
            for load in comparison.loads
            for routing in comparison.routings
        ],
        ahead=[
            _lead(load, (last, runs[load, last]), (other, runs[load, other]))
            for load in comparison.loads
            for other in others
        ],
        notes=first.notes,
    )


def _rate_scales(comparison: RoutingComparison, plan: Plan) -> dict[float, float]:
    """The rate scale that gives each load."""
    options = trace_options(replace(comparison.options, rate_scale=1.0), comparison.first_seed)
    with open_trace(comparison.trace, options) as trace:
        shared = plan.engine.chunk_tokens > 0
        demand = demand_gpu_s(trace, plan.profile, plan.settings.slo, shared_iterations=shared)
        fleet = initial_fleet(plan, trace)
        if trace.duration_s <= 0.0:
            raise CliError(f"{comparison.trace}: all requests arrive at once, which is no load to scale")
        unscaled = offered_load(demand, fleet, plan.settings.limits, trace.duration_s)
    if unscaled <= 0.0:
        raise CliError(f"{comparison.trace}: no load to scale")
    return {load: load / unscaled for load in comparison.loads}


def _row(load: float, rate_scale: float, routing: str, runs: Sequence[SimulationReport]) -> RoutingRow:
    classes = runs[0].classes or ()
    return RoutingRow(
        load=load,
        rate_scale=rate_scale,
        routing=routing,
        requests=fmean(run.requests for run in runs),
        attainment=Spread.of(run.attainment for run in runs),
        goodput_rps=Spread.of(map(_goodput_rps, runs)),
        shed_share=Spread.of(map(_shed_share, runs)),
        ttft_p90_s=Spread.of(run.ttft_s.p90 for run in runs),
        ttft_met_p99_s=Spread.of(run.ttft_met_s.p99 for run in runs),
        tpot_p90_s=Spread.of(run.tpot_s.p90 for run in runs),
        prefix_hit_rate=Spread.of(run.prefix_hit_rate for run in runs),
        minutes=_minutes([run.minutes for run in runs if run.minutes is not None]),
        classes={
            name: ClassSpread(
                attainment=Spread.of(each.attainment for each in figures),
                shed_share=Spread.of(map(_shed_share, figures)),
                ttft_met_p99_s=Spread.of(each.ttft_met_s.p99 for each in figures),
            )
            for name in classes
            for figures in [[(run.classes or {})[name] for run in runs]]
        },
    )


def _minutes(runs: Sequence[Minutes]) -> dict[str, list[float]]:
    """The means; a run that ended sooner had nothing in the minutes after it."""
    columns = {each.name: [getattr(run, each.name) for run in runs] for each in fields(Minutes)}
    return {
        name: [sum(counts) / len(runs) for counts in zip_longest(*found, fillvalue=0)]
        for name, found in columns.items()
    }


def _goodput_rps(run: SimulationReport) -> float:
    """Requests that met their SLOs, per second of the trace; 0 without requests."""
    return (run.attainment or 0.0) * run.requests / run.trace.duration_s


def _shed_share(run: SimulationReport | ClassFigures) -> float | None:
    return run.shed / run.requests if run.requests else None


def _lead(
    load: float, ours: tuple[str, Sequence[SimulationReport]], theirs: tuple[str, Sequence[SimulationReport]]
) -> Lead:
    """The paired difference of goodput, absolute and relative to the other's mean."""
    mine, others = (list(map(_goodput_rps, runs)) for _, runs in (ours, theirs))
    differences = [one - other for one, other in zip(mine, others, strict=True)]
    base, mean, half = fmean(others), fmean(differences), _half_width(differences)
    return Lead(
        load=load,
        routing=ours[0],
        of=theirs[0],
        goodput_rps=mean,
        half_width_rps=half,
        relative=mean / base if base else None,
        relative_half_width=half / base if base and half is not None else None,
    )


def _half_width(differences: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean; None with a single run."""
    if len(differences) < 2:
        return None
    from scipy.stats import t

    count = len(differences)
    return float(t.ppf(0.975, count - 1)) * stdev(differences) / sqrt(count)
