"""`queue-scorer`: the shorter the queue, the better.

    score = 1 − (waiting − least) / (most − least),   1 for all where all wait alike

waiting counts requests whose prompts are to be computed at the replica; at decode replicas those on their
way. Without requests nothing waits.
"""

from dataclasses import dataclass

import numpy as np

from headway.config.roles import Role
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueScorer:
    """Prefers short queues."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in [0, 1]."""
        waiting = question.column(Column.COMING if question.role is Role.DECODE else Column.WAITING)
        least, most = waiting.min(), waiting.max()
        if most == least:
            return np.ones(len(waiting))
        score: FloatArray = (most - waiting) / (most - least)
        return score
