"""One interval of advice: both fleets go on through what came, and the plan is shown its own fleet.

    see      the real observation → what the plan shall decide from, and a row for the ledger
    order    the plan's targets → its fleet

What the plan is shown of its fleet (counts, queues, latencies) is what the replay says of it; arrivals,
lengths and how the real requests fared are measured, the latter beside the real counts (`Observation.stood`).

Missing data: traffic that is not known is replayed as none, and both fleets cost what they cost. An interval
without real counts leaves no row; the planned fleet goes on. A gap between intervals passes without arrivals.
A clock that was set back begins the replays anew. Where the output of no request is known yet, nothing is
replayed. After a restart replays begin with nothing under way; the planned fleet is the one before.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from headway.planning.advice.ledger import CALM, Row
from headway.planning.advice.replay import (
    NOTHING,
    FleetReplay,
    PlannedFleet,
    PlannedPool,
    SeenStarts,
    Served,
    StartUp,
)
from headway.planning.hindsight.history import UNKNOWN, Attained
from headway.planning.hindsight.learning import computing, imputed, synthetic_traffic
from headway.planning.hindsight.state import OutputSample
from headway.planning.replay.engine import ReplayEngine, Requests, attainable
from headway.planning.types import NAN, Observation, PoolLimits, PoolState, Role

SETTLED = 4
"""Intervals of calm before one counts as calm: a queue of before may still be there."""

Look = tuple[float, Mapping[Role, PoolState]]
"""The real pools at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of one interval beside the observation.

    `looks` at the real pools in it, in order of time; without any, a change is taken to come halfway. `known`
    is False where the counts are old ones.
    """

    attained: Attained = UNKNOWN
    looks: Sequence[Look] = ()
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisorMemory:
    """What a restart needs: the plan's fleet, and starts that were seen of the real one."""

    planned: PlannedFleet
    seen: Mapping[Role, SeenStarts]


class Advisor:
    """The two fleets of one planner; `memory` is that of an advisor before, which saw all until `after_s`."""

    def __init__(
        self,
        limits: Mapping[Role, PoolLimits],
        start_up: StartUp,
        memory: AdvisorMemory | None = None,
        *,
        after_s: float = 0.0,
    ) -> None:
        self.use(limits)
        self._after_s = after_s
        self.start_up = start_up if memory is None else replace(start_up, seen=memory.seen)
        self.planned: PlannedFleet = {} if memory is None else memory.planned
        self._outputs = OutputSample()
        self._stood: FleetReplay | None = None
        self._replayed: FleetReplay | None = None
        self._last: Mapping[Role, PoolState] = {}
        self._calm = 0

    @property
    def memory(self) -> AdvisorMemory:
        """What an advisor after a restart goes on from."""
        return AdvisorMemory(planned=self.planned, seen=self.start_up.seen)

    def use(self, limits: Mapping[Role, PoolLimits]) -> None:
        """Go on with pools of these limits."""
        self._gpus = {role: each.gpus_per_replica for role, each in limits.items()}

    def see(
        self, observation: Observation, engine: ReplayEngine, seen: Seen
    ) -> tuple[Observation, Row | None]:
        """Go on to the observation's time: what to plan from, and the row of the interval."""
        now_s, begins_s = observation.now_s, observation.now_s - observation.interval_s
        # A clock that was set back since has no part in it.
        if begins_s < self._after_s <= now_s:
            begins_s = self._after_s
        pools = {role: observation.pools[role] for role in self._gpus}
        stood, replayed = self._fleets(pools, engine, begins_s, now_s)
        begins_s = max(begins_s, stood.now_s)
        # What happened between intervals was not seen by anyone.
        stood.run(NOTHING, begins_s)
        replayed.run(NOTHING, begins_s, self._matured(stood.now_s, begins_s))
        looks = self._looks(pools, begins_s, now_s, seen)
        self.start_up = self.start_up.see(looks)
        before = self.planned
        arrived = self._arrived(observation, begins_s)
        ready = [(at_s, {role: each.ready for role, each in there.items()}) for at_s, there in looks]
        real = stood.run(arrived, now_s, ready)
        ours = replayed.run(arrived, now_s, self._matured(begins_s, now_s))
        self.planned = {role: pool.at(now_s) for role, pool in before.items()}
        row = None
        if seen.known and now_s > begins_s:
            kept_share = _kept_share(engine, arrived, mixed=Role.MIXED in self._gpus)
            lived = _Lived(
                span=(begins_s, now_s), looks=[(begins_s, self._last), *looks], before=before,
                real=real, ours=ours, kept_share=kept_share,
            )  # fmt: skip
            self._calm = self._calm + 1 if lived.calm(seen.attained) else 0
            row = self._row(lived, observation, seen.attained)
        else:
            self._calm = 0
        self._last = pools
        return self._shown(observation, ours, replayed), row

    def order(self, targets: Mapping[Role, int], now_s: float) -> None:
        """Set the plan's targets."""
        self.planned = {
            role: pool.order(int(targets[role]), now_s, self.start_up.of(role))
            for role, pool in self.planned.items()
        }
        if self._replayed is not None:
            self._replayed.run(NOTHING, self._replayed.now_s, [(now_s, _ready(self.planned))])

    def _fleets(
        self, pools: Mapping[Role, PoolState], engine: ReplayEngine, begins_s: float, now_s: float
    ) -> tuple[FleetReplay, FleetReplay]:
        if not self.planned or set(self.planned) != set(self._gpus):
            self.planned = {
                role: PlannedPool.like(pool, begins_s, self.start_up.of(role)) for role, pool in pools.items()
            }
        if self._stood is None or self._replayed is None or now_s < self._stood.now_s:
            there = self._last or pools
            self._stood = FleetReplay(engine, {role: there[role].ready for role in self._gpus}, begins_s)
            self.planned = {role: pool.at(begins_s) for role, pool in self.planned.items()}
            self._replayed = FleetReplay(engine, _ready(self.planned), begins_s)
            self._last = there
        self._stood.use(engine)
        self._replayed.use(engine)
        return self._stood, self._replayed

    def _matured(self, since_s: float, until_s: float) -> list[tuple[float, Mapping[Role, int]]]:
        """Counts of the planned fleet as its starts come."""
        times = {at_s for pool in self.planned.values() for at_s in pool.coming_s if at_s <= until_s}
        return [
            (max(at_s, since_s), _ready({role: pool.at(at_s) for role, pool in self.planned.items()}))
            for at_s in sorted(times)
        ]

    def _looks(
        self, pools: Mapping[Role, PoolState], begins_s: float, now_s: float, seen: Seen
    ) -> Sequence[Look]:
        within = [
            (max(at_s, begins_s), {role: there[role] for role in self._gpus})
            for at_s, there in seen.looks
            if at_s <= now_s and all(role in there for role in self._gpus)
        ]
        return [*within, (now_s, pools)] if within else [((begins_s + now_s) / 2.0, pools)]

    def _arrived(self, observation: Observation, begins_s: float) -> Requests:
        traffic = observation.traffic or synthetic_traffic(observation)
        if traffic is None:
            return NOTHING
        completed = traffic.completed_input_tokens, traffic.completed_output_tokens
        self._outputs = self._outputs.add(*completed, traffic.completed_cached_tokens)
        if not self._outputs.known:
            return NOTHING
        arrived, self._outputs = imputed(traffic, self._outputs, computing(observation))
        own = (arrived.arrival_s > begins_s) & (arrived.arrival_s <= observation.now_s)
        return arrived.where(own)

    def _row(self, lived: "_Lived", observation: Observation, known: Attained) -> Row:
        (begins_s, now_s), real, ours, gpus = lived.span, lived.real, lived.ours, self._gpus
        up_s, ready_s = lived.replica_s(_up), lived.replica_s(_ready_ones)
        starting_s = {
            role: sum(min(at_s, now_s) - begins_s for at_s in pool.coming_s if at_s > begins_s)
            for role, pool in lived.before.items()
        }
        planned_s = {
            role: (pool.ready + len(pool.coming_s)) * (now_s - begins_s)
            for role, pool in lived.before.items()
        }
        met, calm = lived.met(known), self._calm > SETTLED
        return Row(
            start_s=begins_s,
            end_s=now_s,
            seconds=now_s - begins_s,
            requests=observation.requests if isfinite(observation.requests) else 0.0,
            stood_gpu_s=sum(up_s[role] * gpus[role] for role in gpus),
            planned_gpu_s=sum((planned_s[role] + ours.drained_s[role]) * gpus[role] for role in gpus),
            starting_gpu_s=sum(starting_s[role] * gpus[role] for role in gpus),
            measured=known.ended,
            measured_met=known.met,
            stood=real.ended,
            stood_met=real.met,
            planned=ours.ended,
            planned_met=ours.met,
            calm_measured=known.ended * calm,
            calm_measured_met=known.met * calm,
            calm_replayed=real.ended * calm,
            calm_replayed_met=met * calm,
            stood_replica_s=ready_s,
            planned_replica_s={role: planned_s[role] - starting_s[role] for role in gpus},
        )

    def _shown(self, observation: Observation, ours: Served, replayed: FleetReplay) -> Observation:
        desired = {role: pool.desired for role, pool in self.planned.items()}
        starting = {role: len(pool.coming_s) for role, pool in self.planned.items()}
        return replace(
            observation,
            pools=replayed.pools(desired, starting),
            stood=observation.pools,
            ttft_s=ours.ttft_s if isfinite(observation.ttft_s) else NAN,
            itl_s=ours.itl_s if isfinite(observation.itl_s) else NAN,
            request_duration_s=ours.duration_s if isfinite(observation.request_duration_s) else NAN,
        )


def _ready(planned: PlannedFleet) -> Mapping[Role, int]:
    return {role: pool.ready for role, pool in planned.items()}


def _up(pool: PoolState) -> int:
    return pool.starting + pool.ready + pool.draining


def _ready_ones(pool: PoolState) -> int:
    return pool.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lived:
    """An interval as both fleets lived it: `looks` at the real one from its begin, the plan's `before`."""

    span: tuple[float, float]
    looks: Sequence[Look]
    before: PlannedFleet
    real: Served
    ours: Served
    kept_share: float

    def met(self, known: Attained) -> float:
        """Requests that the replay of the real fleet kept, by what was measured of the real ones."""
        return self.real.met_ttft if known.ttft_only else self.real.met

    def calm(self, known: Attained) -> bool:
        """True where the real fleet stayed as it was and by replay had no queue that counts."""
        ready = [{role: pool.ready for role, pool in pools.items()} for _, pools in self.looks]
        kept = self.met(known) >= CALM * self.kept_share * self.real.ended
        return kept and all(each == ready[0] for each in ready)

    def replica_s(self, count: Callable[[PoolState], int]) -> Mapping[Role, float]:
        """Replica-seconds by role of a count of the real fleet, which holds from each look to the next."""
        seconds = np.diff([*(at_s for at_s, _ in self.looks), self.span[1]]).tolist()
        return {
            role: float(
                sum(count(pools[role]) * each for (_, pools), each in zip(self.looks, seconds, strict=True))
            )
            for role in self.before
        }


def _kept_share(engine: ReplayEngine, arrived: Requests, *, mixed: bool) -> float:
    """The share of requests that an idle engine serves in time."""
    if len(arrived.arrival_s) == 0:
        return 1.0
    return float(np.mean(attainable(engine, arrived, mixed=mixed)))
