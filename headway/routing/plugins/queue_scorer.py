"""`queue-scorer`: the shorter the queue, the better.

    score = 1 − (waiting − least) / (most − least),   1 for all where all wait alike

waiting counts requests whose prompts are to be computed at the replica; at decode replicas those on their
way. Without requests nothing waits.
"""

from dataclasses import dataclass

from headway.config.roles import Role
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.question import Question
from headway.routing.scans import fewest


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueScorer:
    """Prefers short queues."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in [0, 1]."""
        return fewest(question.column(Column.COMING if question.role is Role.DECODE else Column.WAITING))
