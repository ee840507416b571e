"""The needs of all pools: what hindsight chooses (`choice`), and on top what queues and slow replicas need.

Forecasts speak of what will come; what waits now comes on top. The queue's work is its requests × their mean
seconds. What the ready replicas clear within half of the TTFT target (at most PATIENCE_S) is harmless; the
rest shall be gone DRAIN_S after the new replicas are there:

    extra = ⌈(waiting × seconds − ready × min(TTFT / 2, PATIENCE_S)) / DRAIN_S⌉

at most as many again as are needed anyway, but for an empty pool that may be so (`min_replicas` 0): it gets
what its queue needs. Prompts that wait beyond what is harmless come to the decode pool
when they drain, so they count as waiting there, too. It only ever adds; nothing to a pool whose replicas do
not come (`starts`), nor to decode where those of prefill do not.

Slow replicas. Replays know one kind of replica. One that takes s times as long as the others
(`headway.engine.replica_speeds`) is worth part of one, as requests are placed where they are served first:

    decode, mixed   requests/s of the largest batch that keeps the ITL target, over the others' (`BatchLine`)
    prefill         1 / s; 0 where a mean prompt alone takes longer than the TTFT target

    lacking = ⌈Σ (1 − worth)⌉

is added to what the pool needs and to what it may be released to, and the fleet that stood there counts as so
many replicas fewer when losses are held against it (`excess`). Fast replicas count as one each. Where lengths
are not known 1 / s stands in.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite, isnan

import numpy as np

from headway.engine.replica_speeds import Lengths, batch_line
from headway.planning.hindsight.backtest import FORECASTS, PEAK, Backtest
from headway.planning.hindsight.causes import rhythm
from headway.planning.hindsight.choice import (
    Option,
    choose,
    choose_by_class,
    class_budgets,
    critical_ones,
    loss_budget,
)
from headway.planning.hindsight.excess import Excess
from headway.planning.hindsight.learning import MOST_INTERVALS
from headway.planning.hindsight.settings import HeadwaySettings
from headway.planning.hindsight.starts import MissingCapacity, lead_intervals
from headway.planning.hindsight.state import HindsightState
from headway.planning.policies import PolicySettings
from headway.planning.replay import ReplayEngine
from headway.planning.types import Observation, PoolState, Role
from headway.words import duration

ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReplicas:
    """The slow ones of the `ready` replicas of a pool: how many times as long each takes, and its worth.

    `lacking` replicas more are held for them.
    """

    ready: int
    slowness: tuple[float, ...]
    worth: tuple[float, ...]
    lacking: int


def slow_replicas(observation: Observation, engine: ReplayEngine) -> Mapping[Role, SlowReplicas]:
    """Of each pool that has some."""
    found: dict[Role, SlowReplicas] = {}
    for role, known in observation.slow.items():
        if role not in observation.pools:
            continue
        slowness = tuple(sorted(each for each in known if each > 1.0))
        worth = tuple(_worth(role, each, observation, engine) for each in slowness)
        if slowness:
            found[role] = SlowReplicas(
                ready=observation.pools[role].ready,
                slowness=slowness,
                worth=worth,
                lacking=ceil(sum(1.0 - each for each in worth) - ROUNDING),
            )
    return found


def _worth(role: Role, slowness: float, observation: Observation, engine: ReplayEngine) -> float:
    lengths = Lengths(observation.isl_tokens, observation.osl_tokens)
    if any(map(isnan, lengths)):
        return 1.0 / slowness
    if role is Role.PREFILL:
        prompt_s = float(engine.profile.prefill.ttft_s(max(1.0, lengths.isl_tokens)))
        return 1.0 / slowness if slowness * prompt_s <= engine.slo.ttft_s else 0.0
    line = batch_line(engine.profile, role, lengths, float(engine.max_batch_size))
    return line.worth(slowness, engine.slo.itl_s)


def as_typical(pools: Mapping[Role, PoolState], slow: Mapping[Role, SlowReplicas]) -> dict[Role, PoolState]:
    """The pools with as many ready replicas as theirs are worth."""
    return {
        role: replace(pool, ready=max(1, pool.ready - slow[role].lacking)) if role in slow else pool
        for role, pool in pools.items()
    }


def slow_lines(slow: Mapping[Role, SlowReplicas]) -> Iterator[str]:
    """A sentence per pool, as operators read it."""
    for role, each in slow.items():
        count, least, most = len(each.slowness), each.slowness[0], each.slowness[-1]
        takes, serves = ("takes", "serves") if count == 1 else ("take", "serve")
        times = f"{least:.1f}" if f"{least:.1f}" == f"{most:.1f}" else f"{least:.1f} to {most:.1f}"
        worth = sum(each.worth) / count
        more = "1 more is" if each.lacking == 1 else f"{each.lacking} more are"
        yield (
            f"{role}: {count} of {each.ready} replicas {takes} {times} times as long as the others and "
            f"{serves} {100.0 * worth:.0f} % of what one of them does; {more} held for it"
        )


LATELY = 10
"""Intervals over which the rate of requests is averaged."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Assessment:
    """The basis of a decision, before any limit: an observation and what the past says after it.

    `state` has learnt from the observation; `backtests` are of the pools that have a past, and `classes` of
    each class there, `missing` of those that lack replicas, `excess` of those that lose more than replays
    explain, `slow` of those with slow replicas.
    """

    observation: Observation
    state: HindsightState
    backtests: Mapping[Role, Backtest]
    classes: Mapping[Role, tuple[Backtest, ...]]
    leads_s: Mapping[Role, float]
    missing: Mapping[Role, MissingCapacity]
    excess: Mapping[Role, Excess]
    slow: Mapping[Role, SlowReplicas] = field(default_factory=dict)

    def held(self, role: Role) -> int:
        """Replicas of a pool that are there, or may be in time."""
        lacking = self.missing.get(role)
        overdue = 0 if lacking is None else lacking.replicas - lacking.revoked
        return max(0, self.observation.pools[role].desired - overdue)

    @property
    def lead_s(self) -> float:
        """The longest lead."""
        return max(self.leads_s.values())

    @property
    def idle(self) -> bool:
        """True when no request came for the longest run-up."""
        return len(self.state.recent.arrival_s) == 0

    @property
    def rate_rps(self) -> float:
        """Requests/s of late; 1 where none were ever measured, so that an unknown load counts."""
        intervals = [pool.history.requests[-LATELY:] for pool in self.state.pools.values()]
        known = [float(requests.mean()) for requests in intervals if len(requests)]
        requests = max(known, default=self.observation.requests)
        return 1.0 if isnan(requests) else requests / self.observation.interval_s

    @property
    def waiting(self) -> float:
        """Requests that wait for the first replica of a pool."""
        pools = self.observation.pools.values()
        return max((pool.waiting for pool in pools if not pool.ready and pool.waiting > 0), default=0.0)

    def foreseen(self, role: Role, settings: PolicySettings) -> str:
        """The predictor for which an idle pool has a replica: it sees requests come by the time that one
        ordered now serves, or before that one would go again. Engines that sleep wake soon enough without.
        """
        if settings.limits[role].sleepers:
            return ""
        lead = lead_intervals(self.leads_s[role], settings.interval_s)
        within = ceil(settings.section("headway", HeadwaySettings).hold_s / settings.interval_s)
        return self.state.predicted.foreseen(self.state.pool(role).history.requests, lead, within)

    @property
    def quiet(self) -> bool:
        """True where nothing runs or waits, and less than a request is to be expected within a lead: no more
        at a time than since the last one.
        """
        seen, came_s = self.observation, self.state.recent.arrival_s
        load = sum(pool.running + pool.waiting for pool in seen.pools.values() if pool.ready)
        if load != 0.0 or self.waiting or isnan(seen.requests) or seen.repeats > 0:
            return False
        silent_s = seen.now_s - float(came_s[-1]) if len(came_s) else inf
        return self.lead_s * self.rate_rps < 1.0 or self.lead_s < silent_s


PATIENCE_S, DRAIN_S = 5.0, 60.0


def replicas_for_queue(pool: PoolState, seconds_each: float, ttft_s: float, most: int) -> int:
    """Replicas to add, at most so many; 0 where the queue is not measured."""
    if not (isfinite(pool.waiting) and isfinite(seconds_each)):
        return 0
    harmless_s = max(1, pool.ready) * min(ttft_s / 2.0, PATIENCE_S)
    excess_s = pool.waiting * seconds_each - harmless_s
    return min(most, ceil(excess_s / DRAIN_S)) if excess_s > 0.0 else 0


def overdue_prompts(pool: PoolState, seconds_each: float, ttft_s: float) -> float:
    """Prompts that wait beyond what is harmless; 0 where the queue is not measured."""
    if not (isfinite(pool.waiting) and seconds_each > 0.0):
        return 0.0
    return max(0.0, pool.waiting - max(1, pool.ready) * min(ttft_s / 2.0, PATIENCE_S) / seconds_each)


LEARNING = 4
"""Intervals in which targets do not fall."""

STRICTER = 0.6
"""Share of the loss budget that a smaller fleet must keep within to be released to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The need of one pool: `replicas`, of these `extra` for its queue; it may be released to `enough`.
    What slow replicas lack is in both.

    `option` is None where nothing is known yet. `requests` and `intervals` are what hindsight rests on, of
    which `recalled` intervals are of a warm-up trace, `growth` what it assumed on top, `lead_s` the time
    until a replica ordered now serves, `typical` what half of the intervals needed, `rhythm` how far apart
    bursts begin, in words, `surprising` the share of the requests that came in jumps without precedent,
    `infeasible` that of the last requests that no fleet serves in time. `foreseen` is the predictor for which
    an idle pool that may be empty has a replica.
    """

    replicas: int
    enough: int
    extra: int
    option: Option | None
    requests: float
    growth: float
    intervals: int
    recalled: int
    typical: float
    rhythm: str
    surprising: float
    lead_s: float
    learning: bool
    infeasible: float
    foreseen: str = ""


def needs_of(assessed: Assessment, settings: PolicySettings) -> Mapping[Role, Need]:
    """The need of each pool."""
    options = _choose(assessed, settings, 1.0)
    strict = _choose(assessed, settings, STRICTER)
    return {
        role: _need(role, assessed, settings, options.get(role), strict.get(role))
        for role in assessed.state.pools
    }


def _choose(assessed: Assessment, settings: PolicySettings, part: float) -> Mapping[Role, Option]:
    """The choice within that part of the loss budgets."""
    tested = assessed.backtests
    each = {role: settings.limits[role].gpus_per_replica for role in tested}
    if not tested:
        return {}
    if not settings.classes:
        return choose(tested, each, part * loss_budget(settings))
    budgets = [part * budget for budget in class_budgets(settings)]
    return choose_by_class(tested, assessed.classes, each, budgets, critical_ones(settings))


def _need(
    role: Role, assessed: Assessment, settings: PolicySettings, option: Option | None, strict: Option | None
) -> Need:
    pool, memory, limits = assessed.observation.pools[role], assessed.state.pool(role), settings.limits[role]
    held = memory.release.target if memory.release else pool.desired
    replicas, enough = (option.replicas, option.replicas) if option else (held, held)
    foreseen = ""
    if strict:
        enough = max(enough, strict.replicas)
    if limits.min_replicas == 0:
        # What comes again wants to be served, even if it has waited for longer than the run-up.
        if pool.running > 0 or pool.waiting > 0 or assessed.observation.repeats > 0:
            replicas, enough = max(1, replicas), max(1, enough)
        elif option is not None and (assessed.idle or (limits.sleepers and not memory.history.requests[-1])):
            foreseen = assessed.foreseen(role, settings)
            if not foreseen:
                replicas, enough = 0, 0
    extra = 0
    lacking = assessed.slow[role].lacking if option and role in assessed.slow else 0
    if option and role not in assessed.missing:
        queue = replace(pool, waiting=pool.waiting + _coming(role, assessed, settings))
        most = limits.max_replicas if limits.min_replicas == 0 == pool.ready else replicas
        extra = replicas_for_queue(queue, memory.seconds_each, settings.tightest_ttft_s, most)
    learning = len(memory.history) <= LEARNING
    tested = assessed.backtests.get(role)
    return Need(
        replicas=replicas + lacking + extra,
        enough=max(enough + lacking + extra, held if learning else 0),
        extra=extra,
        option=option,
        requests=tested.requests if tested else 0.0,
        growth=option.growth if option else 0.0,
        intervals=len(memory.history),
        recalled=min(assessed.state.recalled, len(memory.history)),
        typical=tested.typical if tested else 0.0,
        rhythm=rhythm(memory.history.work, settings.interval_s),
        surprising=tested.surprising / max(tested.requests, 1.0) if tested else 0.0,
        lead_s=assessed.leads_s[role],
        learning=learning,
        infeasible=memory.infeasible,
        foreseen=foreseen,
    )


def held_peaks(
    assessed: Assessment, needs: Mapping[Role, Need], settings: PolicySettings
) -> Mapping[Role, str]:
    """How long ago the peak was that a pool is sized for, in words, and when that ends.

    Of each pool whose replicas are for a peak that was longer ago than a raise is held for anyway.
    """
    found: dict[Role, str] = {}
    for role in assessed.backtests:
        option, work = needs[role].option, assessed.state.pool(role).history.work
        age = int(np.argmax(work[::-1]))
        age_s, left_s = age * settings.interval_s, (MOST_INTERVALS - age) * settings.interval_s
        of_peak = option is not None and option.forecast == FORECASTS[PEAK] and option.replicas > 1
        if of_peak and age_s > settings.section("headway", HeadwaySettings).hold_s:
            ends = f"until calmer traffic outweighs it, or {duration(left_s)} have passed"
            found[role] = f" for the peak {duration(age_s)} ago ({ends})"
    return found


def _coming(role: Role, assessed: Assessment, settings: PolicySettings) -> float:
    """Requests that come to the decode pool when the queue of prompts drains; 0 for other pools."""
    prompts = assessed.observation.pools.get(Role.PREFILL)
    if role is not Role.DECODE or prompts is None or Role.PREFILL in assessed.missing:
        return 0.0
    seconds_each = assessed.state.pool(Role.PREFILL).seconds_each
    return overdue_prompts(prompts, seconds_each, settings.tightest_ttft_s)
