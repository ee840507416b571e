"""Which measured points to look at again, because they can't both be right.

More work takes no less time: on the prefill line with more tokens, on the line of a decode context with a
larger batch. Where a latency is more than STEADY below that of its smaller neighbour, the machine was slower
for one of the two, and runs that followed each other can't show it. So both are measured again, later, up to
LOOKS times in all; their values are the medians over all looks. An engine that really is faster there comes
out as it is. Pure.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby, pairwise

from headway.profiling.sweep.points import Phase, SweepPoint
from headway.profiling.sweep.robust import STEADY
from headway.profiling.sweep.store import Measured

LOOKS = 3
"""The majority of the looks decides."""


def doubtful(measured: Mapping[SweepPoint, Measured]) -> list[SweepPoint]:
    """The points to measure again, those with the fewest looks first."""
    found = {point for pair in _falls(measured) for point in pair if measured[point].looks < LOOKS}
    return sorted(found, key=lambda point: (measured[point].looks, point))


def _falls(measured: Mapping[SweepPoint, Measured]) -> Iterator[tuple[SweepPoint, SweepPoint]]:
    known = {point: found.summary.value_s for point, found in measured.items() if found.summary}
    for _, line in groupby(sorted(known, key=_along), key=lambda point: _along(point)[:2]):
        for less, more in pairwise(line):
            if known[more] < (1.0 - STEADY) * known[less]:
                yield less, more


def _along(point: SweepPoint) -> tuple[Phase, int, int]:
    """A line's phase and context, and the place on it."""
    if point.phase is Phase.PREFILL:
        return point.phase, 0, point.tokens
    return point.phase, point.tokens, point.batch
