"""`max-score-picker`: the highest score; among equals (within 1e-12) one by lot.

Inputs: the profile's scores. NaN counts as the lowest.


`weighted-random-picker`: a draw, weighted by the scores.

    P(i) ∝ score_i ^ sharpness

sharpness 1 is the plain draw; the higher, the closer to the best; 0 is a draw among all with a score. The
default, 32, draws one that scores a tenth less about 30 times more seldom. A
score of 0 or NaN is never drawn; where no score is positive the draw is uniform.


`random`: any candidate, all alike.

Inputs: none but the candidates. Scores are ignored. Nothing can be missing.


`round-robin`: the candidates in turn, in the order of their ids, one turn per role.

Inputs: none but the candidates. Scores are ignored. When replicas come or go the turn goes on by position.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from pydantic import Field

from headway.config.roles import Role
from headway.routing.context import SchedulingContext
from headway.routing.table import FloatArray, SlotArray
from interp.jit import compiled

EQUAL = 1e-12
"""Scores that differ by no more are equal."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxScorePicker:
    """Takes the best."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the best."""
        best = best_places(scores)
        return int(best[0] if len(best) == 1 else best[int(generator.random() * len(best))])


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
            total += (scores[place] / best) ** sharpness
        totals[place] = total
    return int(np.searchsorted(totals, lot * total, side="right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRandomPicker:
    """Draws by weight."""

    sharpness: Annotated[float, Field(ge=0.0, le=1e4)] = 32.0

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the one drawn."""
        return drawn(scores, self.sharpness, generator.random())


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPicker:
    """Draws uniformly."""

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the one drawn."""
        return int(generator.random() * len(scores))


@dataclass(slots=True, kw_only=True)
class RoundRobinPicker:
    """Takes turns."""

    _turns: Counter[Role] = field(default_factory=Counter, init=False)

    def pick(self, context: SchedulingContext, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the next."""
        turn = self._turns[context.role]
        self._turns[context.role] = turn + 1
        return turn % len(scores)
