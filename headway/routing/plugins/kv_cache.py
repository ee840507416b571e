"""`kv-cache-utilization-scorer`: the emptier the KV cache, the better.

    score = 1 − usage,   usage = (tokens of those running + tokens that the engine reports beyond) / capacity

Prefill replicas keep no KV; theirs is prompt tokens outstanding / capacity. An unknown capacity (no profile)
counts as an empty cache.
"""

from dataclasses import dataclass

import numpy as np

from headway.config.roles import Role
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheScorer:
    """Prefers empty caches."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in [0, 1]."""
        prefill = question.role is Role.PREFILL
        tokens = question.column(Column.PREFILL_TOKENS if prefill else Column.KV_TOKENS)
        tokens += question.column(Column.OTHER_TOKENS)
        tokens /= question.column(Column.CAPACITY_TOKENS)
        score: FloatArray = 1.0 - np.minimum(tokens, 1.0)
        return score
