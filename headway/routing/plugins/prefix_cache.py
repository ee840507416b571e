"""`prefix-cache-scorer`: the more of the prompt is cached, the better.

    score = cached prompt tokens / prompt tokens

Cached is an estimate (see `prefix`). Without blocks in the request, without a prefix cache in the engines,
and at decode replicas, which compute no prompt, all scores are 0.
"""

from dataclasses import dataclass

import numpy as np

from headway.config.roles import Role
from headway.routing.fleet import FloatArray
from headway.routing.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCacheScorer:
    """Prefers cached prefixes."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in [0, 1]."""
        if question.role is Role.DECODE:
            return np.zeros(len(question.slots))
        score: FloatArray = question.cached_tokens / question.record.request.input_tokens
        return score
