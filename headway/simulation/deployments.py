"""Several deployments on one clock under one GPU budget: every tick they decide together.

    advance each to the tick → assess → demands → share the budget → each decides within its grant → act

Each has its own trace, engines and fleet; all they have in common is the budget. A deployment whose last
request has ended wants nothing any more, nor is anything kept free for it. As with `max_gpu_budget` the
budget bounds what is asked for: a replica that drains still occupies its GPUs for as long as that takes.

With `gpus_per_node` a replica's GPUs are on one node. Nodes are filled and emptied as by a Ray Serve that
packs, but nothing is moved, and what drains has left its place. What finds room on none is not granted.

One that is asleep decides when its first request comes, before the others' next tick. It gets what it would
of the budget by their last demands, as far as they leave it free or are idle; what else they hold, it gets at
the tick.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Any

import numpy as np

from headway.planning.common_budget import within_minimums
from headway.planning.deciding import fewer_by_schedule, fit, gpus, in_steps
from headway.planning.demands import decide_within, demanded
from headway.planning.forecasting import Forecaster
from headway.planning.hindsight.needs import Assessment, needs_of
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.placement import EVERY, GPU, Layout, Node, OnNode, Placement, placed, take
from headway.planning.sharing import Demand, GpuLosses, Grant, Standing, share
from headway.planning.types import Observation, PlanningError, Policy, PoolLimits, Role
from headway.simulation.fleet import Loads
from headway.simulation.kernel import COMPILED_FROM
from headway.simulation.observing import PerformanceLearner
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import RequestSource, SimulationRun, Watchers
from headway.words import plural
from interp.jit import drop_stale_cache


class SimulatedNodes:
    """The nodes of a budget, all but the last of `each` GPUs, and the replicas on them by deployment."""

    def __init__(self, gpus: int, each: int) -> None:
        self._gpus = {f"{at:06}": min(each, gpus - at) for at in range(0, gpus, each)}
        self._replicas: dict[str, list[OnNode]] = {}

    def room(
        self,
        name: str,
        wanted: Mapping[Role, int],
        limits: Mapping[Role, PoolLimits],
        keep: Mapping[str, int] | None,
    ) -> Placement:
        """Of the replicas wanted those that find room once others have no more GPUs than they keep."""
        there = Counter(one.role for one in self._replicas.get(name, ()))
        return placed(wanted, there, _needs(limits), self._layout().rooms(keep))

    def follow(self, name: str, targets: Mapping[Role, int], limits: Mapping[Role, PoolLimits]) -> None:
        """Place replicas as far as there is room, or take them away."""
        mine = self._replicas.setdefault(name, [])
        for role, target in targets.items():
            up = [one for one in self._layout().stopping(name) if one.role is role]
            for one in up[: max(0, len(up) - target)]:
                mine.remove(one)
            for _ in range(target - len(up)):
                needs, rooms = _needs(limits)[role], self._layout().rooms()
                room = take(needs, rooms)
                nodes = (node for node, each in zip(self._gpus, rooms, strict=True) if each is room)
                mine += [OnNode(role=role, node=node, needs=needs) for node in nodes]

    def _layout(self) -> Layout:
        taken = Counter[str]()
        for one in chain(*self._replicas.values()):
            taken[one.node] += int(one.needs[GPU])
        amounts = ((name, gpus, gpus - taken[name]) for name, gpus in self._gpus.items())
        nodes = [Node(name=name, has={GPU: gpus}, free={GPU: free}) for name, gpus, free in amounts]
        return Layout(nodes=nodes, replicas=self._replicas)


def _needs(limits: Mapping[Role, PoolLimits]) -> Mapping[Role, Mapping[str, float]]:
    return {role: {GPU: float(pool.gpus_per_replica)} for role, pool in limits.items()}


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
        self.nodes = _nodes(deployments, budget)
        self.runs = {each.name: each.run() for each in deployments}
        at_once = [each.scenario.start_up.at_once for each in deployments if each.scenario.start_up.at_once]
        loads = Loads(min(at_once, default=None))
        for run in self.runs.values():
            run.fleet.loads = loads
        self.demands = {each.name: each.demand(_first(each.scenario)) for each in deployments}
        # In the order of `placement`, whatever that of the file.
        for each in sorted(deployments, key=lambda each: (-_largest(each.scenario), each.name)):
            self._follow(each.name, each.scenario.initial)

    def results(self) -> Mapping[str, SimulationResult]:
        """Run to the end."""
        tick_s = self.interval_s
        while seen := self._advance(tick_s):
            for name in self.demands.keys() - seen.keys():
                self._follow(name, dict.fromkeys(self.runs[name].scenario.pools, 0))
            self.demands = {name: each for name, each in self.demands.items() if name in seen}
            assessed = {name: self._assess(name, each) for name, each in seen.items()}
            due = self._shared(self._with_room(assessed))
            # Who gives up GPUs first.
            for name, grant in sorted(due.items(), key=lambda one: one[1].gpus - self._held(one[0])):
                self._act(name, assessed[name], grant)
            tick_s += self.interval_s
        return {name: run.finish() for name, run in self.runs.items()}

    def _advance(self, tick_s: float) -> Mapping[str, Observation]:
        """All that have not ended to the tick; those that wake before it act at once, the first one first."""
        seen = {name: each for name in self.demands if (each := self.runs[name].advance()) is not None}
        while early := [(each.now_s, name) for name, each in seen.items() if each.now_s < tick_s]:
            _, name = min(early)
            self._wake(name, seen.pop(name), seen)
            self.runs[name].tick_s = tick_s
            if (found := self.runs[name].advance()) is not None:
                seen[name] = found
        return {name: seen[name] for name in self.demands if name in seen}

    def _wake(self, name: str, seen: Observation, later: Mapping[str, Observation]) -> None:
        """Act on what others leave free, and what those give up that have nothing to do until the tick."""
        assessed = self._assess(name, seen)
        due, free = self._shared(self.demands), self.budget
        for other in self.demands.keys() - {name}:
            held = self._held(other)
            free -= min(held, due[other].gpus) if other in later and _nothing(later[other]) else held
        most, losses = min(due[name].gpus, free), self.demands[name].losses
        gpus = losses.whole(most) if due[name].gpus >= losses.minimum_gpus else most
        self._act(name, assessed, replace(due[name], gpus=gpus))

    def _shared(self, demands: Mapping[str, Demand]) -> Mapping[str, Grant]:
        own = {name: _least(self.runs[name].scenario) for name in demands}
        return share(within_minimums(demands, own, self.budget).values(), self.budget, self.host_memory)

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

    def _with_room(self, assessed: Mapping[str, Assessment]) -> Mapping[str, Demand]:
        """The demands of all without what finds no room, though others give up what they would for it."""
        found = dict(self.demands)
        for name, each in assessed.items():
            if self._room(name, each).most:
                due = self._shared(self.demands)
                keep = {other: grant.gpus for other, grant in due.items() if other != name}
                policy = self._policy(name, each.observation.now_s)
                limits = self._room(name, each, keep).within(policy.settings.limits)
                found[name] = self.deployments[name].demand(demanded(policy.within(limits), each))
        return found

    def _room(self, name: str, assessed: Assessment, keep: Mapping[str, int] | None = None) -> Placement:
        if self.nodes is None:
            return EVERY
        policy = self._policy(name, assessed.observation.now_s)
        wanted = policy.wanted(assessed, needs_of(assessed, policy.settings))
        return self.nodes.room(name, wanted, policy.settings.limits, keep)

    def _follow(self, name: str, targets: Mapping[Role, int]) -> None:
        if self.nodes is not None:
            self.nodes.follow(name, targets, self.runs[name].scenario.pools)

    def _act(self, name: str, assessed: Assessment, grant: Grant) -> None:
        run, seen = self.runs[name], assessed.observation
        policy, found = self._policy(name, seen.now_s), self._room(name, assessed)
        policy = policy.within(found.within(policy.settings.limits))
        grant = replace(grant, wanted=self.demands[name].losses.wanted_gpus, unplaced=found.words)
        if grant.gpus < self.demands[name].losses.minimum_gpus:
            policy = policy.within(fewer_by_schedule(policy.settings.limits, run.scenario.pools, grant.gpus))
        decision = decide_within(policy, assessed, grant)
        bounds = replace(run.scenario.bounds, limits=policy.settings.limits, max_gpu_budget=grant.gpus)
        decision = in_steps(decision, seen.pools, bounds)
        self._follow(name, decision.targets)
        run.act(seen, decision)

    def _policy(self, name: str, now_s: float) -> HeadwayPolicy:
        """Within the limits in force."""
        run = self.runs[name]
        assert isinstance(run.policy, HeadwayPolicy)
        return run.policy.within(run.scenario.bounds.at(now_s, run.policy.starts_s(run.state)).limits)


def _nodes(deployments: Sequence[SimulatedDeployment], budget: int) -> SimulatedNodes | None:
    sizes = [each.scenario.gpus_per_node for each in deployments if each.scenario.gpus_per_node]
    if not sizes:
        return None
    size = min(sizes)
    for each in deployments:
        if (needs := _largest(each.scenario)) > size:
            nodes = f"nodes of {plural(size, 'GPU')}"
            raise PlanningError(
                f"simulation.gpus_per_node: {nodes} hold no replica of {each.name}, which needs {needs}"
            )
    return SimulatedNodes(budget, size)


def _nothing(seen: Observation) -> bool:
    """True if nothing came, ran or waited."""
    return seen.requests == 0 and not any(pool.running + pool.waiting for pool in seen.pools.values())


def _begun(deployments: Sequence[SimulatedDeployment], budget: int) -> Sequence[SimulatedDeployment]:
    """With first fleets that fit: in order of priority, and inside a tier cut in proportion.

    Squared shortfalls over the size do that: Σ (W − g)² / W is least where all lack the same part.
    """
    grants = share([each.demand(_first(each.scenario)) for each in deployments], budget)
    return [replace(each, scenario=_fitted(each.scenario, grants[each.name].gpus)) for each in deployments]


def _first(scenario: Scenario) -> GpuLosses:
    minimum = _least(scenario)
    wanted = gpus(scenario.initial, scenario.pools)
    missing = wanted - np.arange(minimum, wanted + 1)
    return GpuLosses(minimum_gpus=minimum, lost_rps=missing**2 / max(wanted, 1))


def _least(scenario: Scenario) -> int:
    return gpus({role: pool.min_replicas for role, pool in scenario.pools.items()}, scenario.pools)


def _largest(scenario: Scenario) -> int:
    return max(pool.gpus_per_replica for pool in scenario.pools.values())


def _fitted(scenario: Scenario, budget: int) -> Scenario:
    return replace(scenario, initial=fit(scenario.initial, scenario.pools, budget).targets)
