"""`capacity-filter`: document 003's pull; only replicas with room for the request's pattern.

    keep ⟺ load + new <= 1,   new = 1 / Capacity(pattern, GPU type, role, SLO)

load is the sum over the requests there that this rule placed. A replica without anything there has room for
any pattern of finite load. Where nothing is known (no profile), new = 1 / max_batch_size. A request without
an SLO is held to the deployment's. No candidate at all that has any capacity: NO_CAPACITY, at once; none with
room: the request waits.
"""

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from headway.routing.question import Question, Refusal
from headway.routing.scans import room_for
from headway.routing.types import ShedReason


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityFilter:
    """Keeps those with room."""

    packs_by_capacity: ClassVar[bool] = True

    def keep(self, question: Question) -> NDArray[np.bool_]:
        """bool[C]"""
        return room_for(question.know.fleet.table, question.slots, new_loads(question))

    def refusal(self, question: Question) -> Refusal:
        """Waiting helps unless no replica has capacity."""
        role = question.role
        if np.isinf(new_loads(question.about(role))).all():
            return Refusal(
                reason=ShedReason.NO_CAPACITY,
                explain=lambda: f"no {role} replica keeps the SLO of {question.pattern}",
                hopeful_until_s=-inf,
            )
        return Refusal(reason=ShedReason.NO_HEADROOM, explain=lambda: f"no {role} replica has room")


def new_loads(question: Question) -> FloatArray:
    """The request's load at each candidate, f8[C]; infinite where it never fits."""
    unknown = 1.0 / question.know.rules.max_batch_size
    kinds = {kind: unknown if load is None else load for kind, load in question.loads().items()}
    if len(kinds) == 1:
        return np.full(len(question.slots), next(iter(kinds.values())))
    return np.array([kinds[int(kind)] for kind in question.column(Column.KIND).tolist()])
