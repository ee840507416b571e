"""`kv-cache-utilization-scorer`: the emptier the KV cache, the better.

    score = 1 − usage,   usage = (tokens of those running + tokens that the engine reports beyond) / capacity

Prefill replicas keep no KV; theirs is prompt tokens outstanding / capacity. An unknown capacity (no profile)
counts as an empty cache.
"""

from dataclasses import dataclass

from headway.config.roles import Role
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.question import Question
from headway.routing.scans import free_kv


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheScorer:
    """Prefers empty caches."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in [0, 1]."""
        prefill = question.role is Role.PREFILL
        tokens = Column.PREFILL_TOKENS if prefill else Column.KV_TOKENS
        return free_kv(question.know.fleet.table, int(tokens), question.slots)
