"""The held requests that a replica may be valid for, compiled: `slo-scorer`'s judgement of every line's head.

An event frees room at one replica, and hundreds of lines may wait. Asking the profile for each head would
take a decision's time for each; this loop has the same forecast and the same headroom, at one replica after
the other, in a fraction of a microsecond a head. It leaves out what only a decision knows, always so that the
head seems to fit: in split pools the other role's part of TTFT beyond the transfer. What is marked is decided
by the profile itself.

Heads that are lost (`held_lines.LOST_TIER`) count where they harm nobody.
"""

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.surfaces import ItlTable, itl_of
from headway.routing.forecast import DECODE_ROLE, PREFILL_ROLE, ROWS, forecast, queue_s
from headway.routing.held_lines import CRITICAL_TIER, LOST_TIER, PLAIN_TIER, HeadRow
from headway.routing.latency import LatencyForecaster
from headway.routing.learned_curves import UNCACHED, corrected_at
from headway.routing.plugins.headroom import CHUNKS, LEAST, SloTerms, candidate_at, missing
from headway.routing.table import FleetRow, FloatArray, SlotArray
from interp.jit import compiled_in_place

HARMLESS = 1e-9
LEAST_WEIGHT, ROUNDING_S = 0.01, 1e-6
"""With these, what is late by the one is lacking more than HARMLESS by the other."""


class HeldTerms(NamedTuple):
    """How held requests are judged at replicas of one role, as in `SloTerms`.

    `role` is its place among the deployment's roles, `role_code` the forecast's. A prompt of n tokens takes
    `transfer_s` + n `transfer_s_per_token` from this role to the next.
    """

    now_s: float
    stay_s: float
    role: int
    role_code: int
    ttft_weight: float
    safety: float
    caution: float
    reserve: float
    patient: bool
    transfer_s: float
    transfer_s_per_token: float


def foresee(  # noqa: PLR0917 - plain figures
    latency: LatencyForecaster,
    table: FloatArray,
    heads: FloatArray,
    slots: SlotArray,
    terms: HeldTerms,
    judged: NDArray[np.bool_],
    rough: bool,
) -> NDArray[np.bool_]:
    """The `judged` heads that wait for this role and that one of `slots` may be valid for, bool[lines].

    `rough`: all but those that would be late for what is at each replica already, in nanoseconds a head.
    """
    marks = np.zeros(heads.shape[1], dtype=np.bool_)
    space = np.zeros(1), np.empty((ROWS, 1)), np.empty(UNCACHED + 1)
    learned = (*latency.curves, latency.evidence.limits(terms.now_s), latency.evidence.freshness.weight)
    for kind in set(table[FleetRow.KIND, slots].tolist()):
        if kind >= 0.0:
            figures = (tuple(terms), *latency.engines[int(kind)], *learned)
            _foresee(table, heads, slots, int(kind), figures, judged, space, rough, marks)
    return marks


@compiled_in_place
def _foresee(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    slots: SlotArray,
    kind: int,
    figures: tuple[Any, ...],
    judged: NDArray[np.bool_],
    space: tuple[FloatArray, FloatArray, FloatArray],
    rough: bool,
    marks: NDArray[np.bool_],
) -> None:
    """Mark heads for the replicas whose profile is `kind`; `rough`: but for those that are late there."""
    terms, chunk = HeldTerms(*figures[0]), figures[3][1]
    cached, rows, inputs = space
    for place in range(len(slots)):
        slot = slots[place]
        if table[FleetRow.KIND, slot] != kind:
            continue
        few = table[FleetRow.PREFILL_TOKENS, slot] <= CHUNKS * chunk
        room = (table[FleetRow.WAITING, slot] == 0.0) | few
        here, soonest_s = slots[place : place + 1], _soonest_s(table, slot, terms, figures)
        for head in range(heads.shape[1]):
            if not judged[head] or marks[head]:
                continue
            if heads[HeadRow.LIVE, head] == 0.0 or heads[HeadRow.ROLE, head] != terms.role:
                continue
            tier = heads[HeadRow.TIER, head]
            if terms.patient and tier != CRITICAL_TIER and not room:
                continue
            if heads[HeadRow.FORCED, head] > 0.0 and table[FleetRow.FORCED, slot] == 0.0:
                marks[head] = True
                continue
            home = heads[HeadRow.HOME, head]
            if home >= 0.0 and home != slot and terms.now_s < heads[HeadRow.HOME_UNTIL_S, head]:
                continue
            if tier != LOST_TIER and heads[HeadRow.TTFT_BY_S, head] < soonest_s:
                continue
            if rough:
                marks[head] = True
                continue
            tokens, output = heads[HeadRow.INPUT_TOKENS, head], heads[HeadRow.OUTPUT_TOKENS, head]
            cached[0] = 0.0
            if home == slot and terms.role_code != DECODE_ROLE:
                cached[0] = heads[HeadRow.CACHED_TOKENS, head]
            asked = ((terms.now_s, tokens, output, terms.stay_s), figures[1], figures[2], figures[3])
            forecast(terms.role_code, table, here, cached, kind, asked, rows)
            further_s = terms.transfer_s + tokens * terms.transfer_s_per_token
            corrected_at(
                terms.role_code,
                table,
                slot,
                cached[0],
                tokens,
                rows,
                further_s,
                figures[4],
                figures[5],
                figures[6],
                figures[7],
                inputs,
            )
            its = _terms_of(heads, head, terms, figures)
            candidate = candidate_at(rows, table, 0, slot, its)
            lacking = missing(candidate, its)
            if its.least_harm:
                lacking -= LEAST + 0.01 * candidate.ttft_s
            marks[head] = candidate.ttft_s < inf and candidate.tpot_s < inf and lacking <= HARMLESS


@compiled_in_place
def _soonest_s(table: FloatArray, slot: int, terms: HeldTerms, figures: tuple[Any, ...]) -> float:
    """No head has its first token there before: the prompts there come first, and a batch has to have room.

    −inf where an idle replica has rules of its own, or TTFT does not count.
    """
    there = (
        table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot] + table[FleetRow.OTHER_REQUESTS, slot]
    )
    if there == 0.0 or terms.ttft_weight < LEAST_WEIGHT:
        return -inf
    before_s, max_batch, limits = 0.0, figures[3][0], figures[6]
    if terms.role_code != DECODE_ROLE:
        before_s += queue_s(table, slot, terms.now_s)
    if terms.role_code != PREFILL_ROLE and there + 1.0 > max_batch:
        before_s += terms.stay_s * (there + 1.0 - max_batch) / there
    # A learned TTFT is no less than the least part of the profile's.
    least = limits[0, limits.shape[1] - 1] if len(figures[4][0]) else 1.0
    return float(terms.now_s + least * before_s - ROUNDING_S)


@compiled_in_place
def _terms_of(heads: FloatArray, head: int, terms: HeldTerms, figures: tuple[Any, ...]) -> SloTerms:
    """The terms of one head; critical ones are judged by the prediction as it is (`slo_scorer`)."""
    tier, ttft_by_s = heads[HeadRow.TIER, head], heads[HeadRow.TTFT_BY_S, head]
    late = tier == LOST_TIER or (tier == CRITICAL_TIER and terms.now_s > heads[HeadRow.HOME_UNTIL_S, head])
    tpot_slo_s = heads[HeadRow.TPOT_SLO_S, head] if terms.role_code != PREFILL_ROLE else inf
    first_itl_s, reserve, critical = 0.0, 0.0, tier == CRITICAL_TIER
    if terms.reserve > 0.0 and tier == PLAIN_TIER:
        context_tokens = heads[HeadRow.INPUT_TOKENS, head] + 0.5 * heads[HeadRow.OUTPUT_TOKENS, head]
        reserve, first_itl_s = terms.reserve, itl_of(ItlTable(*figures[2]), 1.0, context_tokens)
    return SloTerms(
        1.0 if ttft_by_s < inf else inf,
        ttft_by_s - terms.now_s,
        tpot_slo_s,
        terms.ttft_weight,
        0.0,
        1.0 if critical else terms.safety,
        1.0 if critical else terms.safety,
        figures[3][1],
        True,
        late,
        False,
        reserve,
        first_itl_s,
        0.0 if critical else terms.caution,
    )
