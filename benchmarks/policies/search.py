"""Searches that need few simulations. Each assumes that more safety, or one replica more, never loses.

least            the first index of a grid that holds, by bisection, or from a guess in widening steps
cheapest_fleet   along the staircase of least decode counts, one prefill count after the other
cheapest_corner  the cheapest knob positions that hold, best first from the corner below which none does
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from math import ceil, log
from typing import Protocol, TypeVar

MOST_REPLICAS = 2000
STEPS_PER_DOUBLING = 25

Knobs = tuple[int, ...]
Fleet = tuple[int, int]
"""Prefill and decode replicas."""


class Outcome(Protocol):
    """The outcome of a simulation, or of several, as a search needs it."""

    @property
    def held(self) -> bool:
        """True if it reaches the goal."""

    @property
    def gpu_hours(self) -> float:
        """The cost."""


OutcomeT = TypeVar("OutcomeT", bound=Outcome)


def geometric(first: float, last: float, ratio: float) -> tuple[float, ...]:
    """From `first` on by factors of `ratio` (or of its inverse) to `last`, to three digits."""
    step = ratio if last > first else 1.0 / ratio
    count = ceil(log(last / first) / log(step) - 1e-9)
    return (*(float(f"{first * step**place:.3g}") for place in range(count)), last)


def least(holds: Callable[[int], bool], count: int, guess: int | None = None) -> int | None:
    """The least index below `count` that holds; None when not even the last does. `guess` is tried first."""
    low, high = (0, count) if guess is None else _bracket(holds, count, guess)
    found = low + bisect_left(range(low, high), True, key=holds)
    return found if found < count else None


def _bracket(holds: Callable[[int], bool], count: int, guess: int) -> tuple[int, int]:
    """The part left to search: all below the first fail, the second holds or is `count`."""
    low, high, place, step = 0, count, guess, 1
    first = held = holds(guess)
    while True:
        low, high = (low, place) if held else (place + 1, high)
        if low >= high or held != first:
            return low, high
        place = min(max(place - step if held else place + step, low), high - 1)
        held, step = holds(place), 2 * step


def cheapest_fleet(holds: Callable[[Fleet], bool], first: Fleet, gpus: Fleet) -> Fleet | None:
    """The cheapest fleet that holds, `gpus` being those of one replica; `first` is a guess."""
    prefill, decode = first
    while not holds((prefill, decode)):
        if max(prefill, decode) >= MOST_REPLICAS:
            return None
        prefill, decode = min(2 * prefill, MOST_REPLICAS), min(2 * decode, MOST_REPLICAS)
    most_prefill, most_decode = 2 * prefill, 2 * decode
    fewest = 1 + bisect_left(range(1, most_prefill), True, key=lambda n: holds((n, most_decode)))
    floor = 1 + bisect_left(range(1, most_decode), True, key=lambda n: holds((most_prefill, n)))
    return min(_staircase(holds, fewest, (most_prefill, most_decode), floor, gpus), key=_cost(gpus))


def _staircase(
    holds: Callable[[Fleet], bool], fewest: int, most: Fleet, floor: int, gpus: Fleet
) -> Iterator[Fleet]:
    """The least decode count of each prefill count, until more prefill cannot pay."""
    prefill, decode = fewest, most[1]
    cost = _cost(gpus)
    best = cost((most[0], most[1]))
    while prefill <= most[0] and cost((prefill, floor)) <= best:
        decode = _fewest_decode(holds, prefill, floor, decode)
        best = min(best, cost((prefill, decode)))
        yield prefill, decode
        prefill += ceil(prefill / STEPS_PER_DOUBLING)
    yield most


def _fewest_decode(holds: Callable[[Fleet], bool], prefill: int, floor: int, known: int) -> int:
    """Less than `known`, which holds, if it can be: one trial where it cannot."""
    if known == floor or not holds((prefill, known - 1)):
        return known
    return floor + bisect_left(range(floor, known - 1), True, key=lambda n: holds((prefill, n)))


def _cost(gpus: Fleet) -> Callable[[Fleet], int]:
    return lambda fleet: fleet[0] * gpus[0] + fleet[1] * gpus[1]


def corner(leasts: Sequence[Sequence[int | None]]) -> Knobs | None:
    """The positions below which some cell fails, given each cell's least position per knob, others widest."""
    if not leasts or any(position is None for positions in leasts for position in positions):
        return None
    return tuple(max(position or 0 for position in column) for column in zip(*leasts, strict=True))


def cheapest_corner(
    measure: Callable[[Knobs], OutcomeT], start: Knobs, count: int
) -> tuple[Knobs, OutcomeT] | None:
    """Cheap positions that hold, from `start` on, all below `count`; None where there are none.

    All knobs rise together until it holds; then each is lowered again as far as it still holds, one after the
    other, and the order that ends cheapest counts.
    """
    seen = cache(measure)
    top = next((knobs for knobs in _diagonal(start, count) if seen(knobs).held), None)
    if top is None:
        return None
    lowered = [_lowered(seen, top, start, order) for order in permutations(range(len(start)))]
    best = min(lowered, key=lambda knobs: seen(knobs).gpu_hours)
    return best, seen(best)


def _diagonal(start: Knobs, count: int) -> Iterator[Knobs]:
    for step in range(count - min(start)):
        yield tuple(min(position + step, count - 1) for position in start)


def _lowered(measure: Callable[[Knobs], Outcome], top: Knobs, start: Knobs, order: Sequence[int]) -> Knobs:
    knobs = top
    for place in order:
        for position in range(knobs[place] - 1, start[place] - 1, -1):
            lower = (*knobs[:place], position, *knobs[place + 1 :])
            if not measure(lower).held:
                break
            knobs = lower
    return knobs
