"""The held requests that a replica may be valid for, compiled: `slo-scorer`'s judgement of every line's head.

An event frees room at one replica, and hundreds of lines may wait. Asking the profile for each head would
take a decision's time for each; this loop has the same forecast and the same headroom, at one replica after
the other, in a fraction of a microsecond a head. It leaves out what only a decision knows, always so that the
head seems to fit: in split pools it has the least of the other role's part of TTFT. What is marked is decided
by the profile itself.

Heads that are lost (`heads.LOST_TIER`) count where they harm nobody.
"""

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.config import Role
from headway.engine.surfaces import ItlTable, itl_of
from headway.routing.decide.context import RoutingState
from headway.routing.decide.headroom import CHUNKS, LEAST, SloTerms, candidate_at, missing
from headway.routing.fleet.table import DECODE_ROLE, PREFILL_ROLE, ROLE_CODES, FleetRow, FloatArray, SlotArray
from headway.routing.predict.forecast import ROWS, forecast, queue_s
from headway.routing.predict.learned_curves import UNCACHED, corrected_at
from headway.routing.queue.heads import (
    CRITICAL_TIER,
    LEADING,
    LOST_TIER,
    PLAIN_TIER,
    HeadRow,
    ahead_of,
    enter_leading,
    leads,
    waits_for,
)
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
    others_stay_s: float
    role: int
    role_code: int
    ttft_weight: float
    safety: float
    caution: float
    reserve: float
    patient: bool
    narrow: bool
    several: bool
    transfer_s: float
    transfer_s_per_token: float


def foresee(
    state: RoutingState,
    heads: FloatArray,
    slots: SlotArray,
    terms: HeldTerms,
    open_lines: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """The open heads that wait for this role and that one of `slots` may be valid for, bool[lines].

    At least the first of them. Lines of whose heads that is not so are closed.
    """
    latency, table = state.latency, state.fleet.table
    marks = np.zeros(heads.shape[1], dtype=np.bool_)
    ranks = state.shares.table, state.shares.ahead_from
    learned = (*latency.curves, latency.evidence.limits(terms.now_s), latency.evidence.freshness.weight)
    leading = np.empty(LEADING, np.int64), np.empty(LEADING, np.int64)
    space = np.zeros(1), np.empty((ROWS, 1)), np.empty(UNCACHED + 1), np.empty(len(slots))
    of_role = state.fleet.ready_kinds(state.roles[terms.role])
    there = (
        of_role if len(of_role) == 1 else {int(kind) for kind in table[FleetRow.KIND].take(slots).tolist()}
    )
    kinds = [kind for kind in there if kind >= 0]
    if not kinds:
        open_lines &= heads[HeadRow.ROLE] != terms.role
    of_kind = [open_lines, *(open_lines.copy() for _ in range(len(kinds) - 1))]
    for kind, still in zip(kinds, of_kind, strict=False):
        figures = (tuple(terms), *latency.engines[kind], *learned)
        _foresee(table, heads, slots, kind, figures, ranks, space, leading, still, marks)
    for still in of_kind[1:]:
        open_lines |= still
    return marks


def between_s(state: RoutingState, now_s: float, role: int) -> tuple[float, float]:
    """The least seconds that the transfer and the other role's replicas add to TTFT, and those a token.

    `role` is in this place among the roles. What was learned of prefill replicas may take from the decode
    replicas' part, too: then nothing is known.
    """
    if len(state.roles) == 1:
        return 0.0, 0.0
    other, rules = state.roles[1 - role], state.rules
    if other is Role.PREFILL and state.latency.learned:
        return 0.0, 0.0
    asked = ROLE_CODES[other], now_s, state.latency.stay_s, float(rules.max_batch_size)
    wait_s = least_wait_s(state.fleet.table, state.fleet.ready(other), *asked)
    return rules.transfer_s(0.0) + wait_s, rules.transfer_s_per_token


@compiled_in_place
def least_wait_s(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, slots: SlotArray, role: int, now_s: float, stay_s: float, max_batch: float
) -> float:
    """The least that a newcomer waits at one of `slots`."""
    least_s = inf
    for slot in slots:
        least_s = min(least_s, wait_s(table, slot, role, now_s, stay_s, max_batch))
        if least_s <= 0.0:
            break
    return float(least_s)


@compiled_in_place
def wait_s(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, slot: int, role: int, now_s: float, stay_s: float, max_batch: float
) -> float:
    """The least that a newcomer waits at a replica: the prompts there come first, and a batch has to have
    room."""
    there = (
        table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot] + table[FleetRow.OTHER_REQUESTS, slot]
    )
    before_s = queue_s(table, slot, now_s) if role != DECODE_ROLE else 0.0
    if role != PREFILL_ROLE and there + 1.0 > max_batch:
        before_s += stay_s * (there + 1.0 - max_batch) / there
    return float(before_s)


@compiled_in_place
def _foresee(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    slots: SlotArray,
    kind: int,
    figures: tuple[Any, ...],
    ranks: tuple[FloatArray, float],
    space: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    leading: tuple[SlotArray, SlotArray],
    still: NDArray[np.bool_],
    marks: NDArray[np.bool_],
) -> None:
    """Mark heads for the replicas whose profile is `kind`; those that have no room there are open no more.

    Most often one of those that lead has room, and the first of them is enough: all others are judged only
    where none has.
    """
    terms, soonest_s, found = HeldTerms(*figures[0]), space[3], False
    for place in range(len(slots)):
        ours = table[FleetRow.KIND, slots[place]] == kind
        soonest_s[place] = _soonest_s(table, slots[place], terms, figures) if ours else inf
    count = _leading(table, heads, slots, figures, ranks, soonest_s, leading, still)
    for place in range(count):
        head = leading[0][place]
        found = still[head] = _has_room(table, heads, head, slots, kind, figures, space)
        marks[head] |= found
        if found:
            break
    # Fewer than might lead are all that may be in time.
    for head in range(0 if found or count < LEADING else heads.shape[1]):
        if still[head] and waits_for(heads, head, terms.role):
            still[head] = _any_in_time(table, heads, head, slots, soonest_s, terms, figures[3][1])
            if still[head]:
                still[head] = _has_room(table, heads, head, slots, kind, figures, space)
                marks[head] |= still[head]


@compiled_in_place
def _leading(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    slots: SlotArray,
    figures: tuple[Any, ...],
    ranks: tuple[FloatArray, float],
    soonest_s: FloatArray,
    leading: tuple[SlotArray, SlotArray],
    still: NDArray[np.bool_],
) -> int:
    """The number of open heads in `leading` then: those next that wait for this role and may be in time.

    Most are late for what is at each replica already, which is told in nanoseconds: they are closed.
    """
    terms, (columns, aheads), found = HeldTerms(*figures[0]), leading, 0
    for head in range(heads.shape[1]):
        if not still[head] or not waits_for(heads, head, terms.role):
            continue
        if found == len(columns):
            ahead = ahead_of(heads, head, *ranks)
            if not leads(heads, head, ahead, columns, aheads, found):
                continue
        still[head] = _any_in_time(table, heads, head, slots, soonest_s, terms, figures[3][1])
        if still[head]:
            ahead = ahead_of(heads, head, *ranks)
            found = enter_leading(heads, head, ahead, columns, aheads, found)
    return found


@compiled_in_place
def _any_in_time(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    head: int,
    slots: SlotArray,
    soonest_s: FloatArray,
    terms: HeldTerms,
    chunk_tokens: float,
) -> bool:
    """False where none of `slots` has room for it in time."""
    found = False
    for place in range(len(slots)):
        found |= _may_be_in_time(table, heads, head, slots[place], soonest_s[place], terms, chunk_tokens)
    return found


@compiled_in_place
def _may_be_in_time(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    head: int,
    slot: int,
    soonest_s: float,
    terms: HeldTerms,
    chunk_tokens: float,
) -> bool:
    """False where this replica has no room for it, or others there come first for too long.

    `soonest_s` is infinite where the replica is not asked about.
    """
    if soonest_s == inf or heads[HeadRow.LIVE, head] == 0.0:
        return False
    begins_soon = _begins_soon(table, slot, chunk_tokens)
    if terms.patient and heads[HeadRow.TIER, head] != CRITICAL_TIER and not begins_soon:
        return False
    if _may_do_harm(table, heads, head, slot, terms):
        return True
    home = heads[HeadRow.HOME, head]
    if home >= 0.0 and home != slot and terms.now_s < heads[HeadRow.HOME_UNTIL_S, head]:
        return False
    in_time = heads[HeadRow.TTFT_BY_S, head] >= soonest_s
    return bool(in_time or (begins_soon and _may_miss(heads, head, terms)))


@compiled_in_place
def _may_miss(heads: FloatArray, head: int, terms: HeldTerms) -> bool:
    """True for one that is lost or, if critical, has waited long: it may go where it harms nobody."""
    tier = heads[HeadRow.TIER, head]
    waited_long = tier == CRITICAL_TIER and terms.now_s > heads[HeadRow.LATE_FROM_S, head]
    return bool(tier == LOST_TIER or waited_long)


@compiled_in_place
def _may_do_harm(table: FloatArray, heads: FloatArray, head: int, slot: int, terms: HeldTerms) -> bool:
    """True for one that has waited as long as it may, where none of these is and all are asked."""
    forced = heads[HeadRow.FORCED, head] > 0.0 and table[FleetRow.FORCED, slot] == 0.0
    return bool(forced and not terms.narrow)


@compiled_in_place
def _begins_soon(table: FloatArray, slot: int, chunk_tokens: float) -> bool:
    """True if a prompt that comes to this replica is begun at once, or nearly so."""
    few = table[FleetRow.PREFILL_TOKENS, slot] <= CHUNKS * chunk_tokens
    return bool(few or table[FleetRow.WAITING, slot] == 0.0)


@compiled_in_place
def _has_room(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    head: int,
    slots: SlotArray,
    kind: int,
    figures: tuple[Any, ...],
    space: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> bool:
    """True where one of `slots` may be valid for a head, by the forecast and its headroom there."""
    terms, (cached, rows, inputs, soonest_s) = HeldTerms(*figures[0]), space
    tokens, output = heads[HeadRow.INPUT_TOKENS, head], heads[HeadRow.OUTPUT_TOKENS, head]
    for place in range(len(slots)):
        slot = slots[place]
        if not _may_be_in_time(table, heads, head, slot, soonest_s[place], terms, figures[3][1]):
            continue
        if _may_do_harm(table, heads, head, slot, terms):
            return True
        cached[0] = 0.0
        if heads[HeadRow.HOME, head] == slot and terms.role_code != DECODE_ROLE:
            cached[0] = heads[HeadRow.CACHED_TOKENS, head]
        asked = (
            (terms.now_s, tokens, output, terms.stay_s, terms.others_stay_s),
            figures[1],
            figures[2],
            figures[3],
        )
        forecast(terms.role_code, table, slots[place : place + 1], cached, kind, asked, rows)
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
        late = _may_miss(heads, head, terms) and _begins_soon(table, slot, figures[3][1])
        for lenient in (late, False):
            its = _terms_of(heads, head, terms, figures, lenient)
            candidate = candidate_at(rows, table, 0, slot, its)
            lacking = missing(candidate, its)
            if its.least_harm:
                lacking -= LEAST + 0.01 * candidate.ttft_s
            if candidate.ttft_s < inf and candidate.tpot_s < inf and lacking <= HARMLESS:
                return True
            if not lenient:
                break
    return False


@compiled_in_place
def _soonest_s(table: FloatArray, slot: int, terms: HeldTerms, figures: tuple[Any, ...]) -> float:
    """No head has its first token there before: others come first, there and at the other role's replicas.

    −inf where an idle replica has rules of its own, or TTFT does not count.
    """
    there = table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot] + table[FleetRow.WAITING, slot]
    if there + table[FleetRow.OTHER_REQUESTS, slot] == 0.0 or terms.ttft_weight < LEAST_WEIGHT:
        return -inf
    before_s = terms.transfer_s + wait_s(
        table, slot, terms.role_code, terms.now_s, terms.stay_s, figures[3][0]
    )
    limits = figures[6]
    # A learned TTFT is no less than the least part of the profile's.
    least = limits[0, limits.shape[1] - 1] if len(figures[4][0]) else 1.0
    return float(terms.now_s + least * before_s - ROUNDING_S)


@compiled_in_place
def _terms_of(
    heads: FloatArray, head: int, terms: HeldTerms, figures: tuple[Any, ...], late: bool
) -> SloTerms:
    """The terms of one head, where it may miss its own SLO if it is `late`.

    Critical ones that may not are judged by the prediction as it is, where there are no several tenants
    (`slo_scorer`).
    """
    tier, ttft_by_s = heads[HeadRow.TIER, head], heads[HeadRow.TTFT_BY_S, head]
    tpot_slo_s = heads[HeadRow.TPOT_SLO_S, head] if terms.role_code != PREFILL_ROLE else inf
    first_itl_s, reserve, nominal = 0.0, 0.0, tier == CRITICAL_TIER and not (terms.several or late)
    if terms.reserve > 0.0 and tier == PLAIN_TIER:
        context_tokens = heads[HeadRow.INPUT_TOKENS, head] + 0.5 * heads[HeadRow.OUTPUT_TOKENS, head]
        reserve, first_itl_s = terms.reserve, itl_of(ItlTable(*figures[2]), 1.0, context_tokens)
    return SloTerms(
        1.0 if ttft_by_s < inf else inf,
        ttft_by_s - terms.now_s,
        tpot_slo_s,
        terms.ttft_weight,
        0.0,
        1.0 if nominal else terms.safety,
        1.0 if nominal else terms.safety,
        figures[3][1],
        True,
        late,
        False,
        reserve,
        first_itl_s,
        0.0 if nominal else terms.caution,
    )
