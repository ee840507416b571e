"""`weighted-random-picker`: a draw, weighted by the scores.

    P(i) ∝ score_i ^ sharpness

sharpness 1 is the plain draw; the higher, the closer to the best; 0 is a draw among all with a score. The
default, 32, draws one that scores a tenth less about 30 times more seldom. A
score of 0 or NaN is never drawn; where no score is positive the draw is uniform.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from headway.routing.fleet import FloatArray
from headway.routing.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRandomPicker:
    """Draws by weight."""

    sharpness: Annotated[float, Field(ge=0.0, le=1e4)] = 32.0

    def pick(self, question: Question, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the one drawn."""
        best = scores.max()
        if not best > 0.0:
            scores = np.nan_to_num(scores, nan=0.0)
            best = scores.max()
            if not best > 0.0:
                return int(generator.random() * len(scores))
        weights = (scores / best) ** self.sharpness
        if self.sharpness == 0.0:
            weights = (scores > 0.0).astype(np.float64)
        total = weights.cumsum()
        return int(total.searchsorted(generator.random() * total[-1], side="right"))
