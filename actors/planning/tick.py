"""One tick: synced? → observe → compute → revalidate → apply → record.

| what is missing                               | what the tick does                                         |
|-----------------------------------------------|------------------------------------------------------------|
| the collector does not answer, or its data is | the observation is NaN: the policy holds, as it documents  |
| starting, stale or down                       |                                                            |
| the connector does not say how the pools are  | their last counts stand in, the observation is NaN; none   |
|                                               | known yet: PartError, nothing is decided                   |
| the Interpolator does not answer              | the last surfaces; none yet: PartError                     |
| no forecast in time                           | the policy goes on without one; the record says so         |
| the connector refuses, or does not answer     | the record says so; the next tick asserts again            |

The record is stored before the targets are applied, so that every action has its decision, also when the
planner dies in between. Time: each step gets a share of the deadline, so that there is always some left to
apply. Settings or surfaces that changed while the policy was at work make it plan once more.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

from actors.collector.values import Health, HealthStatus, Latency, Measured
from actors.connectors.protocol import ConnectorError, PoolCounts, Refused
from actors.planning.grid import Beat
from actors.planning.observing import USABLE, observe, unmeasured
from actors.planning.parts import PartError
from actors.planning.policies import InForce
from actors.planning.records import REFUSED, UNREACHABLE, Considered, Record, make_record, targets_of
from actors.planning.world import Deadline, World, ensure_policy
from headway.planning import Decision, Observation, PlanningError, Policy, Role
from headway.planning.budget import fit

FORECAST_UNTIL, APPLY_FROM = 0.7, 0.8
"""Shares of the deadline: when the forecast is not waited for any more, and when computing must end."""

OBSERVE_UNTIL = 0.4
REHEARSALS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a tick. `holding` is empty, or says why nothing new could be decided."""

    record: Record
    observation: Observation
    holding: str = ""


async def run_tick(world: World, beat: Beat, deadline_s: float) -> Outcome:
    """One decision. PartError, PlanningError or TimeoutError when none could be made: nothing was changed."""
    deadline = Deadline(deadline_s)
    in_force = await ensure_policy(world, deadline)
    considered = await _look(world, in_force, beat, deadline)
    considered = await _with_forecast(world, in_force, considered, deadline)
    decision = await _decide(world, in_force, considered, deadline)
    record = _store(world, considered, decision)
    if not record["dry_run"]:
        record = await apply(world, record, decision.targets, deadline)
    return Outcome(record=record, observation=considered.observation, holding=_why_holding(considered))


async def _look(world: World, in_force: InForce, beat: Beat, deadline: Deadline) -> Considered:
    interval_s = in_force.policy.interval_s
    measured, (counts, why_not) = await asyncio.gather(
        _collect(world, interval_s, deadline), _count(world, deadline)
    )
    world.measured = measured
    notes = [why_not] if why_not else []
    planned_on = measured
    if why_not:
        health = Health(status=HealthStatus.DOWN, detail=why_not)
        planned_on = Measured(start_s=measured.start_s, end_s=measured.end_s, health=health)
    if measured.health.detail:
        notes.append(f"metrics {measured.health.status}: {measured.health.detail}")
    observation = observe(planned_on, counts, interval_s)
    return Considered(
        beat=beat,
        measured=measured,
        counts=counts,
        observation=observation,
        previous=targets_of(world.log.last) or {role: pool.desired for role, pool in counts.items()},
        notes=notes,
    )


async def _collect(world: World, interval_s: float, deadline: Deadline) -> Measured:
    try:
        return await deadline.within(OBSERVE_UNTIL, world.parts.collect(interval_s))
    except (PartError, TimeoutError) as error:
        why = str(error) or "MetricCollector: no answer in time"
        return unmeasured(world.clock(), interval_s, HealthStatus.DOWN, why)


async def _count(world: World, deadline: Deadline) -> tuple[Mapping[Role, PoolCounts], str]:
    try:
        world.counts = await deadline.within(OBSERVE_UNTIL, world.connector.state())
    except (ConnectorError, TimeoutError) as error:
        why = world.fault = f"pools: {str(error) or 'no answer in time'}"
        if not world.counts:
            raise PartError(why) from error
        return world.counts, why
    world.fault = ""
    return world.counts, ""


async def _with_forecast(
    world: World, in_force: InForce, considered: Considered, deadline: Deadline
) -> Considered:
    if not in_force.forecasts:
        return considered
    observation = considered.observation
    try:
        forecast = await deadline.within(
            FORECAST_UNTIL, world.parts.forecast(observation, considered.beat.tick)
        )
    except (PartError, TimeoutError) as error:
        note = f"no forecast: {str(error) or 'Predictor: not in time'}"
        return replace(considered, notes=[*considered.notes, note])
    return replace(considered, observation=replace(observation, forecast=forecast))


async def rehearse(world: World) -> None:
    """Plan for made-up traffic, and forget it; PlanningError or PartError as a tick would raise them.

    Several times: a policy that learns uses, and compiles, more of itself once it has a past.
    """
    in_force = world.refreshed()
    now_s = world.clock()
    typical = Measured(
        start_s=now_s,
        end_s=now_s,
        health=Health(status=HealthStatus.OK),
        requests=1.0,
        isl_tokens=1000.0,
        osl_tokens=100.0,
        ttft_s=Latency(mean=0.1),
        itl_s=Latency(mean=0.01),
    )
    observation = observe(typical, world.counts, in_force.policy.interval_s)
    await world.compute(lambda: _rehearsed(in_force.policy, observation))


def _rehearsed(policy: Policy, observation: Observation) -> Decision:
    decision = policy.plan(observation, policy.initial_state())
    for tick in range(1, REHEARSALS):
        later = replace(observation, now_s=observation.now_s + tick * policy.interval_s)
        decision = policy.plan(later, decision.next_state)
    return decision


async def _decide(world: World, in_force: InForce, considered: Considered, deadline: Deadline) -> Decision:
    """Plan; once more if settings have changed meanwhile. Then check the result against limits and budget."""
    decision = await _compute(world, in_force, considered, deadline)
    latest = world.refreshed()
    if latest.version != in_force.version:
        decision, in_force = await _compute(world, latest, considered, deadline), latest
    _check(decision.targets, in_force)
    return decision


async def _compute(world: World, in_force: InForce, considered: Considered, deadline: Deadline) -> Decision:
    return await deadline.within(APPLY_FROM, world.compute(lambda: _plan(world, in_force, considered)))


def _plan(world: World, in_force: InForce, considered: Considered) -> Decision:
    same = world.memory.policy == in_force.policy.name
    state = world.memory.state if same else in_force.policy.initial_state()
    return in_force.policy.plan(considered.observation, state)


def _check(targets: Mapping[Role, int], in_force: InForce) -> None:
    limits = in_force.settings.limits
    if set(targets) != set(limits):
        raise PlanningError(
            f"{in_force.policy.name}: targets for {sorted(targets)}, pools are {sorted(limits)}"
        )
    fitted = fit(targets, limits, in_force.settings.max_gpu_budget).targets
    if fitted != dict(targets):
        raise PlanningError(f"{in_force.policy.name}: targets {dict(targets)} are outside limits or budget")


def _store(world: World, considered: Considered, decision: Decision) -> Record:
    planner = world.settings.config.planner
    memory = world.memory.counting(considered.measured)
    memory = replace(memory, policy=planner.policy, state=decision.next_state)
    dry_run = planner.dry_run
    record = make_record(considered, decision, world.clock(), world.kind, dry_run)
    stored = world.log.append(record, memory.dump())
    world.memory = memory
    return stored


async def apply(
    world: World, record: Record, targets: Mapping[Role, int], deadline: Deadline | None = None
) -> Record:
    """Hand targets to the connector and note in the record what it said."""
    call = world.connector.set_targets(targets, {"decision": record["id"], **record["reasons"]})
    try:
        action = await (deadline.within(1.0, call) if deadline else call)
        result: dict[str, Any] = {"status": action.status, "detail": dict(action.detail)}
    except Refused as error:
        result = {"status": REFUSED, "detail": {"error": str(error)}}
    except (ConnectorError, TimeoutError) as error:
        result = {"status": UNREACHABLE, "detail": {"error": str(error) or "no answer in time"}}
    result["at"] = world.clock()
    changed = world.log.update(record["id"], {"connector": {"kind": world.kind, **result}})
    return changed or record


def _why_holding(considered: Considered) -> str:
    if considered.measured.health.status not in USABLE or isnan(considered.observation.requests):
        return "; ".join(considered.notes) or "the request count was not measured"
    return ""
