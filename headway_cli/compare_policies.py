"""Comparing policies on one trace: `--policies reference,static:prefill=4:decode=8` gives a row each.

An item is NAME[:KEY=VALUE…]. A key is a role (the fleet of `static`) or a key of `planner` in the
configuration (`reference:predictor=arima`). All settings are checked in this process before any other starts,
and a tiny simulation compiles what is not in the cache, so that the processes do not each do it.

`static:auto` is the cheapest fixed fleet that meets the SLO. Ranges per role go from the mean demand of the
trace's intervals (reference formulas, rounded down) to twice the highest demand. The search assumes that one
more replica never lowers attainment. It then needs no grid: from few prefill and many decode replicas, give
up a decode replica where the target is met, add a prefill replica where it is not. The target is the SLO's
attainment or, if that is out of reach, 99 % of what the largest fleet attains.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import ceil, floor, inf, isfinite
from typing import Any

import numpy as np
import yaml

from headway.config import load_config
from headway.planning import Role
from headway.planning.deciding import fit, gpus
from headway.simulation.build import Plan
from headway.simulation.demand import interval_loads, requirements
from headway.simulation.report import SimulationReport
from headway.workload import Trace, open_trace
from headway_cli.compare_document import AUTO, PolicyComparison
from headway_cli.errors import CliError
from headway_cli.job import ANY_LOAD, Job, execute, opened, run_all, work
from headway_cli.options import RunOptions, configuration, listed, trace_options

PEAK_FACTOR = 2.0
VALUES_PER_ROLE = 5
SHARE_OF_ATTAINED = 0.99

Fleet = dict[Role, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Replica counts of one role worth trying, ends included."""

    low: int
    high: int

    def values(self) -> list[int]:
        """A few of them, denser at the low end."""
        if self.high - self.low < VALUES_PER_ROLE:
            return list(range(self.low, self.high + 1))
        spaced = np.geomspace(self.low, self.high, VALUES_PER_ROLE)
        return sorted({round(float(value)) for value in spaced})


def ranges(plan: Plan, trace: Trace) -> Mapping[Role, Range]:
    """The range of each pool, within its limits."""
    settings, found = plan.settings, dict[Role, Range]()
    demands = [
        requirements(load, span_s, settings, plan.profile)
        for load, span_s in interval_loads(trace, settings.interval_s)
    ]
    for role, limits in settings.limits.items():
        known = [need[role] for need in demands if isfinite(need[role])] or [float(limits.max_replicas)]
        low = max(limits.min_replicas, floor(sum(known) / len(known)))
        high = min(limits.max_replicas, ceil(max(known) * PEAK_FACTOR) + 1)
        found[role] = Range(low=min(low, high), high=high)
    return found


def grid(plan: Plan, trace: Trace) -> list[Fleet]:
    """Fleets to try, cheapest first."""
    found = ranges(plan, trace)
    every = product(*(span.values() for span in found.values()))
    fleets = (dict(zip(found, counts, strict=True)) for counts in every)
    budget = inf if plan.settings.max_gpu_budget is None else plan.settings.max_gpu_budget
    affordable = (fleet for fleet in fleets if _cost(fleet, plan) <= budget)
    return sorted(affordable, key=lambda fleet: _cost(fleet, plan))


def pareto(reports: Mapping[str, SimulationReport]) -> Mapping[str, SimulationReport]:
    """Those that no other beats in both attainment and GPU-hours, cheapest first."""
    kept: dict[str, SimulationReport] = {}
    best = -1.0
    for label, report in sorted(
        reports.items(), key=lambda item: (item[1].gpu_hours, -(item[1].attainment or 0.0))
    ):
        attained = report.attainment or 0.0
        if attained > best:
            kept[label], best = report, attained
    return kept


def cheapest(plan: Plan, trace: Trace, attain: Callable[[Fleet], float]) -> Fleet:
    """The cheapest fleet that meets the target; `attain` simulates one fleet and gives its attainment."""
    found = ranges(plan, trace)
    tops = {role: span.high for role, span in found.items()}
    largest = dict(fit(tops, plan.settings.limits, plan.settings.max_gpu_budget).targets)
    target = min(plan.config.slo.attainment, SHARE_OF_ATTAINED * attain(largest))
    rising, *rest = found
    best, fleet = largest, {**largest, rising: found[rising].low}
    falling = rest[0] if rest else None
    while fleet[rising] <= largest[rising] and (falling is None or fleet[falling] >= found[falling].low):
        if falling is not None and _cost(fleet, plan) >= _cost(best, plan):
            fleet = {**fleet, falling: fleet[falling] - 1}
        elif attain(fleet) < target:
            fleet = {**fleet, rising: fleet[rising] + 1}
        elif falling is None:
            return fleet
        else:
            best, fleet = fleet, {**fleet, falling: fleet[falling] - 1}
    return best


def _cost(fleet: Fleet, plan: Plan) -> int:
    return gpus(fleet, plan.settings.limits)


Labelled = tuple[str, SimulationReport, int | None]
"""A row: label, report, and for `static:auto` how many fleets were tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One policy to compare: its label, and the configuration keys that make it."""

    label: str
    overrides: dict[str, Any] = field(default_factory=dict)


def parse_policies(text: str) -> tuple[Candidate, ...]:
    """The candidates in their order; CliError for an item that cannot be read or comes twice."""
    return tuple(map(_candidate, listed("--policies", text)))


def static_candidate(counts: dict[Role, int]) -> Candidate:
    """A fixed fleet."""
    keys: dict[str, Any] = {f"planner.static.{role}": count for role, count in counts.items()}
    label = ":".join(["static", *(f"{role}={count}" for role, count in counts.items())])
    return Candidate(label=label, overrides={"planner.policy": "static", **keys})


def any_fleet(label: str) -> Candidate:
    """A stand-in for a fixed fleet that is not known yet: its policy goes with any pools."""
    return Candidate(label=label, overrides={"planner.policy": "threshold"})


def _candidate(item: str) -> Candidate:
    if item == AUTO:
        return any_fleet(AUTO)
    name, *pairs = item.split(":")
    keys: dict[str, Any] = {}
    for key, value in _overrides(item, pairs):
        if key in keys:
            raise CliError(f"--policies: {item}: {key} is given twice")
        keys[key] = value
    return Candidate(label=item, overrides={"planner.policy": name, **keys})


def _overrides(item: str, pairs: list[str]) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not key or not equals or not value:
            raise CliError(f"--policies: {item}: expected KEY=VALUE, got {pair!r}")
        try:
            setting = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise CliError(f"--policies: {item}: {key}: {value[:40]!r} is not a value in YAML") from error
        yield f"planner.static.{key}" if key in set(Role) else f"planner.{key}", setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The candidates, the trace, and the options that they share."""

    trace: str
    options: RunOptions
    candidates: tuple[Candidate, ...]
    static_sweep: bool
    jobs: int

    def job(self, candidate: Candidate) -> Job:
        """The simulation of one candidate."""
        config = configuration(self.options, candidate.overrides)
        options = trace_options(self.options, config.simulation.seed)
        file = self.options.config
        return Job(
            trace=self.trace, config=config, options=options, label=candidate.label, settings_file=file
        )

    def static_plan(self) -> Plan:
        """The deployment, for questions about fixed fleets."""
        return self.job(any_fleet("static")).plan()


def compare_policies(comparison: Comparison) -> PolicyComparison:
    """Simulate all candidates, and the grid of fixed fleets if it was asked for."""
    jobs = [comparison.job(candidate) for candidate in comparison.candidates]
    for job in jobs:
        job.plan()
    swept = _swept(comparison) if comparison.static_sweep else []
    # Compiles what is not in the cache yet, before several processes would.
    execute(Job(trace=ANY_LOAD, config=load_config(None, {"planner.policy": "static"})))
    calls = [partial(find_static, comparison) if job.label == AUTO else partial(_run, job) for job in jobs]
    found = run_all([*calls, *(partial(_run, job) for job in swept)], comparison.jobs)
    policies = found[: len(jobs)]
    config = configuration(comparison.options)
    return PolicyComparison(
        policies={label: report for label, report, _ in policies},
        fixed=pareto({label: report for label, report, _ in found[len(jobs) :]}),
        fixed_tried=len(swept),
        fleets_tried={label: tried for label, _, tried in policies if tried is not None},
        price_per_gpu_hour=config.price_per_gpu_hour(),
        currency=config.planner.advice.currency,
    )


def _run(job: Job) -> Labelled:
    return job.label, work(job), None


def _swept(comparison: Comparison) -> list[Job]:
    plan = comparison.static_plan()
    options = trace_options(comparison.options, plan.config.simulation.seed)
    with open_trace(comparison.trace, options) as trace:
        fleets = grid(plan, trace)
    return [comparison.job(static_candidate(fleet)) for fleet in fleets]


def find_static(comparison: Comparison) -> Labelled:
    """The report of the cheapest fixed fleet that meets the target, and how many fleets were tried."""
    plan = comparison.static_plan()
    trace = opened(comparison.trace, trace_options(comparison.options, plan.config.simulation.seed))
    tried: dict[tuple[int, ...], SimulationReport] = {}

    def attain(fleet: Fleet) -> float:
        report = tried[tuple(fleet.values())] = work(comparison.job(static_candidate(fleet)))
        return report.attainment or 0.0

    best = cheapest(plan, trace, attain)
    counts = " ".join(f"{role}={count}" for role, count in best.items())
    return f"{AUTO} ({counts})", tried[tuple(best.values())], len(tried)
