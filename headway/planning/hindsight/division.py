"""The GPU budget where it binds: the share of each pool, and when that changes.

Every way to divide the budget between the pools is judged by the past. With n_r replicas of pool r an
interval i would have lost the share l_ri(n_r) of its R_i requests there, and since a request needs all pools,

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
from dataclasses import replace

import numpy as np

from headway.planning.budget import gpus
from headway.planning.hindsight.choice import ClassPast
from headway.planning.hindsight.history import PoolHistory, common_intervals
from headway.planning.types import FloatArray, PoolLimits, Role

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
