"""What a request may demand of a replica, and held requests judged at the replicas that became free.

Two questions are answered by the same judgement, the forecast of `predict` and the headroom of `headroom`:

    where may this request go                        one request, all candidates (`slo_scorer`)
    which of those that wait may this replica take   all heads of lines, few replicas (`judge_heads`)

`DEMANDS` has, for each class of requests and each situation, the demands that a replica may meet, in order:
a request goes where the first of them is met that any replica meets. A request with none that is met waits,
or is shed.

`judge_heads` knows less than a decision does: in split pools it has of the other role's part of TTFT the
transfer and the least wait there. A head that it marks in vain costs a decision.
"""

from enum import IntEnum, IntFlag
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.config import Role
from headway.engine.surfaces import ItlTable, itl_of
from headway.routing.decide.context import RoutingState
from headway.routing.decide.headroom import LEAST, SloTerms, begins_soon, candidate_at, missing
from headway.routing.fleet.table import DECODE_ROLE, PREFILL_ROLE, ROLE_CODES, FleetRow, FloatArray, SlotArray
from headway.routing.predict.forecast import ROWS, ForecastRow, forecast, queue_s
from headway.routing.predict.learned_curves import UNCACHED, correct_at
from headway.routing.queue.heads import LOST_TIER, HeadRow, Marks, RequestClass, ahead_of, precedes, waits_for
from interp.jit import compiled_in_place

HARMLESS_SHARE = 1e-9
"""What others may lose of their SLOs where nothing is lost: rounding."""

LEAST_WEIGHT, ROUNDING_S = 0.01, 1e-6
"""With these, what is late by `soonest_s` is lacking more than HARMLESS_SHARE by the headroom."""

TTFT_S, TPOT_S = int(ForecastRow.TTFT_S), int(ForecastRow.TPOT_S)


class Demand(IntFlag):
    """What is demanded of a replica."""

    WITH_MARGIN = 1
    """It keeps every SLO, the newcomer's and those of requests there, with the margin of predictions."""
    AS_PREDICTED = 2
    """The same by the predictions as they are. The margin is there so that promises are kept to those that
    could wait or go elsewhere."""
    HARMLESS = 4
    """It begins soon, and no other request loses its SLO."""
    ROOM = 8
    """It begins soon, whatever it costs others; one such request at a time."""
    ANYWHERE = 16
    """Any, the least bad first."""


class Situation(IntEnum):
    """How far a request's SLO can still be kept."""

    HOPEFUL = 0
    """An idle replica would keep it."""
    LATE = 1
    """Likewise; it is critical, and half of the time is over in which one would."""
    LOST = 2
    """Not even an idle replica would."""
    FORCED = 3
    """It has waited as long as a request may, and waits on."""


M, P = int(Demand.WITH_MARGIN), int(Demand.AS_PREDICTED)
H, R = int(Demand.HARMLESS), int(Demand.ROOM)
DEMANDS: NDArray[np.int64] = np.array(
    [
        # HOPEFUL  LATE       LOST   FORCED
        [M,        M,         M,     M],           # NAMES_SLO
        [M,        M | H,     M | H, M | H],       # NAMES_NONE
        [M | P,    M | P | H, M | H, M | H | R],   # CRITICAL
        [M,        M | H,     M | H, M | H | R],   # CRITICAL_AMONG_TENANTS
    ]
)  # fmt: skip
"""i8[RequestClass, Situation]. Where there are several tenants the margin stays, since those that could wait
may be another's: no tenant buys room by calling its requests critical."""

HOPEFUL, LATE, LOST, FORCED = (int(each) for each in Situation)
CRITICAL, CRITICAL_AMONG = int(RequestClass.CRITICAL), int(RequestClass.CRITICAL_AMONG_TENANTS)


class HeldTerms(NamedTuple):
    """How held requests are judged at replicas of one role.

    `role` is its place among the deployment's roles, `role_code` the forecast's. `some`: there are more
    replicas than these. The other role adds `transfer_s` + n `transfer_s_per_token` for a prompt of n tokens.
    The others are those of `SloTerms` and `forecast.Newcomer`.
    """

    now_s: float
    stay_s: float
    others_stay_s: float
    role: int
    role_code: int
    ttft_weight: float
    caution: float
    reserve: float
    some: bool
    several: bool
    transfer_s: float
    transfer_s_per_token: float


def fitting(
    state: RoutingState, heads: FloatArray, slots: SlotArray, terms: HeldTerms, open_lines: Marks
) -> Marks:
    """The open lines but for those whose heads wait for another role, or for which none of `slots` meets a
    demand, bool[lines]. For the first of them by rank one does; those after it are not judged."""
    latency, table = state.latency, state.fleet.table
    found: Marks = np.zeros(heads.shape[1], dtype=np.bool_)
    shares = state.shares.table, state.shares.ahead_from
    space = np.empty((ROWS, 1)), np.empty(UNCACHED + 1), np.empty(1), np.empty(len(slots))
    learned = (
        terms.transfer_s,
        *latency.curves,
        latency.evidence.limits(terms.now_s),
        latency.evidence.freshness.weight,
    )
    for kind in {int(kind) for kind in table[FleetRow.KIND].take(slots).tolist()}:
        if kind >= 0:
            figures = (tuple(terms), *latency.engines[kind], learned)
            marks = open_lines.copy()
            judge_heads(table, heads, slots, kind, figures, shares, space, marks)
            found |= marks
    return found


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
    """The least that a newcomer waits at one of `slots`: prompts come first, and a batch has to have room."""
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
    """The least that a newcomer waits at a replica."""
    there = table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot]
    there += table[FleetRow.OTHER_REQUESTS, slot]
    before_s = queue_s(table, slot, now_s) if role != DECODE_ROLE else 0.0
    if role != PREFILL_ROLE and there + 1.0 > max_batch:
        before_s += stay_s * (there + 1.0 - max_batch) / there
    return float(before_s)


@compiled_in_place
def soonest_s(table: FloatArray, slot: int, figures: tuple[Any, ...]) -> float:
    """No head that is to keep its SLO has its first token there before; told in nanoseconds, for all of them.

    −inf where an idle replica has rules of its own, or TTFT does not count.
    """
    terms, limits = HeldTerms(*figures[0]), figures[4][3]
    there = table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot] + table[FleetRow.WAITING, slot]
    if there + table[FleetRow.OTHER_REQUESTS, slot] == 0.0 or terms.ttft_weight < LEAST_WEIGHT:
        return -inf
    before_s = terms.transfer_s
    before_s += wait_s(table, slot, terms.role_code, terms.now_s, terms.stay_s, figures[3][0])
    # A learned TTFT is no less than the least part of the profile's.
    least = limits[0, limits.shape[1] - 1] if len(figures[4][1]) else 1.0
    return float(terms.now_s + least * before_s - ROUNDING_S)


@compiled_in_place
def judge_heads(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    slots: SlotArray,
    kind: int,
    figures: tuple[Any, ...],
    shares: tuple[FloatArray, float],
    space: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
    marks: Marks,
) -> None:
    """Unmark heads in bool[lines] for which no replica in `slots` whose profile is `kind` meets a demand, up
    to the first by rank for which one does.

    `figures`: `HeldTerms`, the engine's (`forecast.PlainFigures`), and those of `learned_curves.correct_at`.
    `space` is written anew: f8[ROWS, 1], f8[8], f8[1], f8[slots].
    """
    terms, chunk_tokens = HeldTerms(*figures[0]), figures[3][1]
    best, best_ahead, soonest = -1, 0, space[3]
    for place in range(len(slots)):
        ours = table[FleetRow.KIND, slots[place]] == kind
        soonest[place] = soonest_s(table, slots[place], figures) if ours else inf
    for head in range(heads.shape[1]):
        if not marks[head]:
            continue
        marks[head] = False
        if heads[HeadRow.LIVE, head] == 0.0 or not waits_for(heads, head, terms.role):
            continue
        first = _asked_from(table, heads, head, slots, 0, soonest, terms, chunk_tokens)
        if first == len(slots):
            continue
        ahead = ahead_of(heads, head, *shares)
        if best >= 0 and not precedes(heads, head, ahead, best, best_ahead):
            marks[head] = True
            continue
        reserve = 0.0 if terms.several and ahead == 0 else terms.reserve
        demands, asks = demands_of(heads, head, terms), _asks(heads, head, figures, reserve)
        while first < len(slots):
            slot = slots[first]
            harm = _may_harm(table, slot, demands, terms)
            if not harm:
                _forecast_at(table, heads, head, slots[first : first + 1], kind, figures, space)
            if harm or meets(space[0], table, slot, demands, asks):
                marks[head], best, best_ahead = True, head, ahead
                break
            first = _asked_from(table, heads, head, slots, first + 1, soonest, terms, chunk_tokens)


@compiled_in_place
def _asked_from(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    head: int,
    slots: SlotArray,
    place: int,
    soonest: FloatArray,
    terms: HeldTerms,
    chunk_tokens: float,
) -> int:
    """The first place from `place` on whose replica is worth a forecast for the head; len(slots) without one.

    Most heads are late for what is at a replica already, which is told in nanoseconds.
    """
    while place < len(slots):
        slot, asked = slots[place], soonest[place] < inf
        if asked and heads[HeadRow.TTFT_BY_S, head] < soonest[place]:
            demands = demands_of(heads, head, terms)
            asked = demands & H and begins_soon(table, slot, chunk_tokens)
            asked = asked or _may_harm(table, slot, demands, terms)
        if asked and not _keeps_away(table, heads, head, slot, terms, chunk_tokens):
            break
        place += 1
    return place


@compiled_in_place
def _may_harm(table: FloatArray, slot: int, demands: int, terms: HeldTerms) -> bool:
    """True if a replica takes a head whatever it costs others there."""
    return bool(demands & R and not terms.some and table[FleetRow.FORCED, slot] == 0.0)


@compiled_in_place
def _forecast_at(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    heads: FloatArray,
    head: int,
    at: SlotArray,
    kind: int,
    figures: tuple[Any, ...],
    space: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> None:
    """The corrected forecast of a head at the one replica in `at`, into the first of `space`."""
    terms, (rows, inputs, cached, _) = HeldTerms(*figures[0]), space
    tokens, output = heads[HeadRow.INPUT_TOKENS, head], heads[HeadRow.OUTPUT_TOKENS, head]
    cached[0] = 0.0
    if heads[HeadRow.HOME, head] == at[0] and terms.role_code != DECODE_ROLE:
        cached[0] = heads[HeadRow.CACHED_TOKENS, head]
    newcomer = terms.now_s, tokens, output, terms.stay_s, terms.others_stay_s
    asked = newcomer, figures[1], figures[2], figures[3]
    forecast(terms.role_code, table, at, cached, kind, asked, rows)
    rows[TTFT_S, 0] += tokens * terms.transfer_s_per_token
    correct_at(terms.role_code, table, at[0], cached[0], tokens, rows, 0, figures[4], inputs)


@compiled_in_place
def demands_of(heads: FloatArray, head: int, terms: HeldTerms) -> int:
    """The demands of a head, a `Demand`."""
    of_class, situation = int(heads[HeadRow.CLASS, head]), HOPEFUL
    if of_class == CRITICAL and terms.several:
        of_class = CRITICAL_AMONG
    if heads[HeadRow.FORCED, head] > 0.0:
        situation = FORCED
    elif heads[HeadRow.TIER, head] == LOST_TIER:
        situation = LOST
    elif terms.now_s > heads[HeadRow.LATE_FROM_S, head]:
        situation = LATE
    return int(DEMANDS[of_class, situation])


@compiled_in_place
def meets(rows: FloatArray, table: FloatArray, slot: int, demands: int, asks: SloTerms) -> bool:
    """True if the replica with these `rows` f8[ROWS, 1] meets one of `demands`, all but ROOM."""
    if not (rows[TTFT_S, 0] < inf and rows[TPOT_S, 0] < inf):
        return False
    if demands & H:
        terms = _with(asks, asks.caution, True)
        candidate = candidate_at(rows, table, 0, slot, terms)
        if candidate.room and missing(candidate, terms) - LEAST - 0.01 * candidate.ttft_s <= HARMLESS_SHARE:
            return True
    terms = _with(asks, 0.0 if demands & P else asks.caution, False)
    return bool(missing(candidate_at(rows, table, 0, slot, terms), terms) <= 0.0)


@compiled_in_place
def _with(asks: SloTerms, caution: float, least_harm: bool) -> SloTerms:
    """The terms with these two."""
    return SloTerms(
        asks.ttft_s,
        asks.left_s,
        asks.tpot_s,
        asks.ttft_weight,
        asks.chunk_tokens,
        asks.safety,
        caution,
        least_harm,
        asks.patient,
        asks.reserve,
        asks.first_itl_s,
    )


@compiled_in_place
def _keeps_away(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, heads: FloatArray, head: int, slot: int, terms: HeldTerms, chunk_tokens: float
) -> bool:
    """True while a head waits for the replica that has most of its prompt, which this one is not, or, if it
    is not critical, for a shorter queue."""
    home, critical = heads[HeadRow.HOME, head], heads[HeadRow.CLASS, head] >= CRITICAL
    if home >= 0.0 and home != slot and terms.now_s < heads[HeadRow.HOME_UNTIL_S, head]:
        return True
    comes = critical or terms.role_code == DECODE_ROLE or begins_soon(table, slot, chunk_tokens)
    return not comes


@compiled_in_place
def _asks(heads: FloatArray, head: int, figures: tuple[Any, ...], reserve: float) -> SloTerms:
    """The terms of a head; it leaves room for `reserve` sequences if it is not critical. The TTFT SLO itself
    only scales what is missing."""
    terms, first_itl_s = HeldTerms(*figures[0]), 0.0
    by_s = heads[HeadRow.TTFT_BY_S, head]
    tpot_s = heads[HeadRow.TPOT_SLO_S, head] if terms.role_code != PREFILL_ROLE else inf
    if heads[HeadRow.CLASS, head] >= CRITICAL:
        reserve = 0.0
    if reserve > 0.0:
        context_tokens = heads[HeadRow.INPUT_TOKENS, head] + 0.5 * heads[HeadRow.OUTPUT_TOKENS, head]
        first_itl_s = itl_of(ItlTable(*figures[2]), 1.0, context_tokens)
    return SloTerms(
        1.0 if by_s < inf else inf,
        by_s - terms.now_s,
        tpot_s,
        terms.ttft_weight,
        figures[3][1],
        1.0,
        terms.caution,
        False,
        False,
        reserve,
        first_itl_s,
    )
