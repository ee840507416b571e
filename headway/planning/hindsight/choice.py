"""The choice of a forecast and a safety factor for each pool: the cheapest within the loss budgets; and the
share of each pool where the GPU budget binds.

Of each pool only the options matter that lose less than every cheaper one. Over all pools

    minimise  Σ_r g_r cost_r   subject to   Σ_r lost_r ≤ budget · requests

g_r being GPUs per replica: the loss budget goes where it saves most GPUs. Where even the dearest options lose
more, those are taken. Options come sorted by cost, so for each option of the one pool that of the other is
found by bisection; with one pool there is nothing to share.

Options that the past cannot tell apart (one replica was always enough, whatever the factor) are not equal for
what comes: of these the forecast is taken at its word, the factor nearest to 1.

Classes. A class of requests has its own SLO, by which replays judge its requests (`headway.planning.replay`),
and its own share of them that may miss it. So each pool has the loss curve of each class beside that of all
requests, and the fleet is the cheapest for which every class c keeps within its budget:

    minimise  Σ_r g_r cost_r   subject to   Σ_r lost_rc ≤ allowed_c   for all c
    allowed_c = max(may_miss_c · requests_c, 1)

A class of so few requests that its budget is not a whole one may lose one: less says nothing. Where no fleet
keeps all budgets, that is taken which exceeds those of critical classes least, and among these all budgets
least. A GPU budget that binds is divided likewise: what a division loses of critical classes above their
budgets outweighs everything else.

A GPU budget that binds. Every way to divide the budget between the pools is judged by the past. With n_r
replicas of pool r an interval i would have lost the share l_ri(n_r) of its R_i requests there, and since a
request needs all pools,

    lost(n) = Σ_i w_i R_i (1 − Π_r (1 − l_ri(n_r)))          w_i = 2^(−age / lead)

So a pool is not given what another one would lose anyhow. No forecast takes part: in an overload forecasts of
which pool will need more change from one interval to the next, and a GPU that changes hands serves nobody for
a lead. For the same reason what is held stays until another division would have lost less than

    (1 − φ) · lost(held)          φ = lead / (lead + hold)

the lead being lost of the time for which it then stays at least. GPUs that nobody holds are free to go
anywhere. The past counts by half every lead, so that a mix of requests that is gone does not rule; where
nothing is lost, nothing moves, so that what a burst taught is kept to the next. And where all that is needed
now fits, it is had: only what is held beyond it is divided.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from headway.planning.deciding import gpus
from headway.planning.hindsight.backtest import FACTORS, Backtest
from headway.planning.hindsight.history import PoolHistory, common_intervals
from headway.planning.hindsight.settings import HeadwaySettings
from headway.planning.policies import PolicySettings
from headway.planning.types import BoolArray, FloatArray, IntArray, PoolLimits, Role

CORRECTION = np.abs(np.log(FACTORS))
"""Distance of each factor from the forecast itself."""

EQUAL = np.zeros(1)


def loss_budget(settings: PolicySettings) -> float:
    """Share of the requests that may miss the SLO."""
    chosen = settings.section("headway", HeadwaySettings).loss_budget
    return 1.0 - settings.attainment if chosen is None else chosen


def class_budgets(settings: PolicySettings) -> tuple[float, ...]:
    """The same of requests without a class, and of each class; empty where there are no classes."""
    if not settings.classes:
        return ()
    otherwise = loss_budget(settings)
    own = (each.attainment for each in settings.classes)
    return (otherwise, *(otherwise if attainment is None else 1.0 - attainment for attainment in own))


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


ONE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPast:
    """The past of one class in every pool, and its promise: the share that may miss, and if it goes first."""

    histories: Mapping[Role, PoolHistory]
    may_miss: float
    critical: bool


def class_pasts(
    pasts: Mapping[Role, Sequence[PoolHistory]], settings: PolicySettings
) -> tuple[ClassPast, ...]:
    """One for requests without a class, then each class; none where there are no classes."""
    critical = critical_ones(settings)
    return tuple(
        ClassPast(
            histories={role: each[place] for role, each in pasts.items()},
            may_miss=may_miss,
            critical=bool(critical[place]),
        )
        for place, may_miss in enumerate(class_budgets(settings))
    )


def critical_ones(settings: PolicySettings) -> BoolArray:
    """Which are critical of requests without a class, which are not, and the classes: bool[K]."""
    return np.array([False, *(each.critical for each in settings.classes)])


def allowed_losses(may_miss: FloatArray, requests: FloatArray) -> FloatArray:
    """Requests that each class may lose, f8[K]."""
    allowed: FloatArray = np.maximum(may_miss * requests, ONE)
    return allowed


def cheapest(
    costs: Sequence[FloatArray],
    losses: Sequence[FloatArray],
    allowed: FloatArray,
    critical: BoolArray,
) -> tuple[int, ...]:
    """The option of each pool, one or two, by cost f8[M] and losses f8[K, M], in the order of preference."""
    own_cost, own = costs[0], losses[0]
    other_cost, other = (costs[1], losses[1]) if len(costs) > 1 else (np.zeros(1), np.zeros((len(own), 1)))
    cost = own_cost[:, None] + other_cost
    excess = np.maximum(0.0, own[:, :, None] + other[:, None, :] - allowed[:, None, None])
    within = ~(excess > 0.0).any(axis=0)
    if within.any():
        best = int(np.argmin(np.where(within, cost, np.inf)))
    else:
        order = (cost.ravel(), excess.sum(axis=0).ravel(), excess[critical].sum(axis=0).ravel())
        best = int(np.lexsort(order)[0])
    return tuple(int(place) for place in np.unravel_index(best, cost.shape))[: len(costs)]


Division = tuple[int, ...]
"""Replicas of each pool, in the order of the limits."""


def moving_share(lead_s: float, hold_s: float) -> float:
    """The φ of the theory."""
    return lead_s / max(lead_s + hold_s, 1e-9)


def divide_budget(
    histories: Mapping[Role, PoolHistory],
    *,
    wished: Mapping[Role, int],
    needed: Mapping[Role, int],
    held: Mapping[Role, int],
    limits: Mapping[Role, PoolLimits],
    budget: int,
    moving: float,
    half_life: float,
    classes: Sequence[ClassPast] = (),
) -> Mapping[Role, int] | None:
    """Counts of at most `wished` within `budget` GPUs; None where a pool has no past.

    They are at least `needed` where that fits, and the minimums. `half_life` in intervals, `moving` is φ.
    What `classes` that are critical lose above their budgets outweighs everything else.
    """
    pools = list(wished)
    count = common_intervals(histories[role] for role in pools)
    if count == 0:
        return None
    # From what each pool needs, or where that does not all fit from its minimum, to what it wishes.
    least = {role: limits[role].clamped(min(needed[role], wished[role])) for role in pools}
    if gpus(least, limits) > budget:
        least = {role: limits[role].min_replicas for role in pools}
    bounds = [replace(limits[role], min_replicas=least[role], max_replicas=wished[role]) for role in pools]
    ways = _divisions(bounds, budget)
    ages = 0.5 ** (np.arange(count)[::-1] / half_life)
    requests, lost = _lost(histories, pools, ways, ages)
    for each in classes:
        if each.critical:
            own, missed = _lost(each.histories, pools, ways, ages)
            lost = lost + (1.0 + requests) * np.maximum(0.0, missed - each.may_miss * own)
    best = int(np.argmin(lost))
    above = [all(now >= held[role] for now, role in zip(way, pools, strict=True)) for way in ways]
    if any(above):
        stay = int(np.argmin(np.where(above, lost, np.inf)))
        best = best if lost[best] < (1.0 - moving) * lost[stay] else stay
    return dict(zip(pools, ways[best], strict=True))


def _lost(
    histories: Mapping[Role, PoolHistory], pools: Sequence[Role], ways: Sequence[Division], ages: FloatArray
) -> tuple[float, FloatArray]:
    """The requests of the last intervals by the weight of their age, and what each way loses of them."""
    count = len(ages)
    requests = np.array([each.requests[-count:] for each in histories.values()], np.float64).max(axis=0)
    weights = ages * requests
    kept = np.ones((len(ways), count))
    for place, role in enumerate(pools):
        kept *= 1.0 - _shares(histories[role], [way[place] for way in ways], count)
    return float(weights.sum()), (1.0 - kept) @ weights


def _divisions(bounds: Sequence[PoolLimits], budget: int) -> list[Division]:
    """For each count of all pools but the last, the most of the last that fits."""
    pool, each = bounds[0], bounds[0].gpus_per_replica
    if len(bounds) == 1:
        return [(min(pool.max_replicas, budget // each),)]
    least = sum(other.min_replicas * other.gpus_per_replica for other in bounds[1:])
    most = min(pool.max_replicas, (budget - least) // each)
    return [
        (count, *rest)
        for count in range(pool.min_replicas, most + 1)
        for rest in _divisions(bounds[1:], budget - count * each)
    ]


def _shares(history: PoolHistory, replicas: Sequence[int], count: int) -> FloatArray:
    """Shares of the last `count` intervals' requests that so many replicas lose: f8[replicas, count]."""
    lost = history.lost_with(np.array(replicas)[:, None], count)
    shares: FloatArray = lost / np.maximum(history.requests[-count:], 1)
    return shares
