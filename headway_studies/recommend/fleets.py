"""The least fixed fleet that attains a target, found by trying few fleets.

On the premise that one more replica never lowers attainment:

    enough      the guess, doubled until it attains
    floor_r     the least count of pool r beside twice `enough` in the other pools: steps down, bisection
    least       the cheapest fleet with at least floor_r in each pool that attains: the floors first, then
                what costs a GPU more, and so on. Of fleets that cost the same the one that attains most.
    proof       one replica fewer in any pool, or traded for another pool's, is no better, else on from there:
                the premise can fail, as a pool that is short evens out what the next one gets

One pool alone loses so few at its floor that the other's losses decide how much above the floors the answer
lies: mostly one replica. With a single pool the floor is the answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

from headway.planning import Role
from headway.planning.deciding import gpus
from headway.planning.types import PoolLimits

Fleet = Mapping[Role, int]
Attain = Callable[[Fleet], float]
"""The share of requests that a fixed fleet attains, in [0, 1]."""
Rank = Callable[[Fleet], tuple[bool, int, float]]
"""Whether a fleet misses the target, its GPUs, less what it attains: the least is best."""

MOST_TIMES = 64
"""No fleet of more than so many times the guess is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastFleet:
    """The least fleet, or None; the largest one that was tried, what it attains, and how many were tried.

    `beside` are its neighbours and what they attain: none that is cheaper attains the target.
    """

    fleet: Fleet | None
    largest: Fleet
    attained: float
    tried: int
    beside: Sequence[tuple[Fleet, float]] = ()


def least_fleet(attain: Attain, guess: Fleet, pools: Mapping[Role, PoolLimits], target: float) -> LeastFleet:
    """The least fleet within the pools' limits; `attain` is asked at most once for each fleet."""
    known: dict[tuple[int, ...], float] = {}

    def attains(fleet: Fleet) -> bool:
        key = tuple(fleet.values())
        if key not in known:
            known[key] = attain(fleet)
        return known[key] >= target

    def rank(fleet: Fleet) -> tuple[bool, int, float]:
        return not attains(fleet), gpus(fleet, pools), -known[tuple(fleet.values())]

    def found(fleet: Fleet | None) -> LeastFleet:
        largest = max(known, key=sum)
        top = dict(zip(pools, largest, strict=True))
        near = [(each, known[tuple(each.values())]) for each in _beside(fleet, pools)] if fleet else []
        return LeastFleet(fleet=fleet, largest=top, attained=known[largest], tried=len(known), beside=near)

    most = {role: MOST_TIMES * max(1, guess[role]) for role in pools}
    fleet, failed = _clamped(guess, pools), None
    while not attains(fleet):
        larger = _clamped(_doubled(fleet), pools)
        if larger == fleet or all(fleet[role] >= most[role] for role in pools):
            return found(None)
        fleet, failed = larger, fleet
    ample = _clamped(_doubled(fleet), pools)
    beside = ample if len(pools) > 1 else fleet

    def floor(role: Role) -> int:
        def alone(count: int) -> bool:
            return attains({**beside, role: count})

        if failed is not None and len(pools) == 1:
            return _least(alone, failed[role], fleet[role])
        return _least(alone, *_not_enough(alone, pools[role], fleet[role]))

    floors = {role: floor(role) for role in pools}
    return found(_proven(_cheapest(floors, fleet, pools, rank), pools, rank))


def _clamped(fleet: Fleet, pools: Mapping[Role, PoolLimits]) -> dict[Role, int]:
    """Within the limits, and one replica at least: a fixed fleet has no empty pool."""
    return {role: max(1, pool.clamped(fleet[role])) for role, pool in pools.items()}


def _doubled(fleet: Fleet) -> dict[Role, int]:
    return {role: 2 * count for role, count in fleet.items()}


def _least(attains: Callable[[int], bool], low: int, high: int) -> int:
    """The least count that attains, between `low`, which does not, and `high`, which does: bisection."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attains(middle) else (middle, high)
    return high


def _not_enough(attains: Callable[[int], bool], pool: PoolLimits, enough: int) -> tuple[int, int]:
    """A count that does not attain and one that does, by steps down from `enough` that double."""
    bottom = max(1, pool.min_replicas)
    high, step = enough, 1
    while high > bottom and attains(max(bottom, high - step)):
        high = max(bottom, high - step)
        step *= 2
    return max(bottom - 1, high - step), high


def _cheapest(floors: Fleet, enough: Fleet, pools: Mapping[Role, PoolLimits], rank: Rank) -> Fleet:
    """The cheapest fleet from the floors up; `enough` is one that attains."""
    for fleets in _by_cost(floors, enough, pools):
        if fleets and not rank(best := min(fleets, key=rank))[0]:
            return best
    return enough


def _proven(fleet: Fleet, pools: Mapping[Role, PoolLimits], rank: Rank) -> Fleet:
    """From neighbour to better neighbour, until there is none."""
    better = min(_beside(fleet, pools), key=rank, default=fleet)
    return _proven(better, pools, rank) if rank(better) < rank(fleet) else fleet


def _beside(fleet: Fleet, pools: Mapping[Role, PoolLimits]) -> Iterator[Fleet]:
    """One replica fewer in a pool, and traded for those of another at no more GPUs, within the limits."""
    for less, more in product(pools, pools):
        given, taken = pools[less].gpus_per_replica, pools[more].gpus_per_replica
        fewer = ceil(taken / given)
        counts = {**fleet, less: fleet[less] - fewer}
        if less is not more:
            counts[more] += fewer * given // taken
        if counts == _clamped(counts, pools):
            yield counts


def _by_cost(floors: Fleet, enough: Fleet, pools: Mapping[Role, PoolLimits]) -> Iterator[list[Fleet]]:
    """Fleets between the floors and what `enough` costs, those of one cost together, cheapest first."""
    for cost in range(gpus(floors, pools), gpus(enough, pools) + 1):
        spare = cost - gpus(floors, pools)
        spans = (range(spare // pool.gpus_per_replica + 1) for pool in pools.values())
        fleets = (
            {role: floors[role] + more for role, more in zip(pools, counts, strict=True)}
            for counts in product(*spans)
        )
        yield [fleet for fleet in fleets if gpus(fleet, pools) == cost and fleet == _clamped(fleet, pools)]
