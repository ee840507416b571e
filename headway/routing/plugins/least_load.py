"""`least-load`: the less outstanding, the better.

    score = 1 / (1 + load),   load by `headway.routing.least_load`, prompt tokens without cached ones

An engine's report adds requests that are not ours. Without a report ours count alone.
"""

from dataclasses import dataclass

from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.least_load import counts_prompt_tokens
from headway.routing.question import Question
from headway.routing.scans import requests_in


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoad:
    """Prefers the least loaded."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in (0, 1]."""
        by_tokens = counts_prompt_tokens(question.role)
        load = question.column(Column.PREFILL_TOKENS) if by_tokens else requests_at(question)
        load += 1.0
        score: FloatArray = 1.0 / load
        return score


def requests_at(question: Question) -> FloatArray:
    """Requests at each candidate or coming to it, those of others included, f8[C]."""
    return requests_in(question.know.fleet.table, question.slots)
