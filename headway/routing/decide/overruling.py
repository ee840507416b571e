"""Requests that go to a replica although predictions refuse them: so far as outcomes justify it (`evidence`).

Two reasons to doubt a refusal:

    extrapolation   the learned prediction refuses, but by the prior × idle ratio the request would be valid
    no evidence     even an idle replica is thought to miss, and none has been measured just now; it is asked
                    where the SLO is not beyond all bounds of a ratio

A request goes to the best replica of the first, or to the idle one that is quickest by the prior. Others are
not harmed as far as can be told: by the prior × idle ratio their SLOs are kept.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headway.routing.decide.context import RoutingState, SchedulingContext
from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.predict.evidence import MOST_RATIO
from headway.routing.predict.forecast import ForecastRow, any_idle, is_idle
from interp.jit import compiled


def may_overrule(state: RoutingState, now_s: float, freed: Sequence[SlotArray]) -> bool:
    """True if a held request that predictions refuse may go to one of the `freed` slots of each role all the
    same. Only while outcomes are lacking is each asked about, and not only those that predictions let pass.
    """
    if not state.latency.evidence.freshness.doubtful or not _may_probe(state, now_s):
        return False
    table, roles = state.fleet.table, zip(state.roles, freed, strict=True)
    # A request is asked about at the slots of one role, and at all replicas of another.
    return state.latency.learned or any(
        any_idle(table, slots if len(slots) else state.fleet.ready(role)) for role, slots in roles
    )


def _may_probe(state: RoutingState, now_s: float) -> bool:
    """True if a probe may go to a replica of some kind now."""
    return any(state.latency.evidence.probes.may(now_s, kind) for kind in range(len(state.latency.engines)))


def overruled(context: SchedulingContext, judged: Callable[[FloatArray], FloatArray]) -> int | None:
    """The place of the candidate that takes a request which all refuse; None if it stays refused.

    `judged(rows)` is the profile's verdict, f8[C], by other rows of a forecast: above 0 where it is valid.
    """
    latency, now_s, record = context.state.latency, context.now_s, context.record
    if not np.isfinite(context.prior[ForecastRow.TTFT_S]).any():
        return None
    latency.refused(now_s, newcomer=context.waited_s <= 0.0)
    if not _may_probe(context.state, now_s):
        return None
    place, idle = _justified(context, judged) if latency.learned else None, False
    if place is None:
        place, idle = _unmeasured(context), True
    if place is None:
        return None
    kind = int(context.state.fleet.table[FleetRow.KIND, context.slots[place]])
    if not latency.evidence.probes.may(now_s, kind):
        return None
    latency.evidence.probes.chosen(now_s, kind, record, idle=idle)
    return place


def _justified(context: SchedulingContext, judged: Callable[[FloatArray], FloatArray]) -> int | None:
    """The best place where the prior × idle ratio makes the request valid; a refusal for safety's sake, where
    the learned prediction itself keeps all SLOs, stands."""
    rows = context.state.latency.supposed(context, context.prior, context.state.fleet.table)
    verdict = judged(rows)
    place = int(np.where(np.isnan(verdict), -1.0, verdict).argmax())
    return place if verdict[place] > 0.0 and _misses(context, place) else None


def _misses(context: SchedulingContext, place: int) -> bool:
    """True if an SLO is lost by the learned prediction itself, the newcomer's or that of one there."""
    rows, slo = context.forecast[:, place], context.record.slo
    tightest_s = context.state.fleet.table[FleetRow.TPOT_SLO_S, context.slots[place]]
    return bool(
        rows[ForecastRow.TTFT_S] > slo.ttft_s - context.waited_s
        or rows[ForecastRow.TPOT_S] > slo.tpot_s
        or rows[ForecastRow.OTHERS_TPOT_S] > tightest_s
    )


def _unmeasured(context: SchedulingContext) -> int | None:
    """The idle place that is quickest by the prior, where nothing says yet how quick it is.

    Without it 8 % of the requests are tried in vain while all miss.
    """
    latency, slo = context.state.latency, context.record.slo
    kinds = range(len(latency.engines))
    unknown = [not latency.evidence.justified(kind, context.now_s) for kind in kinds]
    if not any(unknown):
        return None
    most = MOST_RATIO * slo.ttft_s, MOST_RATIO * slo.tpot_s
    place = quickest_idle(context.state.fleet.table, context.slots, context.prior, most, np.array(unknown))
    return place if place >= 0 else None


@compiled
def quickest_idle(
    table: FloatArray,
    slots: SlotArray,
    rows: FloatArray,
    most: tuple[float, float],
    unknown: NDArray[np.bool_],
) -> int:
    """The place of least TTFT in `rows` among idle replicas of kinds that are `unknown`, −1 without one.

    Its TTFT and TPOT are no more than `most`.
    """
    best, best_s = -1, np.inf
    for place in range(len(slots)):
        slot = slots[place]
        kind = int(table[FleetRow.KIND, slot])
        if not is_idle(table, slot) or kind < 0 or not unknown[kind]:
            continue
        ttft_s = rows[ForecastRow.TTFT_S, place]
        if ttft_s <= most[0] and rows[ForecastRow.TPOT_S, place] <= most[1] and ttft_s < best_s:
            best, best_s = place, ttft_s
    return best
