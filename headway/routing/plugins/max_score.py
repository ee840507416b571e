"""`max-score-picker`: the highest score; among equals (within 1e-12) one by lot.

Inputs: the profile's scores. NaN counts as the lowest.
"""

from dataclasses import dataclass

import numpy as np

from headway.routing.fleet import FloatArray
from headway.routing.question import Question

EQUAL = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxScorePicker:
    """Takes the best."""

    def pick(self, question: Question, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the best."""
        best = scores[scores.argmax()]
        if np.isnan(best):  # NaN comes first in argmax
            scores = np.nan_to_num(scores, nan=-1.0)
            best = scores[scores.argmax()]
        (ties,) = (scores >= best - EQUAL).nonzero()
        return int(ties[0] if len(ties) == 1 else ties[int(generator.random() * len(ties))])
