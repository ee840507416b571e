"""`bin-pack`: fill one replica before the next.

    fullness = max(requests / max_batch_size, reserved KV tokens / KV capacity, pattern load)
    score    = (1 + fullness) / 2       with room: one more request and its tokens fit
               1 / (2 (1 + fullness))   without: after all that have room, the emptier the better

Prefill replicas keep no KV; theirs is prompt tokens outstanding / KV capacity. An unknown capacity (no
profile) leaves the batch limit alone.
"""

from dataclasses import dataclass

import numpy as np

from headway.config.roles import Role
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.plugins.least_load import requests_at
from headway.routing.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class BinPack:
    """Prefers the fullest that has room."""

    def score(self, question: Question) -> FloatArray:
        """f8[C] in (0, 1]."""
        record, prefill = question.record, question.role is Role.PREFILL
        requests, capacity = requests_at(question), question.column(Column.CAPACITY_TOKENS)
        tokens = question.column(Column.PREFILL_TOKENS if prefill else Column.RESERVED_TOKENS)
        limit = float(question.know.rules.max_batch_size)
        need = record.request.input_tokens if prefill else record.need_tokens
        room = (requests + 1.0 <= limit) & (tokens + need <= capacity)
        fullness = np.maximum(requests / limit, tokens / capacity)
        fullness = np.minimum(np.maximum(fullness, question.column(Column.LOAD)), 1.0)
        return np.where(room, 0.5 * (1.0 + fullness), 0.5 / (1.0 + fullness))
