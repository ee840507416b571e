"""Output length: how many tokens a request will yield, from how many alike ones did (document 003).

Requests are alike when their input lengths lie in one octave. Per octave a histogram of output lengths that
forgets (`length_table`), and one of all requests. What is known of few is filled up with what is known of
more, k = STRENGTH observations' worth each time:

    all      = (counts of all + k prior) / (n + k)         prior: exponential of mean `prior_tokens`
    octave   = (counts there  + k all)   / (n there + k)

The client's `max_tokens` m bounds the output: the mean is E[min(X, m)], a quantile min(x_q, m). Observed
lengths count as they were: those that were cut at m teach nothing about what lies beyond it.

`predict` changes nothing and answers from tables that `observe` renews, with every observation at first, then
with every n / RENEWALS; those of octaves with few of their own whenever that of all is. An answer is a value:
it stays as it is while the predictor learns on, so a request keeps its prediction for life. `state` and
`restore` carry the counts over a restart as plain JSON values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from predictors.errors import ArgumentError, OptionError
from predictors.length_table import BINS, Counts, Histogram, LengthTable, exponential_counts

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
    """A histogram, its table, and when to renew that."""

    __slots__ = ("_memory", "_unseen", "histogram", "seen", "table")

    def __init__(self, memory: float, table: LengthTable, counts: Counts | None = None) -> None:
        self.histogram = Histogram(memory, counts)
        self.table = table
        self.seen = 0.0 if counts is None else counts.total
        self._memory = memory
        self._unseen = 0

    def observe(self, tokens: int, general: Counts) -> Counts | None:
        """Count a length; if the table was renewed, what of."""
        self.histogram.add(tokens)
        self.seen = min(self.seen + 1.0, self._memory)
        self._unseen += 1
        if self._unseen * RENEWALS < self.seen:
            return None
        return self.renew(general)

    def renew(self, general: Counts) -> Counts:
        """Build the table anew, of what was counted, filled up from the `general` distribution."""
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
            self._generalise(general)
        octave = _octave(input_tokens)
        if octave not in self._octaves:
            self._octaves[octave] = _Learner(self._memory, self._all.table)
        self._octaves[octave].observe(output_tokens, self._general)

    def _generalise(self, general: Counts) -> None:
        """Take what all show; octaves that lean on it follow."""
        self._general = general
        for learner in self._octaves.values():
            if learner.seen < RENEWALS:
                learner.renew(general)

    def predict(self, input_tokens: int, max_tokens: int) -> OutputLength:
        """What to expect; `max_tokens` below 1 counts as 1."""
        table = self._octaves.get(_octave(input_tokens), self._all).table
        return OutputLength(table.mean_up_to(max_tokens), max_tokens, table)

    def state(self) -> dict[str, list[list[float]]]:
        """What was counted, as JSON values: per octave, and for "all", rows of bin, weight and sum."""
        learners = {"all": self._all, **{str(octave): self._octaves[octave] for octave in self._octaves}}
        return {name: _rows(learner.histogram.counts()) for name, learner in learners.items()}

    def restore(self, state: Mapping[str, Any]) -> Self:
        """Take a former `state` in place of what was counted; self. Raises ArgumentError for other values."""
        found = {name: _counts(name, rows) for name, rows in state.items()}
        nothing = Counts(np.zeros(BINS), np.zeros(BINS))
        self._all = _Learner(self._memory, self._all.table, found.pop("all", nothing))
        self._general = self._all.renew(self._prior)
        self._octaves = {}
        for name, counts in found.items():
            learner = self._octaves[int(name)] = _Learner(self._memory, self._all.table, counts)
            learner.renew(self._general)
        return self


def _octave(input_tokens: int) -> int:
    return min(max(0, int(input_tokens)).bit_length(), OCTAVES)


def _rows(counts: Counts) -> list[list[float]]:
    used = np.flatnonzero(counts.weights)
    return [[int(place), float(counts.weights[place]), float(counts.sums[place])] for place in used]


def _counts(name: str, rows: Any) -> Counts:  # noqa: ANN401
    """The counts of a state's entry."""
    if name != "all" and not (name.isdecimal() and int(name) <= OCTAVES):
        raise ArgumentError(f"output length state: no such octave: {name!r:.40}")
    counts = Counts(np.zeros(BINS), np.zeros(BINS))
    try:
        for place, weight, total in rows:
            if not (0 <= place < BINS and 0.0 < weight < np.inf and weight <= total < np.inf):
                raise ValueError(f"row {[place, weight, total]}")
            counts.weights[int(place)], counts.sums[int(place)] = weight, total
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"output length state: {name}: {str(error)[:80]}") from error
    return counts
