"""One tick: synced? → observe → compute → revalidate → record → apply. `after` follows it.

| what is missing                               | what the tick does                                         |
|-----------------------------------------------|------------------------------------------------------------|
| the collector does not answer, or its data is | the observation is NaN: the policy holds, as it documents  |
| starting, stale or down                       |                                                            |
| the connector does not give the pools' counts | their last counts stand in, the observation is NaN; none   |
|                                               | known yet: ActorFailure, nothing is decided                |
| the Interpolator does not answer              | the last surfaces; none yet: ActorFailure                  |
| no forecast in time                           | the policy goes on without one; the record says so         |
| the store does not take the record in time    | ActorFailure: what is not recorded is not carried out      |
| the connector refuses, or does not answer     | the record says so; the next tick asserts again            |

The record is stored before the targets are applied, so that every action has its decision, also when the
planner dies in between. Time: each step gets a share of the deadline, so that there is always some left to
apply. Settings or surfaces that changed while the policy was at work make it plan once more.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, isnan
from typing import Any

from actors.collector.interval import NAN, HealthStatus, Measured, PoolLoad, unmeasured
from actors.connectors.drift import DriftAwareConnector
from actors.connectors.protocol import ConnectorError, PoolCounts, Refused
from actors.planning.context import ActorFailure, Deadline, PlannerContext, PlannerState, PolicyInForce
from actors.store import StoreAway
from headway.planning import Decision, Observation, PoolLimits, PoolState, Role, Slo
from headway.planning.common_budget import decide_granted
from headway.planning.deciding import PolicyError, call, decide
from headway.planning.decision_text import summary_text
from headway.planning.doubt import in_doubt
from headway.planning.forecasting import with_forecast
from headway.planning.hindsight.history import attained
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.policies import describe, jsonable
from headway.planning.records import (
    DRY_RUN,
    PLANNED,
    REFUSED,
    UNREACHABLE,
    AdvicePoint,
    ConnectorAnswer,
    DecisionRecord,
)
from headway.planning.synthetic import made_of
from headway.words import plural

logger = logging.getLogger(__name__)

OBSERVE_UNTIL, FORECAST_UNTIL, APPLY_FROM = 0.4, 0.7, 0.8
"""Shares of the deadline after which observing, the forecast and computing are not waited for any more."""

USABLE = frozenset({HealthStatus.OK, HealthStatus.PARTIAL})

LONGEST = 2.5
"""Intervals since the last record beyond which what happened meanwhile is in none: nothing watched it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickTime:
    """The number of a tick, which only rises, and the Unix time at which it is due."""

    tick: int
    due_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionInputs:
    """Everything that one decision is made from. `notes` are lines on what was missing.

    `observation` is what happened, `shown` what the policy decides from: in a dry run its own fleet, see
    `headway.planning.advice`. The counts are `counted`, or those from before.
    """

    measured: Measured
    counts: Mapping[Role, PoolCounts]
    observation: Observation
    shown: Observation
    previous: Mapping[Role, int]
    counted: bool = True
    advice: AdvicePoint | None = None
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TickOutcome:
    """The record of a tick and what it was made from; `taken_over` if the decision before was a dry run's.

    `holding` is empty, or says why nothing new could be decided.
    """

    record: DecisionRecord
    inputs: DecisionInputs
    policy: PolicyInForce
    taken_over: bool
    holding: str = ""


class Tick:
    """One tick, from the first question to the connector's answer."""

    def __init__(
        self, context: PlannerContext, state: PlannerState, time: TickTime, deadline_s: float
    ) -> None:
        self._context, self._state, self._time = context, state, time
        self._deadline = Deadline(deadline_s)

    async def run(self) -> TickOutcome:
        """One decision.

        ActorFailure, PlanningError or TimeoutError when none could be made: then nothing was changed.
        """
        policy = await self._state.policy.refresh(self._context.actors, self._deadline)
        inputs = await self._observe(policy)
        if policy.forecasts:
            inputs = await self._with_forecast(inputs, policy.policy.interval_s)
        if self._context.settings.config.planner.dry_run:
            inputs = await self._advised(policy, inputs)
        last = self._context.log.last
        decision = await self._decide(policy, inputs)
        record = await self._store(inputs, decision)
        if not record.dry_run:
            record = await apply(self._context, record, decision.targets, self._deadline)
        holding = ""
        if inputs.measured.health.status not in USABLE or isnan(inputs.observation.requests):
            holding = "; ".join(inputs.notes) or "the request count was not measured"
        return TickOutcome(
            record=record,
            inputs=inputs,
            policy=policy,
            taken_over=last is not None and last.dry_run,
            holding=holding,
        )

    async def _observe(self, policy: PolicyInForce) -> DecisionInputs:
        interval_s, now_s = policy.policy.interval_s, self._context.clock()
        measured, (counts, counts_fault) = await asyncio.gather(self._collect(interval_s), self._count())
        if measured.health.status in USABLE:
            self._state.seen_at["metrics"] = measured.end_s
        notes = [counts_fault] if counts_fault else []
        connector = self._context.connector
        if isinstance(connector, DriftAwareConnector):
            notes += connector.notes()
        if measured.health.detail:
            notes.append(f"metrics {measured.health.status}: {measured.health.detail}")
        if served_little := served_too_little(measured):
            notes.append(f"{served_little}: no pool shrinks")
        last = self._context.log.last
        # Old counts do not go with fresh traffic: a policy would see replicas that may be gone carry it.
        span = measured.start_s, measured.end_s
        shown = unmeasured(*span, HealthStatus.DOWN, counts_fault) if counts_fault else measured
        observation = replace(observe(shown, counts, interval_s), slow=self._state.policy.slow(counts))
        if held := self._state.held_now(now_s):
            observation = with_held(observation, held, policy.settings.limits)
            notes.append(f"{plural(held, 'request')} held for the first replica of a pool")
        self._state.measured = measured = judged(measured, observation, policy.settings.slo)
        return DecisionInputs(
            measured=measured,
            counts=counts,
            counted=not counts_fault,
            observation=observation,
            shown=observation,
            previous=last.targets if last else {role: pool.desired for role, pool in counts.items()},
            notes=notes,
        )

    async def _collect(self, interval_s: float) -> Measured:
        """What was measured since the end of the last record's interval, however long that is."""
        last, since_s, elapsed_s = self._context.log.last, None, interval_s
        now_s, limit_s = self._context.clock(), LONGEST * interval_s
        # A clock that was set is ahead of what is due, or behind the last record.
        if last is not None and last.due_at < min(self._time.due_s, now_s) and now_s - last.due_at <= limit_s:
            # By the source's own times, which may lag.
            since_s, elapsed_s = last.interval.end_s, self._time.due_s - last.due_at
        try:
            asked = self._context.actors.collect(interval_s, since_s, self._state.counts)
            return await self._deadline.within(OBSERVE_UNTIL, asked)
        except (ActorFailure, TimeoutError) as error:
            why = str(error) or "MetricCollector: no answer in time"
            start_s = self._time.due_s - interval_s if since_s is None else since_s
            return unmeasured(start_s, start_s + elapsed_s, HealthStatus.DOWN, why)

    async def _count(self) -> tuple[Mapping[Role, PoolCounts], str]:
        """The counts of the pools; and empty, or why they are those from before."""
        state = self._state
        try:
            state.counts = await self._deadline.within(OBSERVE_UNTIL, self._context.connector.state())
            state.connector_fault = ""
            state.seen_at["replicas"] = self._context.clock()
        except (ConnectorError, TimeoutError) as error:
            state.connector_fault = f"pools: {str(error) or 'no answer in time'}"
            state.connector_failures += 1
            if not state.counts:
                raise ActorFailure(state.connector_fault) from error
        return state.counts, state.connector_fault

    async def _with_forecast(self, inputs: DecisionInputs, interval_s: float) -> DecisionInputs:
        asked = self._context.actors.forecast(inputs.observation, self._time.tick, interval_s)
        try:
            forecast = await self._deadline.within(FORECAST_UNTIL, asked)
        except (ActorFailure, TimeoutError) as error:
            note = f"no forecast: {str(error) or 'Predictor: not in time'}"
            return replace(inputs, notes=[*inputs.notes, note])
        observation = with_forecast(inputs.observation, forecast)
        self._state.seen_at["forecast"] = self._context.clock()
        return replace(inputs, observation=observation, shown=observation)

    async def _advised(self, policy: PolicyInForce, inputs: DecisionInputs) -> DecisionInputs:
        """With the fleet that the plan would have by now, and what the interval was like for it."""
        advice, memory, config = self._context.advice, self._state.memory, self._context.settings.config
        profile = self._state.policy.profile
        if profile is None or policy.settings.engine is None:
            return inputs
        work = self._context.compute(
            lambda: advice.see(
                inputs.observation,
                inputs.measured,
                (policy.settings, profile, config),
                known=inputs.counted,
                memory=memory.advice,
            )
        )
        shown, point = await self._deadline.within(APPLY_FROM, work)
        return replace(inputs, shown=shown, advice=point)

    async def _decide(self, policy: PolicyInForce, inputs: DecisionInputs) -> Decision:
        """Plan, once more if settings have changed meanwhile; the result is within limits and budget."""
        decision = await self._compute(policy, inputs)
        latest = self._state.policy.current()
        if latest.version != policy.version:
            # Nothing has been stored yet, so the first plan never was.
            decision = await self._compute(latest, inputs)
        return decision

    async def _compute(self, policy: PolicyInForce, inputs: DecisionInputs) -> Decision:
        memory, planner = self._state.memory, policy.policy
        bounds, shown, part = policy.settings.bounds, inputs.shown, self._context.part

        def planned(seen: Observation, state: Any) -> Decision:  # noqa: ANN401
            if part.shares and isinstance(planner, HeadwayPolicy):
                return decide_granted(planner, seen, state, bounds, part)
            return decide(planner, seen, state, bounds)

        def learnt(seen: Observation, state: Any) -> Any:  # noqa: ANN401 - each policy's state is its own
            return decide(planner, seen, state, bounds).next_state

        def decided(from_state: Any) -> Decision:  # noqa: ANN401
            decision = planned(shown, from_state)
            # The fleet may grow, not shrink.
            if served_too_little(inputs.measured) and any(
                target < shown.pools[role].desired for role, target in decision.targets.items()
            ):
                return planned(without_load(shown), from_state)
            return decision

        try:
            work = self._context.compute(lambda: decided(memory.basis(planner, shown, learnt)))
            return await self._deadline.within(APPLY_FROM, work)
        except PolicyError as error:
            if not memory.restored:
                raise
            # Nobody has planned from it yet: what is stored may be anything.
            logger.warning("the stored state of the policy is dropped: %s", error)
            first = call(planner.name, planner.initial_state)
            return await self._deadline.within(APPLY_FROM, self._context.compute(lambda: decided(first)))

    async def _store(self, inputs: DecisionInputs, decision: Decision) -> DecisionRecord:
        context = self._context
        memory = self._state.memory.counting(inputs.measured)
        planned = None
        if inputs.shown is not inputs.observation:
            planned = context.advice.order(decision.targets, inputs.observation.now_s)
        planner = self._state.policy.current().policy
        memory = replace(memory.after(planner, inputs.shown, decision.next_state), advice=planned)
        record, data = self._record(inputs, decision), memory.dump()
        try:
            stored: DecisionRecord = await context.stored(lambda: context.log.append(record, data))
        except StoreAway as error:
            raise ActorFailure(str(error)) from error
        self._state.memory = memory
        return stored

    def _record(self, inputs: DecisionInputs, decision: Decision) -> DecisionRecord:
        """The record of a decision that is about to be applied."""
        measured, observation, config = inputs.measured, inputs.observation, self._context.settings.config
        dry_run, kind = config.planner.dry_run, config.connector.kind
        why = decision.reasons.get("summary") or describe(decision.targets, inputs.shown)
        document = {
            "tick": self._time.tick,
            "due_at": self._time.due_s,
            "created_at": self._context.clock(),
            "interval": {"start_s": measured.start_s, "end_s": measured.end_s},
            "measured": measured,
            "forecast": observation.forecast,
            "pools": inputs.counts,
            "previous_targets": inputs.previous,
            "targets": decision.targets,
            "reasons": {**decision.reasons, **self._custody()},
            "summary": why,
            "notes": inputs.notes,
            "connector": {"kind": kind, "status": DRY_RUN if dry_run else PLANNED, "detail": {}},
            "dry_run": dry_run,
            "replicas": [],
            "reached_at": None,
        }
        if inputs.advice is not None:
            document["advice"] = inputs.advice.document()
        record = DecisionRecord.model_validate(jsonable(document))
        return record.model_copy(
            update={"summary": summary_text(why, record.measured, config.slo.attainment)}
        )

    def _custody(self) -> dict[str, Any]:
        """Edits by others and other controllers, as reasons; empty where there are none."""
        connector = self._context.connector
        return connector.document() if isinstance(connector, DriftAwareConnector) else {}


async def apply(
    context: PlannerContext,
    record: DecisionRecord,
    targets: Mapping[Role, int],
    deadline: Deadline | None = None,
) -> DecisionRecord:
    """Hand targets to the connector and note in the record what it answered."""
    call = context.connector.set_targets(targets, {"decision": record.id, **record.reasons})
    status: str
    detail: Mapping[str, Any]
    try:
        action = await (deadline.within(1.0, call) if deadline else call)
        status, detail = action.status, action.detail
    except Refused as error:
        status, detail = REFUSED, {"error": str(error)}
    except (ConnectorError, TimeoutError) as error:
        status, detail = UNREACHABLE, {"error": str(error) or "no answer in time"}
    kind = context.settings.config.connector.kind
    answer = ConnectorAnswer(kind=kind, status=status, detail=detail, at=context.clock())
    try:
        noted: DecisionRecord | None = await context.stored(
            lambda: context.log.update(record.id, {"connector": answer})
        )
    except StoreAway as error:
        logger.warning("decision %d was carried out, which is not noted: %s", record.id, error)
        noted = None
    return noted or record


async def after(
    context: PlannerContext, state: PlannerState, outcome: TickOutcome, deadline: Deadline
) -> None:
    """What an applied tick leaves to do: advice on its interval, and the Interpolator's calibration.

    Each may fail without harm: it is logged, and the next tick goes on without.
    """
    steps: list[tuple[str, Callable[[], Awaitable[None]]]] = [
        ("advice is stored later", lambda: context.stored(context.advice.keep))
    ]
    seen, engines = outcome.inputs.observation, outcome.inputs.measured.engines
    if not in_doubt(seen.requests, seen.least_requests):
        steps.append(("calibration", lambda: context.actors.calibrate(seen, engines)))
    if not outcome.record.dry_run:
        compare = "no comparison with the fleet of before", lambda: _compared(context, state, outcome)
        steps.insert(0, compare)
    for what, step in steps:
        try:
            await deadline.within(1.0, step())
        except (ActorFailure, StoreAway, TimeoutError) as error:
            logger.warning("%s: %s", what, str(error) or "no answer in time")


async def _compared(context: PlannerContext, state: PlannerState, outcome: TickOutcome) -> None:
    """The interval as it would have been for the fleet that stood there before the planner acted."""
    inputs, policy = outcome.inputs, outcome.policy
    advice, config, profile = context.advice, context.settings.config, state.policy.profile
    against = advice.against(config, inputs.observation.pools, watched=outcome.taken_over)
    if against is not None and profile is not None and policy.settings.engine is not None:
        setting = policy.settings, profile, config
        await context.compute(
            lambda: advice.compare(inputs.observation, inputs.measured, setting, known=inputs.counted)
        )


def judged(measured: Measured, observation: Observation, slo: Slo) -> Measured:
    """With the share of the requests whose first token was in time, where the source judges no requests.

    Engines behind a Prometheus do not: their TTFT histogram tells it, their gaps belong to no request.
    """
    found = attained(observation.traffic, slo)
    if isfinite(measured.attainment) or not (found.ttft_only and found.ended):
        return measured
    return replace(measured, attainment=found.met / found.ended, judged=found.ended, ttft_only=True)


def served_too_little(measured: Measured) -> str:
    """Why what came does not say what is needed, empty if it does: who still waits asks nothing new."""
    if measured.unended:
        return f"none of {plural(round(measured.unended), 'request')} under way ended"
    if measured.repeats > measured.completed:
        came = plural(round(measured.repeats), "repeat")
        return f"{came} came, more than the {measured.completed:g} requests that ended well"
    return ""


def without_load(observation: Observation) -> Observation:
    """As if requests and load had not been measured."""
    pools = {
        role: replace(pool, running=NAN, waiting=NAN, kv_usage=NAN)
        for role, pool in observation.pools.items()
    }
    return replace(observation, requests=NAN, traffic=None, pools=pools)


def with_held(observation: Observation, held: int, limits: Mapping[Role, PoolLimits]) -> Observation:
    """With the requests that gateways hold as those that wait for pools which may be empty, and are."""
    empty = [role for role, pool in observation.pools.items() if not pool.ready]
    waiting = {
        role: replace(observation.pools[role], waiting=float(held))
        for role in empty
        if limits[role].min_replicas == 0
    }
    return replace(observation, pools={**observation.pools, **waiting})


def observe(measured: Measured, counts: Mapping[Role, PoolCounts], interval_s: float) -> Observation:
    """The observation that a policy plans from, without a forecast.

    Data that is not fit to plan on becomes NaN, for which every policy states what it does: it holds. Where
    single requests are not known they are made of what was counted. An interval that took no time, as nothing
    could be known of it yet, passes for one of `interval_s`.
    """
    if measured.health.status not in USABLE:
        measured = Measured(start_s=measured.start_s, end_s=measured.end_s, health=measured.health)
    return Observation(
        now_s=measured.end_s,
        interval_s=measured.end_s - measured.start_s or interval_s,
        requests=measured.requests,
        least_requests=measured.least_requests,
        repeats=measured.repeats,
        isl_tokens=measured.isl_tokens,
        osl_tokens=measured.osl_tokens,
        ttft_s=measured.ttft_s.mean,
        itl_s=measured.itl_s.mean,
        request_duration_s=measured.request_duration_s,
        pools={
            role: PoolState(**asdict(pool), **asdict(measured.load.get(role, PoolLoad())))
            for role, pool in counts.items()
        },
        traffic=measured.traffic or (made_of(measured.counted) if measured.counted else None),
    )
