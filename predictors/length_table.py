"""Distributions of lengths in tokens: counted in bins, read from tables.

Bins are whole numbers from an edge up to, and without, the next; eight to the octave, so 9 % wide, and one
number each below 12. Per bin j: weight w_j, and the sum s_j of weight × length, so means are exact.

    G(m) = E[min(X, m)]     at an edge exactly: Σ_{j below} s_j + m Σ_{j from m on} w_j  (W = 1)
    F(x) = P(X < x)         at an edge exactly
Both are linear in between. G is concave, so the truncated mean errs to the low side, within a bin.

A histogram forgets exponentially: each length counts 1 − 1/memory of the one after it, so it remembers about
`memory` of them. Instead of all old weights shrinking, the weight of the next grows; now and then all are
divided by it.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

PER_OCTAVE = 8

MOST_TOKENS = 1 << 20
"""Longer ones count as this long."""

EDGES: list[int] = sorted({round(2.0 ** (step / PER_OCTAVE)) for step in range(20 * PER_OCTAVE + 1)})
"""Of the bins; the last bin ends with MOST_TOKENS itself."""

BINS = len(EDGES)

ENDS: FloatArray = np.array([*EDGES, MOST_TOKENS], dtype=np.float64)
"""Each bin's edge, and the end of the last."""

HEAVIEST = 1e12
"""The weight of one length from which on all are divided by it."""


class Counts(NamedTuple):
    """Weights and sums per bin, f8[BINS] each."""

    weights: FloatArray
    sums: FloatArray

    @property
    def total(self) -> float:
        """The weight of all."""
        return float(self.weights.sum())

    def mixed_with(self, other: "Counts", strength: float) -> "Counts":
        """These, and the `other` distribution as if seen `strength` times; of total weight 1."""
        part = strength / other.total
        whole = self.total + strength
        return Counts(
            (self.weights + part * other.weights) / whole,
            (self.sums + part * other.sums) / whole,
        )


class Histogram:
    """Counts of lengths that forget."""

    __slots__ = ("_growth", "_sums", "_weight", "_weights")

    def __init__(self, memory: float, counts: Counts | None = None) -> None:
        self._growth = 1.0 / (1.0 - 1.0 / memory)
        self._weight = 1.0
        self._weights = np.zeros(BINS) if counts is None else counts.weights.copy()
        self._sums = np.zeros(BINS) if counts is None else counts.sums.copy()

    def add(self, tokens: int) -> None:
        """Count a length of at least 1."""
        tokens = min(tokens, MOST_TOKENS)
        self._weight *= self._growth
        place = bisect_right(EDGES, tokens) - 1
        self._weights[place] += self._weight
        self._sums[place] += self._weight * tokens
        if self._weight > HEAVIEST:
            self._weights /= self._weight
            self._sums /= self._weight
            self._weight = 1.0

    def counts(self) -> Counts:
        """In units of the last length's weight."""
        return Counts(self._weights / self._weight, self._sums / self._weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """A distribution, ready for questions; G and F at the edges of the bins and at the end of the last."""

    truncated_mean: list[float]
    below: list[float]

    @classmethod
    def of(cls, counts: Counts) -> "LengthTable":
        """The table of counts whose total weight is 1."""
        below, sums = np.zeros(BINS + 1), np.zeros(BINS + 1)
        np.cumsum(counts.weights, out=below[1:])
        np.cumsum(counts.sums, out=sums[1:])
        return cls(truncated_mean=(sums + ENDS * (1.0 - below)).tolist(), below=below.tolist())

    def mean_up_to(self, tokens: int) -> float:
        """E[min(X, tokens)]; less than 1 token counts as 1."""
        if tokens >= MOST_TOKENS:
            return self.truncated_mean[-1]
        place = bisect_right(EDGES, tokens) - 1
        if place < 0:
            return 1.0
        low, high = EDGES[place], EDGES[place + 1]
        start, end = self.truncated_mean[place], self.truncated_mean[place + 1]
        return start + (end - start) * (tokens - low) / (high - low)

    def quantile(self, level: float) -> float:
        """The length that a share `level` in (0, 1) does not exceed."""
        place = max(0, min(bisect_left(self.below, level), BINS) - 1)
        low = EDGES[place]
        last = EDGES[place + 1] - 1 if place + 1 < BINS else MOST_TOKENS
        share = self.below[place + 1] - self.below[place]
        part = (level - self.below[place]) / share if share > 0.0 else 0.0
        return low + min(1.0, part) * (last - low)


def exponential_counts(mean_tokens: float) -> Counts:
    """An exponential distribution of about this mean, of at least 1 token each; total weight 1."""
    ends = np.array([*EDGES, np.inf])
    weights = -np.diff(np.exp(-(ends - 1.0) / mean_tokens))
    middles = np.array(
        [(low + high - 1) / 2 for low, high in zip(EDGES, [*EDGES[1:], MOST_TOKENS + 1], strict=True)]
    )
    return Counts(weights, weights * middles)
