"""Saturated replicas leave the candidates, before a profile sees them (`saturation` has the rule).

    some are saturated      the others are the candidates
    all are                 SATURATED: the request waits in the router's queue, as long as any may
    its patience is over    shed; one that is critical waits on

The degree of a replica is the greatest of its figures in parts of their bounds, and 1 more by its engine's
word: from 1 on it is saturated.
"""

from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.routing.decide.context import Refusal, SchedulingContext
from headway.routing.fleet.saturation import FULL_CACHES, SaturationLimits
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.predict.forecast import queue_s
from headway.routing.types import ShedReason
from interp.jit import compiled_in_place


class SaturationFilter:
    """Drops the saturated candidates of one router."""

    def __init__(self, limits: SaturationLimits) -> None:
        self._limits = limits

    def drop(self, context: SchedulingContext) -> Refusal | None:
        """Take them from the candidates; a refusal where all are saturated. Needs at least one candidate."""
        free = np.empty(len(context.slots), dtype=np.bool_)
        count = mark_free(context.state.fleet.table, context.slots, self._figures(context), free)
        if count == 0:
            return _refusal(context)
        if count < len(free):
            context.restrict(free)
        return None

    def any_free(self, now_s: float, table: FloatArray, slots: SlotArray) -> bool:
        """True if one of `slots` is not saturated for requests that any queue of prompts suits."""
        return bool(is_any_free(table, slots, self._for_any(now_s)))

    def free(self, now_s: float, table: FloatArray, slots: SlotArray) -> SlotArray:
        """Those of `slots` that are not saturated for requests that any queue of prompts suits."""
        marks = np.empty(len(slots), dtype=np.bool_)
        mark_free(table, slots, self._for_any(now_s), marks)
        return slots[marks]

    def _for_any(self, now_s: float) -> tuple[float, float, float, float]:
        batch, waiting, _ = self._limits
        return now_s, batch, waiting, inf

    def _figures(self, context: SchedulingContext) -> tuple[float, float, float, float]:
        batch, waiting, longest_s = self._limits
        ttft_s = context.record.slo.ttft_s
        return context.now_s, batch, waiting, ttft_s if longest_s < ttft_s < inf else longest_s


def _refusal(context: SchedulingContext) -> Refusal:
    """It waits as long as any may; by predictions, as long as an idle replica could keep its SLO."""
    record, role, until_s = context.record, context.role, inf
    if record.judged and not record.request.critical and isfinite(context.alone_s[0]):
        until_s = context.hopeful_until_s
    return Refusal(
        reason=ShedReason.SATURATED,
        explain=lambda: f"every {role} replica is saturated",
        hopeful_until_s=until_s,
    )


@compiled_in_place
def degree(table: FloatArray, slot: int, figures: tuple[Any, ...]) -> float:
    """How saturated a replica is; `figures` are the time, and `SaturationLimits`, plain."""
    now_s, batch, most_waiting, longest_s = figures
    waiting = table[FleetRow.WAITING, slot]
    there = table[FleetRow.RUNNING, slot] + max(waiting, table[FleetRow.COMING, slot])
    greatest = max(
        there / (batch + most_waiting),
        waiting / most_waiting,
        queue_s(table, slot, now_s) / longest_s,
        table[FleetRow.RESERVED_TOKENS, slot] / (FULL_CACHES * table[FleetRow.CAPACITY_TOKENS, slot]),
    )
    return float(greatest + 1.0 if now_s < table[FleetRow.SATURATED_UNTIL_S, slot] else greatest)


@compiled_in_place
def mark_free(table: FloatArray, slots: SlotArray, figures: tuple[Any, ...], free: NDArray[np.bool_]) -> int:
    """Mark in bool[C] those that are not saturated; their number."""
    count = 0
    for place in range(len(slots)):
        free[place] = degree(table, slots[place], figures) < 1.0
        count += free[place]
    return count


@compiled_in_place
def is_any_free(table: FloatArray, slots: SlotArray, figures: tuple[Any, ...]) -> bool:
    """True if one of `slots` is not saturated; ends at the first."""
    free = False
    for slot in slots:
        free = degree(table, slot, figures) < 1.0
        if free:
            break
    return free
