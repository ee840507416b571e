"""`session-affinity-scorer`: back to where the conversation was.

    score = 1 for the replica of the session's latest request in this role, 0 for all others

A request without a session, or whose replica is gone or takes nothing new, scores 0 everywhere.
"""

from dataclasses import dataclass

import numpy as np

from headway.config.roles import Role
from headway.routing.fleet import FloatArray
from headway.routing.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAffinityScorer:
    """Prefers the session's replica."""

    def score(self, question: Question) -> FloatArray:
        """f8[C], 0 or 1."""
        home = question.know.sessions.home(question.record.request.session)
        if home is None:
            return np.zeros(len(question.slots))
        prefill, decode = home
        replica = prefill if question.role is Role.PREFILL else decode
        slot = replica.slot if replica.alive else -1
        return np.where(question.slots == slot, 1.0, 0.0)
