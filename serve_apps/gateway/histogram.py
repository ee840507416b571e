"""Histograms that cost little to observe into, and the grids of their buckets.

Bounds rise geometrically, four to the octave: neighbours are 19 % apart, and a quantile interpolated inside a
bucket is off by less than that. The SLOs in use are bounds themselves, so the share of observations within an
SLO is exact. `observe` finds its bucket by bisection and counts there; the cumulative
counts that Prometheus wants are made at the scrape.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString

PER_OCTAVE = 4


def grid(low: float, high: float, extra: Iterable[float] = ()) -> tuple[float, ...]:
    """Bounds from `low` to beyond `high`, and `extra` ones, rising."""
    ratio = 2.0 ** (1.0 / PER_OCTAVE)
    bounds, step = [low], 1
    while bounds[-1] < high:
        # Six digits: bounds that people read; far finer than the grid.
        bounds.append(float(f"{low * ratio**step:.6g}"))
        step += 1
    return tuple(sorted({*bounds, *extra}))


def whole_grid(high: int) -> tuple[float, ...]:
    """Bounds for counts: whole numbers from 1 to beyond `high`."""
    return tuple(sorted({float(round(bound)) for bound in grid(1.0, high)}))


class Histogram:
    """One series. Single-threaded: everything happens on the event loop."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds as Prometheus writes them, with the observations at or below each."""
        labels = [*map(floatToGoString, self._bounds), "+Inf"]
        return [(label, float(count)) for label, count in zip(labels, accumulate(self._counts), strict=True)]
