"""Fixed fleets in hindsight: a grid around the demand, and the cheapest one that meets the SLO.

Ranges per role go from the mean demand of the trace's intervals (reference formulas, rounded down) to twice
the highest demand. The search for the cheapest fleet assumes that one more replica never lowers attainment.
It then needs no grid: from few prefill and many decode replicas, give up a decode replica where the target is
met, add a prefill replica where it is not. The target is the SLO's attainment or, if that is out of reach,
99 % of what the largest fleet attains.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import ceil, floor, inf, isfinite

import numpy as np

from headway.planning import Role
from headway.planning.budget import fit, gpus
from headway.simulation.build import Plan
from headway.simulation.demand import interval_loads, requirements
from headway.simulation.report import SimulationReport
from headway.workload import Trace

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
