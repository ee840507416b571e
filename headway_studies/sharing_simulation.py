"""Several deployments on one clock under one GPU budget: every tick they decide together.

    advance each to the tick → assess → demands → share the budget → each decides within its grant → act

Each has its own trace, engines and fleet; all they have in common is the budget. A deployment whose last
request has ended wants nothing any more, nor is anything kept free for it. As with `max_gpu_budget` the
budget bounds what is asked for: a replica that drains still occupies its GPUs for as long as that takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headway.planning.deciding import fit, gpus, in_steps
from headway.planning.forecasting import Forecaster
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.sharing import Demand, GpuLosses, Standing, decide_within, demanded, share
from headway.planning.types import Observation, PlanningError
from headway.simulation.kernel import COMPILED_FROM
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import RequestSource, SimulationRun, Watchers
from interp.jit import drop_stale_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One deployment: what `simulate` takes, and its standing among the others."""

    name: str
    scenario: Scenario
    trace: RequestSource
    policy: HeadwayPolicy
    forecaster: Forecaster | None = None
    state: Any = None
    """The policy's before its first decision; None: without a past."""
    standing: Standing = field(default_factory=Standing)
    watchers: Watchers | None = None

    def demand(self, losses: GpuLosses) -> Demand:
        """Its losses, with its standing."""
        return Demand(name=self.name, losses=losses, standing=self.standing)


def simulate_shared(tenants: Sequence[Tenant], budget: int) -> Mapping[str, SimulationResult]:
    """Run all until the last request of each has ended, as `simulate` would; results by name.

    PlanningError when intervals differ, or for what `share` refuses.
    """
    if len({tenant.policy.interval_s for tenant in tenants}) > 1:
        raise PlanningError("planner.adjustment_interval_s: deployments that share a budget need the same")
    drop_stale_cache(*COMPILED_FROM)
    runs = {tenant.name: _run(tenant) for tenant in _begun(tenants, budget)}
    known, going = {tenant.name: tenant for tenant in tenants}, dict(runs)
    while going:
        seen = {name: run.advance() for name, run in going.items()}
        going = {name: run for name, run in going.items() if seen[name] is not None}
        _decide(known, going, {name: one for name, one in seen.items() if one is not None}, budget)
    return {name: run.finish() for name, run in runs.items()}


def _run(tenant: Tenant) -> SimulationRun:
    watchers = tenant.watchers or Watchers()
    return SimulationRun(
        tenant.scenario,
        tenant.trace,
        tenant.policy,
        tenant.forecaster,
        watchers,
        state=tenant.state,
        wakes=False,
    )


def _decide(
    tenants: Mapping[str, Tenant],
    runs: Mapping[str, SimulationRun],
    seen: Mapping[str, Observation],
    budget: int,
) -> None:
    assessed = {name: tenants[name].policy.assess(seen[name], run.state) for name, run in runs.items()}
    demands = [tenants[name].demand(demanded(tenants[name].policy, each)) for name, each in assessed.items()]
    grants = share(demands, budget)
    for name, run in runs.items():
        decision = decide_within(tenants[name].policy, assessed[name], grants[name])
        bounds = replace(run.scenario.bounds, max_gpu_budget=grants[name].gpus)
        run.act(seen[name], in_steps(decision, seen[name].pools, bounds))


def _begun(tenants: Sequence[Tenant], budget: int) -> Sequence[Tenant]:
    """With first fleets that fit: in order of priority, and inside a tier cut in proportion.

    Squared shortfalls over the size do that: Σ (W − g)² / W is least where all lack the same part.
    """
    grants = share([tenant.demand(_first(tenant.scenario)) for tenant in tenants], budget)
    return [replace(one, scenario=_fitted(one.scenario, grants[one.name].gpus)) for one in tenants]


def _first(scenario: Scenario) -> GpuLosses:
    minimum = gpus({role: pool.min_replicas for role, pool in scenario.pools.items()}, scenario.pools)
    wanted = gpus(scenario.initial, scenario.pools)
    missing = wanted - np.arange(minimum, wanted + 1)
    return GpuLosses(minimum_gpus=minimum, lost_rps=missing**2 / max(wanted, 1))


def _fitted(scenario: Scenario, budget: int) -> Scenario:
    return replace(scenario, initial=fit(scenario.initial, scenario.pools, budget).targets)
