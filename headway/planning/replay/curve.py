"""Loss curves: how many requests would have missed their SLO with n replicas, from few replays.

More replicas lose no more (up to the luck of placement, which is smoothed away). So it is enough to know the
curve from where much is lost to where next to nothing is. Between two counts a < b that have been replayed
the logarithm of lost + 1 is taken as linear, as losses fall about exponentially with the spare capacity; how
wrong that can be grows with

    (ln(lost_a + 1) − ln(lost_b + 1)) · ln(b / a)

so the widest such gap is split next, until all are narrow or the replays are used up. Fewer replicas than the
mean work keeps busy (`least`) fall behind sooner or later, however well they come through a short window:
they lose everything.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log, log1p, sqrt

import numpy as np
from numpy.typing import NDArray

from interp.jit import compiled

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

MUCH, NOTHING = 0.3, 0.0005
"""Shares of requests: above the first the curve is not looked at closely; the second counts as none."""

STEP = 1.1
MOST_TO_NARROW, MOST_REPLAYS = 6, 14
"""Replays after which the search for the least count without losses ends, and that for the others; a guess
near the answer needs fewer."""

FINENESS = 32
"""The least count without losses is found to one part in so many."""

NARROW = 0.1
"""A gap that is not split: losses a factor e apart at counts a tenth apart."""

FEW, SAVED, WIDER = 0.1, 0.001, 1.25
"""Where no more than a few are lost, and a fleet so much wider saves no more than so many (or a tenth of
these), it is not for want of replicas."""

ROUNDING = 1e-9

FARTHEST = 16
"""The climb to a count without losses ends at this multiple of where it began."""

MOST_REPLICAS = 4096
"""The largest fleet that is replayed."""


@dataclass(frozen=True, slots=True, eq=False)
class LossCurve:
    """`lost` i8[C]: of `requests` attainable ones, those that n = 0..C-1 replicas lose.

    `lost[0]` is `requests`, the curve never rises, and beyond C-1 its last value holds. `classes` has the
    curves of the single classes of requests, which add up to this one; empty where there are none.
    """

    requests: int
    lost: IntArray
    classes: tuple["LossCurve", ...] = ()

    def at(self, replicas: int) -> int:
        """Requests lost with that many replicas."""
        return int(self.lost[min(max(replicas, 0), len(self.lost) - 1)])

    def times(self, factor: float) -> "LossCurve":
        """The curve of so many times the requests."""
        return LossCurve(
            round(self.requests * factor),
            np.rint(self.lost * factor).astype(np.int64),
            tuple(curve.times(factor) for curve in self.classes),
        )


def loss_curve(lose: Callable[[int], int], requests: int, least: int, guess: int) -> LossCurve:
    """The curve of `lose(n)`, which replays n replicas, searched from `guess`; below `least` all is lost."""
    if requests == 0:
        return LossCurve(0, np.zeros(1, np.int64))
    least = max(1, least)
    search = _Search(lose, requests, {0: requests, least - 1: requests})
    start = max(least, guess)
    top = search.narrow(search.climb(start, FARTHEST * start + 20), least)
    search.refine(top)
    return LossCurve(requests, _through(search.known, top))


def class_curves(lose: Callable[[int], IntArray], requests: IntArray, least: int, guess: int) -> LossCurve:
    """The same for `lose(n)` of each class, with the curve of each.

    All come from the replays that the class that loses the largest share of its own would ask for.
    """
    there, total = requests > 0, int(requests.sum())
    known = dict.fromkeys((0, max(1, least) - 1), requests)

    def worst(replicas: int) -> int:
        known[replicas] = lose(replicas)
        return ceil(total * float((known[replicas][there] / requests[there]).max()) - ROUNDING)

    top = len(loss_curve(worst, total, least, guess).lost) - 1
    curves = tuple(
        LossCurve(count, _through({n: int(lost[place]) for n, lost in known.items()}, top))
        for place, count in enumerate(requests.tolist())
    )
    return LossCurve(total, np.sum([curve.lost for curve in curves], axis=0), curves)


def _through(known: Mapping[int, int], top: int) -> IntArray:
    """The curve from 0 to `top` through the counts that are known."""
    counts = sorted(count for count in known if count <= top)
    lost = np.minimum.accumulate([known[count] for count in counts])
    between = np.expm1(np.interp(np.arange(top + 1), counts, np.log1p(lost)))
    return np.rint(between).astype(np.int64)


@compiled
def least_within(starts: IntArray, lost: IntArray, share: float) -> IntArray:
    """Of curves one after the other, curve i from starts[i] to starts[i + 1]: the least counts, at least 1,
    that lose at most this share of all; the last of a curve where none does. i8[N]
    """
    least = np.ones(len(starts) - 1, np.int64)
    for i in range(len(least)):
        start, last = starts[i], starts[i + 1] - starts[i] - 1
        while least[i] < last and lost[start + least[i]] > share * lost[start]:
            least[i] += 1
    return least


@compiled
def under_load(
    starts: IntArray, lost: IntArray, level: FloatArray, times: float
) -> tuple[IntArray, FloatArray]:
    """The curves as if load had been so many times as large; between two counts logarithms are averaged.

    Of a single replica it is by how much it is busy: as its curve says at `level`, and all lost at 1.
    """
    count = len(starts) - 1
    begins = np.zeros(count + 1, np.int64)
    for i in range(count):
        begins[i + 1] = begins[i] + int(np.ceil((starts[i + 1] - starts[i] - 1) * times)) + 1
    grown = np.zeros(begins[count])
    for i in range(count):
        start, last = starts[i], starts[i + 1] - starts[i] - 1
        for n in range(begins[i + 1] - begins[i]):
            place = min(n / times, float(last))
            low = int(place)
            share = place - low
            if 0.0 < place < 1.0:
                busier = level[i] / place - level[i]
                share = 1.0 - min(1.0, busier / max(1.0 - level[i], ROUNDING))
            below, above = np.log1p(lost[start + low]), np.log1p(lost[start + min(low + 1, last)])
            grown[begins[i] + n] = np.expm1((1.0 - share) * below + share * above)
            if n < level[i] * times:
                grown[begins[i] + n] = lost[start]
    return begins, grown


def least_replicas(search: Callable[[int], LossCurve], may_miss: float) -> int:
    """The fewest replicas, at least 1, that lose at most this share; else those from which more save little.

    `search(n)` is the curve found from a guess of n; where it ends too early it is searched again from there.
    """
    guess = 1
    while True:
        curve = search(guess)
        enough = np.flatnonzero(curve.lost <= may_miss * curve.requests)
        if len(enough):
            return max(1, int(enough[0]))
        if curve.at(len(curve.lost)) <= FEW * curve.requests or guess >= MOST_REPLICAS:
            return len(curve.lost) - 1
        guess = max(len(curve.lost) - 1, FARTHEST * guess)


@dataclass(slots=True)
class _Search:
    """Replays so far, by their number of replicas."""

    lose: Callable[[int], int]
    requests: int
    known: dict[int, int]
    replays: int = 0

    def look(self, replicas: int) -> int:
        if replicas not in self.known:
            self.known[replicas] = self.lose(replicas)
            self.replays += 1
        return self.known[replicas]

    def climb(self, start: int, limit: int) -> int:
        """The first count from `start` on without losses, in widening steps; else where more stop helping."""
        replicas, step = start, STEP
        while self.look(replicas) > int(NOTHING * self.requests) and replicas < limit:
            wider = min(limit, max(replicas + 1, ceil(replicas * step)))
            if wider >= WIDER * replicas and not self._helps(replicas, wider):
                break
            replicas, step = wider, min(2.0, step * step)
        return replicas

    def _helps(self, replicas: int, wider: int) -> bool:
        lost = self.look(replicas)
        little = max(SAVED * self.requests, 0.1 * lost)
        return lost > FEW * self.requests or lost - self.look(wider) > little

    def narrow(self, top: int, least: int) -> int:
        """About the least count that loses hardly more than `top`."""
        lost = self.look(top)
        goal = max(int(NOTHING * self.requests), lost + int(SAVED * self.requests) if lost else 0)
        low, step = top, STEP
        while low >= least and self.look(low) <= goal:
            top, low = low, max(least - 1, min(low - 1, floor(low / step)))
            step = min(2.0, step * step)
        while top - low > max(1, top // FINENESS) and self.replays < MOST_TO_NARROW:
            middle = (low + top) // 2
            if self.look(middle) <= goal:
                top = middle
            else:
                low = middle
        return top

    def refine(self, top: int) -> None:
        """Split the widest gaps below `top`."""
        while self.replays < MOST_REPLAYS:
            counts = sorted(count for count in self.known if count <= top)
            gaps = [(self._width(a, b), a, b) for a, b in pairwise(counts) if b - a > 1]
            width, a, b = max(gaps, default=(0.0, 0, 0))
            if width <= NARROW:
                return
            self.look(min(b - 1, max(a + 1, round(sqrt(max(a, 1) * b)))))

    def _width(self, a: int, b: int) -> float:
        """The difference of losses between two counts, times the distance of the counts."""
        much = MUCH * self.requests
        fall = log1p(min(self.known[a], much)) - log1p(min(self.known[b], much))
        return fall * log(b / max(a, 1))
