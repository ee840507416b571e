"""Several deployments on one clock under one GPU budget: every tick they decide together.

    advance each to the tick → assess → demands → share the budget → each decides within its grant → act

Each has its own trace, engines and fleet; all they have in common is the budget. A deployment whose last
request has ended wants nothing any more, nor is anything kept free for it. As with `max_gpu_budget` the
budget bounds what is asked for: a replica that drains still occupies its GPUs for as long as that takes.

One that is asleep decides when its first request comes, before the others' next tick. It gets what it would
of the budget by their last demands, as far as they leave it free; what they hold, it gets at the tick.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np

from headway.planning.deciding import fit, gpus, in_steps
from headway.planning.demands import decide_within, demanded
from headway.planning.forecasting import Forecaster
from headway.planning.hindsight.needs import Assessment
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.sharing import Demand, GpuLosses, Grant, Standing, share
from headway.planning.types import Observation, PlanningError, Policy
from headway.simulation.kernel import COMPILED_FROM
from headway.simulation.observing import PerformanceLearner
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import RequestSource, SimulationRun, Watchers
from interp.jit import drop_stale_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedDeployment:
    """What `simulate` takes, with a name and the standing among the others."""

    name: str
    scenario: Scenario
    trace: RequestSource
    policy: Policy
    forecaster: Forecaster | None = None
    learner: PerformanceLearner | None = None
    state: Any = None
    """The policy's before its first decision; None: without a past."""
    standing: Standing = field(default_factory=Standing)
    watchers: Watchers = field(default_factory=Watchers)

    def run(self) -> SimulationRun:
        """Its simulation, at the start."""
        given = self.scenario, self.trace, self.policy, self.forecaster, self.watchers
        return SimulationRun(*given, learner=self.learner, state=self.state)

    def demand(self, losses: GpuLosses) -> Demand:
        """Its losses, with its standing."""
        return Demand(name=self.name, losses=losses, standing=self.standing)


def simulate_fleet(
    deployments: Sequence[SimulatedDeployment], budget: int | None = None, host_memory: float = inf
) -> Mapping[str, SimulationResult]:
    """Run all until the last request of each has ended; results by name.

    Without a budget each is as `simulate` has it; `host_memory` in bytes is for engines that sleep. Under one
    PlanningError when intervals differ, another policy than `headway` plans, or for what `share` refuses.
    """
    drop_stale_cache(*COMPILED_FROM)
    if budget is None:
        return {each.name: each.run().result() for each in deployments}
    if other := next((each for each in deployments if not isinstance(each.policy, HeadwayPolicy)), None):
        raise PlanningError(f"planner.policy: only headway shares a budget, and {other.name} has another")
    if len({each.policy.interval_s for each in deployments}) > 1:
        raise PlanningError("planner.adjustment_interval_s: deployments that share a budget need the same")
    return _SharedRuns(_begun(deployments, budget), budget, host_memory).results()


class _SharedRuns:
    """The simulations under way, and what each demanded last."""

    def __init__(self, deployments: Sequence[SimulatedDeployment], budget: int, host_memory: float) -> None:
        self.budget, self.host_memory = budget, host_memory
        self.interval_s = deployments[0].policy.interval_s
        self.deployments = {each.name: each for each in deployments}
        self.runs = {each.name: each.run() for each in deployments}
        self.demands = {each.name: each.demand(_first(each.scenario)) for each in deployments}

    def results(self) -> Mapping[str, SimulationResult]:
        """Run to the end."""
        tick_s = self.interval_s
        while seen := self._advance(tick_s):
            self.demands = {name: each for name, each in self.demands.items() if name in seen}
            assessed = {name: self._assess(name, each) for name, each in seen.items()}
            for name, grant in self._shared().items():
                self._act(name, assessed[name], grant)
            tick_s += self.interval_s
        return {name: run.finish() for name, run in self.runs.items()}

    def _advance(self, tick_s: float) -> Mapping[str, Observation]:
        """All that have not ended to the tick; those that wake before it act at once, the first one first."""
        seen = {name: each for name in self.demands if (each := self.runs[name].advance()) is not None}
        while early := [(each.now_s, name) for name, each in seen.items() if each.now_s < tick_s]:
            _, name = min(early)
            self._wake(name, seen.pop(name))
            self.runs[name].tick_s = tick_s
            if (found := self.runs[name].advance()) is not None:
                seen[name] = found
        return {name: seen[name] for name in self.demands if name in seen}

    def _wake(self, name: str, seen: Observation) -> None:
        assessed = self._assess(name, seen)
        grant = self._shared()[name]
        free = self.budget - sum(self._held(other) for other in self.demands if other != name)
        gpus = self.demands[name].losses.whole(min(grant.gpus, free))
        self._act(name, assessed, replace(grant, gpus=gpus))

    def _shared(self) -> Mapping[str, Grant]:
        return share(self.demands.values(), self.budget, self.host_memory)

    def _held(self, name: str) -> int:
        run = self.runs[name]
        return gpus(
            {role: run.fleet.pool_state(role).desired for role in run.scenario.pools}, run.scenario.pools
        )

    def _assess(self, name: str, seen: Observation) -> Assessment:
        """Learn and judge, and demand by that."""
        policy = self._policy(name, seen.now_s)
        assessed = policy.assess(seen, self.runs[name].state)
        self.demands[name] = self.deployments[name].demand(demanded(policy, assessed))
        return assessed

    def _act(self, name: str, assessed: Assessment, grant: Grant) -> None:
        run, seen = self.runs[name], assessed.observation
        policy = self._policy(name, seen.now_s)
        decision = decide_within(policy, assessed, grant)
        bounds = replace(run.scenario.bounds, limits=policy.settings.limits, max_gpu_budget=grant.gpus)
        run.act(seen, in_steps(decision, seen.pools, bounds))

    def _policy(self, name: str, now_s: float) -> HeadwayPolicy:
        """Within the limits in force."""
        run = self.runs[name]
        assert isinstance(run.policy, HeadwayPolicy)
        return run.policy.within(run.scenario.bounds.at(now_s, run.policy.starts_s(run.state)).limits)


def _begun(deployments: Sequence[SimulatedDeployment], budget: int) -> Sequence[SimulatedDeployment]:
    """With first fleets that fit: in order of priority, and inside a tier cut in proportion.

    Squared shortfalls over the size do that: Σ (W − g)² / W is least where all lack the same part.
    """
    grants = share([each.demand(_first(each.scenario)) for each in deployments], budget)
    return [replace(each, scenario=_fitted(each.scenario, grants[each.name].gpus)) for each in deployments]


def _first(scenario: Scenario) -> GpuLosses:
    minimum = gpus({role: pool.min_replicas for role, pool in scenario.pools.items()}, scenario.pools)
    wanted = gpus(scenario.initial, scenario.pools)
    missing = wanted - np.arange(minimum, wanted + 1)
    return GpuLosses(minimum_gpus=minimum, lost_rps=missing**2 / max(wanted, 1))


def _fitted(scenario: Scenario, budget: int) -> Scenario:
    return replace(scenario, initial=fit(scenario.initial, scenario.pools, budget).targets)
