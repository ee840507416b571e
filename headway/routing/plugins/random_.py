"""`random`: any candidate, all alike.

Inputs: none but the candidates. Scores are ignored. Nothing can be missing.
"""

from dataclasses import dataclass

import numpy as np

from headway.routing.fleet import FloatArray
from headway.routing.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomPicker:
    """Draws uniformly."""

    def pick(self, question: Question, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the one drawn."""
        return int(generator.random() * len(scores))
