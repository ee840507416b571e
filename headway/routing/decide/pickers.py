"""Pickers: one candidate by the scores.

`random` and `round-robin` ignore the scores. A score that is NaN counts as the lowest and is never drawn.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from headway.config import Role
from headway.routing.decide.context import SchedulingContext
from headway.routing.fleet.table import FloatArray, SlotArray
from interp.jit import compiled

EQUAL = 1e-12
"""Scores that differ by no more are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxScorePicker:
    """`max-score-picker`: the highest score; among equals one by lot."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the best."""
        best = best_places(scores)
        # No lot is drawn for a single best: the generator's next value belongs to the next that needs one.
        return int(best[0] if len(best) == 1 else best[int(generator.random() * len(best))])


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMaxPicker:
    """`first-max-picker`: the highest score; among equals the first."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the best."""
        return int(best_places(scores)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRandomPicker:
    """`weighted-random-picker`: a draw, P(i) ∝ score_i ^ sharpness; uniform where no score is positive.

    `sharpness` 1 is the plain draw; the higher, the closer to the best; 0 is a draw among all with a score.
    The default draws one that scores a tenth less about 30 times more seldom.
    """

    sharpness: Annotated[float, Field(ge=0.0, le=1e4)] = 32.0

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the one drawn."""
        return drawn(scores, self.sharpness, generator.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPicker:
    """`random`: any candidate, all alike."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the one drawn."""
        return int(generator.random() * len(scores))


@dataclass(slots=True, kw_only=True)
class RoundRobinPicker:
    """`round-robin`: the candidates in turn, in the order of their ids, one turn per role.

    When replicas come or go the turn goes on by position.
    """

    _turns: Counter[Role] = field(default_factory=Counter, init=False)

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """The position of the next."""
        turn = self._turns[context.role]
        self._turns[context.role] = turn + 1
        return turn % len(scores)


@compiled
def best_places(scores: FloatArray) -> SlotArray:
    """Positions of the highest of `scores` and its equals, i8[at least 1]; NaN counts as −1, the lowest."""
    best = -1.0
    for score in scores:
        if score > best:  # noqa: PLR1730 - max() would keep a NaN
            best = score
    found, out = 0, np.empty(len(scores), dtype=np.int64)
    for place in range(len(scores)):
        score = -1.0 if np.isnan(scores[place]) else scores[place]
        if score >= best - EQUAL:
            out[found] = place
            found += 1
    return out[:found]


@compiled
def drawn(scores: FloatArray, sharpness: float, lot: float) -> int:
    """A position drawn by score ^ `sharpness`; `lot` in [0, 1) decides. Any, where no score is positive."""
    best = 0.0
    for score in scores:
        if score > best:  # noqa: PLR1730 - max() would keep a NaN
            best = score
    if best == 0.0:
        return int(lot * len(scores))
    total, totals = 0.0, np.empty(len(scores))
    for place in range(len(scores)):
        if scores[place] > 0.0:
            # Scores relative to the best: a high power of small ones would be 0 for all.
            total += (scores[place] / best) ** sharpness
        totals[place] = total
    return int(np.searchsorted(totals, lot * total, side="right"))
