"""The needs of all pools: the cheapest fleet that hindsight allows, and replicas for queues on top.

Of each pool only the options matter that lose less than every cheaper one. Over all pools

    minimise  Σ_r g_r cost_r   subject to   Σ_r lost_r ≤ budget · requests

g_r being GPUs per replica: the loss budget goes where it saves most GPUs. Where even the dearest options lose
more, those are taken. Options come sorted by cost, so for each option of the one pool that of the other is
found by bisection; with one pool there is nothing to share.

Options that the past cannot tell apart (one replica was always enough, whatever the factor) are not equal for
what comes: of these the forecast is taken at its word, the factor nearest to 1.

Forecasts speak of what will come; what waits now comes on top. The queue's work is its requests × their mean
seconds. What the ready replicas clear within half of the TTFT target (at most PATIENCE_S) is harmless; the
rest shall be gone DRAIN_S after the new replicas are there:

    extra = ⌈(waiting × seconds − ready × min(TTFT / 2, PATIENCE_S)) / DRAIN_S⌉

at most as many again as are needed anyway. Prompts that wait beyond what is harmless come to the decode pool
when they drain, so they count as waiting there, too. It only ever adds; nothing to a pool whose replicas do
not come (`capacity`), nor to decode where those of prefill do not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite, isnan

import numpy as np

from headway.planning.hindsight.backtest import FACTORS, Backtest
from headway.planning.hindsight.capacity import MissingCapacity
from headway.planning.hindsight.classes import allowed_losses, cheapest, critical_ones
from headway.planning.hindsight.excess import Excess
from headway.planning.hindsight.settings import class_budgets, loss_budget
from headway.planning.hindsight.slow_replicas import SlowReplicas
from headway.planning.hindsight.state import HindsightState
from headway.planning.policies import PolicySettings
from headway.planning.types import BoolArray, FloatArray, IntArray, Observation, PoolState, Role

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


CORRECTION = np.abs(np.log(FACTORS))
"""Distance of each factor from the forecast itself."""

EQUAL = np.zeros(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A forecast and a safety factor: replicas to order, and what the past would have lost and cost."""

    forecast: str
    factor: float
    replicas: int
    expected: float
    growth: float
    lost: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassOption(Option):
    """With the share that each class would have lost, requests without one first."""

    classes: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EfficientOptions:
    """Options of one pool that lose less than every cheaper one: cost and loss f8[K], positions i8[K]."""

    cost: FloatArray
    lost: FloatArray
    position: IntArray


def front(cost: FloatArray, lost: FloatArray, rank: FloatArray = EQUAL) -> EfficientOptions:
    """The efficient ones of f8[J, X] options, cheapest first; of equal ones the least `rank`, f8[X]."""
    ranks = np.broadcast_to(rank, cost.shape).ravel()
    cost, lost = cost.ravel(), lost.ravel()
    order = np.lexsort((ranks, lost, cost))
    least = np.minimum.accumulate(lost[order])
    better = np.append(True, least[1:] < least[:-1])
    kept = order[better]
    return EfficientOptions(cost[kept], lost[kept], kept)


def choose(
    backtests: Mapping[Role, Backtest], gpus: Mapping[Role, int], loss_budget: float
) -> Mapping[Role, Option]:
    """One option per pool; `gpus` of one replica, `loss_budget` as a share of the requests judged."""
    fronts = {role: front(each.cost * gpus[role], each.lost, CORRECTION) for role, each in backtests.items()}
    allowed = loss_budget * max((each.requests for each in backtests.values()), default=0.0)
    chosen = within_budget(list(fronts.values()), allowed)
    places = {role: fronts[role].position[at] for role, at in zip(fronts, chosen, strict=True)}
    return {role: _option(backtests[role], int(place)) for role, place in places.items()}


def choose_by_class(
    backtests: Mapping[Role, Backtest],
    classes: Mapping[Role, tuple[Backtest, ...]],
    gpus: Mapping[Role, int],
    may_miss: Sequence[float],
    critical: BoolArray,
) -> Mapping[Role, Option]:
    """The same where each class has its loss budget; see `classes`."""
    requests = np.max([[each.requests for each in of_pool] for of_pool in classes.values()], axis=0)
    orders, costs, losses = [], [], []
    for role, tested in backtests.items():
        cost, ranks = tested.cost * gpus[role], np.broadcast_to(CORRECTION, tested.cost.shape)
        order = np.lexsort((ranks.ravel(), tested.lost.ravel(), cost.ravel()))
        orders.append(order)
        costs.append(cost.ravel()[order])
        losses.append(np.array([each.lost.ravel()[order] for each in classes[role]]))
    allowed = allowed_losses(np.array(may_miss), requests)
    chosen = cheapest(costs, losses, allowed, critical)
    return {
        role: ClassOption(
            **asdict(_option(backtests[role], int(order[at]))),
            classes=tuple((lost[:, at] / np.maximum(requests, 1.0)).tolist()),
        )
        for role, order, lost, at in zip(backtests, orders, losses, chosen, strict=True)
    }


def within_budget(fronts: list[EfficientOptions], allowed: float) -> list[int]:
    """Positions in the fronts of least summed cost with summed loss within `allowed`."""
    dearest = [len(each.cost) - 1 for each in fronts]
    if len(fronts) == 1:
        within = np.nonzero(fronts[0].lost <= allowed)[0]
        return [int(within[0])] if len(within) else dearest
    one, other = fronts
    partner = np.searchsorted(-other.lost, -(allowed - one.lost), side="left")
    possible = partner < len(other.cost)
    if not possible.any():
        return dearest
    cost = np.where(possible, one.cost + other.cost[np.minimum(partner, dearest[1])], np.inf)
    first = int(np.argmin(cost))
    return [first, int(partner[first])]


def _option(tested: Backtest, place: int) -> Option:
    row, column = divmod(place, len(FACTORS))
    return Option(
        forecast=tested.names[row],
        factor=float(tested.factors[column]),
        replicas=int(tested.replicas[row, column]),
        expected=float(tested.expected[row]),
        growth=float(tested.growth[row]),
        lost=float(tested.lost[row, column]),
        cost=float(tested.cost[row, column]),
    )


PATIENCE_S, DRAIN_S = 5.0, 60.0


def replicas_for_queue(pool: PoolState, seconds_each: float, ttft_s: float, needed: int) -> int:
    """Replicas to add; 0 where the queue is not measured."""
    if not (isfinite(pool.waiting) and isfinite(seconds_each)):
        return 0
    harmless_s = max(1, pool.ready) * min(ttft_s / 2.0, PATIENCE_S)
    excess_s = pool.waiting * seconds_each - harmless_s
    return min(needed, ceil(excess_s / DRAIN_S)) if excess_s > 0.0 else 0


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
    until a replica ordered now serves, `typical` what half of the intervals needed, `surprising` the share of
    the requests that came in jumps without precedent, `infeasible` that of the last requests that no fleet
    serves in time.
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
    surprising: float
    lead_s: float
    learning: bool
    infeasible: float


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
    pool, memory = assessed.observation.pools[role], assessed.state.pool(role)
    held = memory.release.target if memory.release else pool.desired
    replicas, enough = (option.replicas, option.replicas) if option else (held, held)
    if strict:
        enough = max(enough, strict.replicas)
    if settings.limits[role].min_replicas == 0:
        replicas, enough = _or_none(pool, replicas, enough, idle=assessed.idle and option is not None)
    extra = 0
    lacking = assessed.slow[role].lacking if option and role in assessed.slow else 0
    if option and role not in assessed.missing:
        queue = replace(pool, waiting=pool.waiting + _coming(role, assessed, settings))
        extra = replicas_for_queue(queue, memory.seconds_each, settings.tightest_ttft_s, replicas)
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
        surprising=tested.surprising / max(tested.requests, 1.0) if tested else 0.0,
        lead_s=assessed.leads_s[role],
        learning=learning,
        infeasible=memory.infeasible,
    )


def _coming(role: Role, assessed: Assessment, settings: PolicySettings) -> float:
    """Requests that come to the decode pool when the queue of prompts drains; 0 for other pools."""
    prompts = assessed.observation.pools.get(Role.PREFILL)
    if role is not Role.DECODE or prompts is None or Role.PREFILL in assessed.missing:
        return 0.0
    seconds_each = assessed.state.pool(Role.PREFILL).seconds_each
    return overdue_prompts(prompts, seconds_each, settings.tightest_ttft_s)


def _or_none(pool: PoolState, replicas: int, enough: int, *, idle: bool) -> tuple[int, int]:
    """The same for a pool that may have no replica: none when idle, one at least where a request is."""
    if pool.running > 0 or pool.waiting > 0:
        return max(1, replicas), max(1, enough)
    return (0, 0) if idle else (replicas, enough)
