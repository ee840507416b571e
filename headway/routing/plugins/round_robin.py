"""`round-robin`: the candidates in turn, in the order of their ids, one turn per role.

Inputs: none but the candidates. Scores are ignored. When replicas come or go the turn goes on by position.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from headway.config.roles import Role
from headway.routing.fleet import FloatArray
from headway.routing.question import Question


@dataclass(slots=True, kw_only=True)
class RoundRobinPicker:
    """Takes turns."""

    _turns: Counter[Role] = field(default_factory=Counter, init=False)

    def pick(self, question: Question, scores: FloatArray, generator: np.random.Generator) -> int:
        """Position of the next."""
        turn = self._turns[question.role]
        self._turns[question.role] = turn + 1
        return turn % len(scores)
