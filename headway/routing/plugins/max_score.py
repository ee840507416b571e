"""`max-score-picker`: the highest score; among equals (within 1e-12) one by lot.

Inputs: the profile's scores. NaN counts as the lowest.
"""

from dataclasses import dataclass

import numpy as np

from headway.routing.fleet import FloatArray
from headway.routing.question import Question
from headway.routing.scans import best_places


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxScorePicker:
    """Takes the best."""

    def pick(self, question: Question, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the best."""
        best = best_places(scores)
        return int(best[0] if len(best) == 1 else best[int(generator.random() * len(best))])
