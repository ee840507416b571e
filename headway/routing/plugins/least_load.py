"""`least-load`: the less outstanding, the better.

    score = 1 / (1 + load),   load = uncached prompt tokens outstanding on prefill replicas,
                                     requests that are there or on their way on the others

An engine's report adds requests that are not ours. Without a report ours count alone.
"""

from dataclasses import dataclass

from headway.config.roles import Role
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.question import Question
from headway.routing.scans import requests_in


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoad:
    """Prefers the least loaded."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in (0, 1]."""
        if question.role is Role.PREFILL:
            load = question.column(Column.PREFILL_TOKENS)
        else:
            load = requests_at(question)
        load += 1.0
        score: FloatArray = 1.0 / load
        return score


def requests_at(question: Question) -> FloatArray:
    """Requests at each candidate or coming to it, those of others included, f8[C]."""
    return requests_in(question.know.fleet.table, question.slots)
