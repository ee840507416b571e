"""The least fixed fleet that attains a target, found by trying few fleets.

On the premise that one more replica never lowers attainment:

    enough      the guess, doubled until it attains
    floor_r     the least count of pool r beside twice `enough` in the other pools: steps down, bisection
    least       the cheapest fleet with at least floor_r in each pool that attains: the floors first, then
                what costs a GPU more, and so on. Of fleets that cost the same the one that attains most.

One pool alone loses so few at its floor that the other's losses decide how much above the floors the answer
lies: mostly one replica. With a single pool the floor is the answer.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from headway.planning import Role
from headway.planning.deciding import gpus
from headway.planning.types import PoolLimits

Fleet = Mapping[Role, int]
Attain = Callable[[Fleet], float]
"""The share of requests that a fixed fleet attains, in [0, 1]."""

MOST_TIMES = 64
"""No fleet of more than so many times the guess is tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastFleet:
    """The least fleet, or None; the largest one that was tried, what it attains, and how many were tried."""

    fleet: Fleet | None
    largest: Fleet
    attained: float
    tried: int


def least_fleet(attain: Attain, guess: Fleet, pools: Mapping[Role, PoolLimits], target: float) -> LeastFleet:
    """The least fleet within the pools' limits; `attain` is asked at most once for each fleet."""
    known: dict[tuple[int, ...], float] = {}

    def attains(fleet: Fleet) -> bool:
        key = tuple(fleet.values())
        if key not in known:
            known[key] = attain(fleet)
        return known[key] >= target

    def found(fleet: Fleet | None) -> LeastFleet:
        largest = max(known, key=sum)
        top = dict(zip(pools, largest, strict=True))
        return LeastFleet(fleet=fleet, largest=top, attained=known[largest], tried=len(known))

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
    return found(_cheapest(floors, fleet, pools, attains, known))


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


def _cheapest(
    floors: Fleet,
    enough: Fleet,
    pools: Mapping[Role, PoolLimits],
    attains: Callable[[Fleet], bool],
    known: Mapping[tuple[int, ...], float],
) -> Fleet:
    """The cheapest fleet from the floors up; `enough` is one that attains."""
    for fleets in _by_cost(floors, enough, pools):
        if within := [fleet for fleet in fleets if attains(fleet)]:
            return max(within, key=lambda fleet: known[tuple(fleet.values())])
    return enough


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
