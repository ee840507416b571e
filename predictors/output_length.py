"""Output length: the tokens that a request will yield, learned from requests like it.

Requests are alike when their input lengths lie in one octave. Each octave has a histogram of output lengths
that forgets; a further one is of all requests. Few observations are filled up from the more general
distribution, which is worth k = STRENGTH of them:

    all      = (counts of all + k prior) / (n + k)         prior: exponential of mean `prior_tokens`
    octave   = (counts there  + k all)   / (n there + k)

The client's `max_tokens` m bounds the output: the mean is E[min(X, m)], a quantile min(x_q, m). Lengths that
were cut at m are counted as they were: they teach nothing about what lies beyond it.

Histograms have bins from one whole number up to, and without, the next edge; eight to the octave, so 9 %
wide, and one number each below 12. Per bin j: weight w_j, and the sum s_j of weight × length, so means are
exact.

    G(m) = E[min(X, m)]     at an edge exactly: Σ_{j below} s_j + m Σ_{j from m on} w_j  (W = 1)
    F(x) = P(X < x)         at an edge exactly
    V(x) = P(X >= x)        likewise, summed from the end: exact where 1 - F would be rounding alone

All are linear in between. G is concave, so the truncated mean errs to the low side, within a bin.

Once n tokens have come, the mean is E[min(X, m) | X >= n], by the sums beyond n; n where there are none.

`predict` changes nothing and answers from tables. `observe` renews a table with every observation at first,
then with every n / RENEWALS; tables of octaves with few observations follow whenever that of all is renewed.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from predictors.checks import ArgumentError, OptionError

FloatArray = NDArray[np.float64]

PER_OCTAVE = 8

MOST_TOKENS = 1 << 20
"""Longer ones count as this long."""

EDGES: list[int] = sorted({round(2.0 ** (step / PER_OCTAVE)) for step in range(20 * PER_OCTAVE + 1)})
"""Of the bins; the last bin ends with MOST_TOKENS itself."""

BINS = len(EDGES)

ENDS: FloatArray = np.array([*EDGES, MOST_TOKENS], dtype=np.float64)
"""Each bin's edge, and the end of the last."""

ENDS_LIST: list[float] = ENDS.tolist()

HEAVIEST = 1e12
"""The weight of one length from which on all are divided by it."""


class BinCounts(NamedTuple):
    """Weights and sums per bin, f8[BINS] each."""

    weights: FloatArray
    sums: FloatArray

    @property
    def total(self) -> float:
        """The weight of all."""
        return float(self.weights.sum())

    def mixed_with(self, other: "BinCounts", strength: float) -> "BinCounts":
        """These, and the `other` distribution as if seen `strength` times; of total weight 1."""
        part = strength / other.total
        whole = self.total + strength
        return BinCounts(
            (self.weights + part * other.weights) / whole, (self.sums + part * other.sums) / whole
        )


class Histogram:
    """BinCounts of lengths that forget exponentially.

    Each length counts 1 - 1/memory of the one after it, so about `memory` of them are remembered.
    """

    __slots__ = ("_growth", "_sums", "_weight", "_weights")

    def __init__(self, memory: float, counts: BinCounts | None = None) -> None:
        self._growth = 1.0 / (1.0 - 1.0 / memory)
        self._weight = 1.0
        self._weights = np.zeros(BINS) if counts is None else counts.weights.copy()
        self._sums = np.zeros(BINS) if counts is None else counts.sums.copy()

    def add(self, tokens: int) -> None:
        """Count a length of at least 1."""
        tokens = min(tokens, MOST_TOKENS)
        # The next weight grows instead of all old ones shrinking: one multiplication, not one for each bin.
        self._weight *= self._growth
        place = bisect_right(EDGES, tokens) - 1
        self._weights[place] += self._weight
        self._sums[place] += self._weight * tokens
        if self._weight > HEAVIEST:
            self._weights /= self._weight
            self._sums /= self._weight
            self._weight = 1.0

    def counts(self) -> BinCounts:
        """In units of the last length's weight."""
        return BinCounts(self._weights / self._weight, self._sums / self._weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTable:
    """G, F, V and Σ s_j from there on at the edges of the bins and at the end of the last."""

    truncated_mean: list[float]
    below: list[float]
    beyond: list[float]
    sums_beyond: list[float]

    @classmethod
    def of(cls, counts: BinCounts) -> "LengthTable":
        """The table of counts whose total weight is 1."""
        below, sums = np.zeros(BINS + 1), np.zeros(BINS + 1)
        np.cumsum(counts.weights, out=below[1:])
        np.cumsum(counts.sums, out=sums[1:])
        beyond, sums_beyond = np.zeros(BINS + 1), np.zeros(BINS + 1)
        np.cumsum(counts.weights[::-1], out=beyond[1:])
        np.cumsum(counts.sums[::-1], out=sums_beyond[1:])
        return cls(
            truncated_mean=(sums + ENDS * (1.0 - below)).tolist(),
            below=below.tolist(),
            beyond=beyond[::-1].tolist(),
            sums_beyond=sums_beyond[::-1].tolist(),
        )

    def mean_from(self, least: int, most: int) -> float:
        """E[min(X, most) | X >= least]; `least` where nothing is beyond it."""
        most = min(most, MOST_TOKENS)
        if most <= least:
            return float(least)
        beyond, sums = self._beyond(max(least, 1))
        cut, cut_sums = self._beyond(most)
        if not beyond > 0.0:
            return float(least)
        return max(float(least), (sums - cut_sums + most * cut) / beyond)

    def _beyond(self, tokens: int) -> tuple[float, float]:
        """V, and the sum of lengths beyond."""
        place = min(bisect_right(EDGES, tokens), BINS) - 1
        low, high = ENDS_LIST[place], ENDS_LIST[place + 1]
        # The last bin is as wide as nothing.
        part = (tokens - low) / (high - low) if high > low else 0.0
        weight, sums = self.beyond[place], self.sums_beyond[place]
        return (
            weight + part * (self.beyond[place + 1] - weight),
            sums + part * (self.sums_beyond[place + 1] - sums),
        )

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


def exponential_counts(mean_tokens: float) -> BinCounts:
    """An exponential distribution of about this mean, of at least 1 token each; total weight 1."""
    ends = np.array([*EDGES, np.inf])
    weights = -np.diff(np.exp(-(ends - 1.0) / mean_tokens))
    middles = np.array(
        [(low + high - 1) / 2 for low, high in zip(EDGES, [*EDGES[1:], MOST_TOKENS + 1], strict=True)]
    )
    return BinCounts(weights, weights * middles)


STRENGTH = 8.0
"""Observations that the more general distribution is worth."""

RENEWALS = 64
"""A table is renewed when its observations grew by 1/RENEWALS of those it remembers."""

OCTAVES = 32
"""Input lengths of 2^31 tokens and more are alike."""


@dataclass(frozen=True, slots=True)
class OutputLength:
    """A prediction in tokens: the mean of min(X, max_tokens), and its quantiles."""

    mean: float
    max_tokens: int
    table: LengthTable = field(repr=False)

    def quantile(self, level: float) -> float:
        """The length that a share `level` does not exceed. Raises ArgumentError outside (0, 1)."""
        if not 0.0 < level < 1.0:
            raise ArgumentError(f"a quantile level lies in (0, 1), is {level!r:.40}")
        return min(self.table.quantile(level), float(max(1, self.max_tokens)))


class _Learner:
    """A histogram and its table, renewed as observations come."""

    __slots__ = ("_memory", "_unseen", "histogram", "seen", "table")

    def __init__(self, memory: float, table: LengthTable, counts: BinCounts | None = None) -> None:
        self.histogram = Histogram(memory, counts)
        self.table = table
        self.seen = 0.0 if counts is None else counts.total
        self._memory = memory
        self._unseen = 0

    def observe(self, tokens: int, general: BinCounts) -> BinCounts | None:
        """Count a length; the distribution of the renewed table, None if it was not renewed."""
        self.histogram.add(tokens)
        self.seen = min(self.seen + 1.0, self._memory)
        self._unseen += 1
        if self._unseen * RENEWALS < self.seen:
            return None
        return self.renew(general)

    def renew(self, general: BinCounts) -> BinCounts:
        """Rebuild the table from the counts, filled up from the `general` distribution."""
        self._unseen = 0
        mixed = self.histogram.counts().mixed_with(general, STRENGTH)
        self.table = LengthTable.of(mixed)
        return mixed


class OutputLengths:
    """Output lengths by input length. `memory` observations are remembered per octave."""

    def __init__(self, *, prior_tokens: float = 256.0, memory: float = 2000.0) -> None:
        """Raises OptionError for a prior below 1 token or above 1e6, or a memory below 2."""
        if not 1.0 <= prior_tokens <= 1e6:
            raise OptionError(f"prior_tokens lies in 1 .. 1e6, is {prior_tokens!r:.40}")
        if not 2.0 <= memory <= 1e9:
            raise OptionError(f"memory lies in 2 .. 1e9, is {memory!r:.40}")
        self._prior = exponential_counts(prior_tokens)
        self._memory = memory
        self._general = self._prior
        self._all = _Learner(memory, LengthTable.of(self._prior))
        self._octaves: dict[int, _Learner] = {}

    def observe(self, input_tokens: int, output_tokens: int) -> None:
        """Learn from a request that has ended of itself. One without output is passed over."""
        if output_tokens < 1:
            return
        if (general := self._all.observe(output_tokens, self._prior)) is not None:
            # All requests' distribution is new: octaves that lean on it follow.
            self._general = general
            for learner in self._octaves.values():
                if learner.seen < RENEWALS:
                    learner.renew(general)
        octave = _octave(input_tokens)
        if octave not in self._octaves:
            self._octaves[octave] = _Learner(self._memory, self._all.table)
        self._octaves[octave].observe(output_tokens, self._general)

    def predict(self, input_tokens: int, max_tokens: int) -> OutputLength:
        """The prediction for a request; `max_tokens` below 1 counts as 1."""
        table = self._octaves.get(_octave(input_tokens), self._all).table
        return OutputLength(table.mean_up_to(max_tokens), max_tokens, table)

    def mean_from(self, input_tokens: int, max_tokens: int, output_tokens: int) -> float:
        """The mean of all tokens of a request that has `output_tokens` by now, and at least these."""
        table = self._octaves.get(_octave(input_tokens), self._all).table
        return table.mean_from(output_tokens, max_tokens)

    def state(self) -> dict[str, list[list[float]]]:
        """The counts as JSON values: per octave, and for "all", rows of bin, weight and sum."""
        learners = {"all": self._all, **{str(octave): self._octaves[octave] for octave in self._octaves}}
        return {name: _rows(learner.histogram.counts()) for name, learner in learners.items()}

    def restore(self, state: Mapping[str, Any]) -> Self:
        """Take a former `state` in place of what was counted; self. Raises ArgumentError for other values."""
        found = {name: _counts(name, rows) for name, rows in state.items()}
        nothing = BinCounts(np.zeros(BINS), np.zeros(BINS))
        self._all = _Learner(self._memory, self._all.table, found.pop("all", nothing))
        self._general = self._all.renew(self._prior)
        self._octaves = {}
        for name, counts in found.items():
            learner = self._octaves[int(name)] = _Learner(self._memory, self._all.table, counts)
            learner.renew(self._general)
        return self


def _octave(input_tokens: int) -> int:
    return min(max(0, int(input_tokens)).bit_length(), OCTAVES)


def _rows(counts: BinCounts) -> list[list[float]]:
    used = np.flatnonzero(counts.weights)
    return [[int(place), float(counts.weights[place]), float(counts.sums[place])] for place in used]


def _counts(name: str, rows: Any) -> BinCounts:  # noqa: ANN401
    """The counts of a state's entry."""
    if name != "all" and not (name.isdecimal() and int(name) <= OCTAVES):
        raise ArgumentError(f"output length state: no such octave: {name!r:.40}")
    counts = BinCounts(np.zeros(BINS), np.zeros(BINS))
    try:
        for place, weight, total in rows:
            if not (0 <= place < BINS and 0.0 < weight < np.inf and weight <= total < np.inf):
                raise ValueError(f"row {[place, weight, total]}")
            counts.weights[int(place)], counts.sums[int(place)] = weight, total
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"output length state: {name}: {str(error)[:80]}") from error
    return counts
