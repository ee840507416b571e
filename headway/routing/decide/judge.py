"""What waits and what passes: which of the held requests a replica that became free may take.

The forecast of `predict` and the headroom of `headroom` answer two questions alike:

    where may this request go                        one request, all candidates (`slo_scorer`)
    which of those that wait may this replica take   all lines, few replicas (`judge_heads`)

A request is in one of three states, and a replica takes it accordingly:

    hopeful    an idle replica would keep its SLO. It goes where every SLO is kept, its own and those of the
               requests there, with the margin of predictions. Critical requests may no more than others: to
               place them without the margin cost a third of the goodput of a class that was all critical
    lost       not even an idle replica would. One that names an SLO is shed. One that is critical, or names
               none, is served late, behind all that are hopeful: where it has been quiet, no SLO is lost and
               half of the room stays free for those that come next (`headroom.LATE_ROOM`)
    overdue    it has waited for `queue.max_wait_s`. A critical one goes to a replica that has taken none like
               it for long (`placing.OVERDUE_PART`), whatever that costs others; else it is shed as all others

Who is next: the hopeful in the order of `held_lines`, so that as many as possible are kept. A line holds
requests that cost alike, the first to start at its head. In overload a head has always waited until hardly
anything of its SLO is left: too late for a replica with a batch, but not for an idle one, of which there is
none. Were those behind it to wait until it is given up, each would become as late, and replicas would stand
empty beside a full queue (congestion collapse: of equal requests a tenth was kept at three times the
capacity). So a head that only comes too late stands for the first behind it that does not, with SPARE: of
requests that cost alike any that can be saved is as good as another, and none of the lost can be.

Nothing is lost by that where requests differ: lines of unlike requests compete by rank as before, and the
head itself goes wherever it is still in time.

`judge_heads` knows less than a decision does: in split pools it has of the other role's part of TTFT the
transfer and the least wait there. A head that it marks in vain costs a decision, which says how much later
one has to be due (`Refusal.late_s`).
"""

from math import inf
from typing import Any, NamedTuple

import numpy as np

from headway.config import Role
from headway.routing.decide.context import RoutingState
from headway.routing.decide.headroom import SloTerms, begins_soon, candidate_at, is_harmless, late_by, missing
from headway.routing.fleet.table import DECODE_ROLE, PREFILL_ROLE, ROLE_CODES, FleetRow, FloatArray, SlotArray
from headway.routing.predict.forecast import ROWS, ForecastRow, forecast, is_idle, queue_s, there_at
from headway.routing.predict.learned_curves import UNCACHED, correct_at
from headway.routing.queue.heads import ANY_ROLE, HeadRow, LineSearch, Marks, RequestClass, ahead_of, precedes
from interp.jit import compiled_in_place

ROUNDING_S = 1e-6
"""What is late by that is late by `headroom`, too."""

TTFT_S, TPOT_S = int(ForecastRow.TTFT_S), int(ForecastRow.TPOT_S)


NAMES_SLO, CRITICAL = int(RequestClass.NAMES_SLO), int(RequestClass.CRITICAL)


class HeldTerms(NamedTuple):
    """How held requests are judged at replicas of one role.

    `role` is its place among the deployment's roles, `role_code` the forecast's, `profile` the place of the
    requests' profile among those of the queue. The other role adds
    `transfer_s` + n `transfer_s_per_token` for a prompt of n tokens. A replica has so many `places`.
    `several` tenants are known. The others are those of `SloTerms` and `forecast.Newcomer`.
    """

    now_s: float
    stay_s: float
    role: int
    profile: int
    role_code: int
    places: float
    caution: float
    transfer_s: float
    transfer_s_per_token: float
    reserve: float
    several: bool


def look_through(  # noqa: PLR0917 - plain figures
    state: RoutingState,
    now_s: float,
    heads: FloatArray,
    asked: tuple[int, int],
    slots: SlotArray,
    search: LineSearch,
) -> None:
    """Search among the lines that wait for a role, of a profile (`asked`: their places), for one that `slots`
    may take."""
    role, profile = asked
    latency, table, of_role = state.latency, state.fleet.table, state.roles[role]
    slots = not_queued(state, of_role, slots)
    if not len(slots):
        return
    transfer_s, transfer_s_per_token = between_s(state, now_s, role)
    weight = latency.evidence.freshness.weight
    terms = HeldTerms(
        now_s=now_s,
        stay_s=latency.stay_s,
        role=role,
        profile=profile,
        role_code=ROLE_CODES[of_role],
        places=places(state, of_role),
        caution=weight,
        transfer_s=transfer_s,
        transfer_s_per_token=transfer_s_per_token,
        reserve=reserve(state, now_s, of_role),
        several=state.shares.several,
    )
    shares = state.shares.table, state.shares.ahead_from
    space = np.empty((ROWS, 1)), np.empty(UNCACHED + 1), np.empty(1), np.empty(len(slots))
    learned = transfer_s, *latency.curves, latency.evidence.limits(now_s), weight
    for kind in {int(kind) for kind in table[FleetRow.KIND].take(slots).tolist()}:
        if kind >= 0:
            figures = (tuple(terms), *latency.engines[kind], learned)
            marks, best = (search.open, search.fits), (search.column, search.late_s)
            best = judge_heads(table, heads, slots, kind, figures, shares, space, marks, best)
            search.column, search.late_s = best


def not_queued(state: RoutingState, role: Role, slots: SlotArray) -> SlotArray:
    """Those of `slots` where a prompt is begun at once, or nearly so: held requests wait for these."""
    marks, chunk_tokens = np.empty(len(slots), dtype=np.bool_), float(state.rules.chunk_tokens)
    mark_soon(state.fleet.table, slots, chunk_tokens, places(state, role), marks)
    return slots[marks]


def places(state: RoutingState, role: Role) -> float:
    """Of the batch of a replica; prefill replicas have none.

    Those of a decode replica count that will be free once a prompt is computed.
    """
    latency, most = state.latency, float(state.rules.max_batch_size)
    if role is Role.DECODE:
        return most * (1.0 + latency.prompt_s / latency.stay_s)
    return inf if role is Role.PREFILL else most


def reserve(state: RoutingState, now_s: float, role: Role) -> float:
    """The sequences that are to find room beside one that is not critical; prefill replicas have no batch."""
    replicas = len(state.fleet.ready(role))
    if role is Role.PREFILL or not replicas:
        return 0.0
    return state.latency.critical.room(now_s, state.latency.stay_s, replicas)


@compiled_in_place
def mark_soon(
    table: FloatArray, slots: SlotArray, chunk_tokens: float, max_batch: float, marks: Marks
) -> None:
    """Mark those in bool[slots]."""
    for place in range(len(slots)):
        marks[place] = begins_soon(table, slots[place], chunk_tokens, max_batch)


def between_s(state: RoutingState, now_s: float, role: int) -> tuple[float, float]:
    """The least seconds that the transfer and the other role's replicas add to TTFT, and those a token;
    infinite where a prompt is begun soon at none of these.

    `role` is in this place among the roles. What was learned of prefill replicas may take from the decode
    replicas' part, too: then nothing is known of the seconds.
    """
    if len(state.roles) == 1:
        return 0.0, 0.0
    other, rules, table = state.roles[1 - role], state.rules, state.fleet.table
    slots, asked = state.fleet.ready(other), (ROLE_CODES[other], now_s, state.latency.stay_s)
    figures = float(rules.chunk_tokens), places(state, other), float(rules.max_batch_size)
    wait_s = least_wait_s(table, slots, *asked, *figures)
    if wait_s < inf and other is Role.PREFILL and state.latency.learned:
        return 0.0, 0.0
    return rules.transfer_s(0.0) + wait_s, rules.transfer_s_per_token


@compiled_in_place
def least_wait_s(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    slots: SlotArray,
    role: int,
    now_s: float,
    stay_s: float,
    chunk_tokens: float,
    places_there: float,
    max_batch: float,
) -> float:
    """The least that a held request waits at one of `slots`: prompts come first, and a batch has to have room
    (`begins_soon`)."""
    least_s = inf
    for slot in slots:
        if begins_soon(table, slot, chunk_tokens, places_there):
            least_s = min(least_s, wait_s(table, slot, role, now_s, stay_s, max_batch))
        if least_s <= 0.0:
            break
    return float(least_s)


@compiled_in_place
def wait_s(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, slot: int, role: int, now_s: float, stay_s: float, max_batch: float
) -> float:
    """The least that a newcomer waits at a replica."""
    there = there_at(table, slot)
    before_s = queue_s(table, slot, now_s) if role != DECODE_ROLE else 0.0
    if role != PREFILL_ROLE and there + 1.0 > max_batch:
        before_s += stay_s * (there + 1.0 - max_batch) / max_batch
    return float(before_s)


@compiled_in_place
def soonest_s(table: FloatArray, slot: int, figures: tuple[Any, ...]) -> float:
    """No head that is to keep its SLO has its first token there before; told in nanoseconds, for all of them.

    −inf at an idle replica, which has rules of its own.
    """
    terms, limits = HeldTerms(*figures[0]), figures[4][3]
    if is_idle(table, slot):
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
    marks: tuple[Marks, Marks],
    found: tuple[int, float],
) -> tuple[int, float]:
    """What is `found` of a LineSearch, by the replicas in `slots` whose profile is `kind`, too.

    `figures`: `HeldTerms`, the engine's (`forecast.PlainFigures`), and those of `learned_curves.correct_at`.
    `space` is written anew: f8[ROWS, 1], f8[8], f8[1], f8[slots]. `marks` are its open lines and those that
    fit.
    """
    (open_lines, fits), (best, best_late_s) = marks, found
    terms, soonest, earliest_s = HeldTerms(*figures[0]), space[3], inf
    for place in range(len(slots)):
        ours = table[FleetRow.KIND, slots[place]] == kind
        soonest[place] = soonest_s(table, slots[place], figures) if ours else inf
        earliest_s = min(earliest_s, soonest[place])
    best_ahead = ahead_of(heads, best, *shares) if best >= 0 else 0
    for head in range(heads.shape[1]):
        role, profile = heads[HeadRow.ROLE, head], heads[HeadRow.PROFILE, head]
        if not open_lines[head] or role not in (terms.role, ANY_ROLE) or profile != terms.profile:
            continue
        ahead = ahead_of(heads, head, *shares)
        if best >= 0 and head != best and not precedes(heads, head, ahead, best, best_ahead):
            fits[head] = True
            continue
        # Most heads are late for what is at a replica already, which is told in nanoseconds.
        may_be_late = served_late(heads, head)
        if heads[HeadRow.TTFT_BY_S, head] + heads[HeadRow.MORE_S, head] < earliest_s and not may_be_late:
            continue
        first = _asked_from(heads, head, slots, 0, soonest, terms.now_s)
        if first == len(slots):
            continue
        asks = _asks(heads, head, figures, terms.several and ahead == 0)
        least_s = inf
        while first < len(slots) and least_s > 0.0:
            slot = slots[first]
            _forecast_at(table, heads, head, slots[first : first + 1], kind, figures, space)
            late_s = late_by(candidate_at(space[0], table, 0, slot, asks), asks)
            if _takes(space[0], table, slot, asks, may_be_late):
                least_s = 0.0
            elif late_s <= heads[HeadRow.MORE_S, head]:
                least_s = min(least_s, late_s)
            first = _asked_from(heads, head, slots, first + 1, soonest, terms.now_s)
        if least_s < inf:
            best_late_s = min(best_late_s, least_s) if head == best else least_s
            best, best_ahead, fits[head] = head, ahead, True
    return best, best_late_s


@compiled_in_place
def _asked_from(  # noqa: PLR0917 - plain figures, compiled
    heads: FloatArray, head: int, slots: SlotArray, place: int, soonest: FloatArray, now_s: float
) -> int:
    """The first place from `place` on whose replica is worth a forecast for the head, which may wait for the
    replica that has most of its prompt; len(slots) without one."""
    by_s = heads[HeadRow.TTFT_BY_S, head] + heads[HeadRow.MORE_S, head]
    home, may_be_late = heads[HeadRow.HOME, head], served_late(heads, head)
    at_home = home >= 0.0 and now_s < heads[HeadRow.HOME_UNTIL_S, head]
    while place < len(slots):
        in_time = soonest[place] <= by_s or (may_be_late and soonest[place] < inf)
        if in_time and not (at_home and home != slots[place]):
            break
        place += 1
    return place


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
    newcomer = terms.now_s, tokens, output, terms.stay_s
    asked = newcomer, figures[1], figures[2], figures[3]
    forecast(terms.role_code, table, at, cached, kind, asked, rows)
    rows[TTFT_S, 0] += tokens * terms.transfer_s_per_token
    correct_at(terms.role_code, table, at[0], cached[0], tokens, rows, 0, figures[4], inputs)


@compiled_in_place
def served_late(heads: FloatArray, head: int) -> bool:
    """True for a head whose SLO is lost, and that is served all the same."""
    return bool(heads[HeadRow.LOST, head] and heads[HeadRow.CLASS, head] != NAMES_SLO)


@compiled_in_place
def _takes(rows: FloatArray, table: FloatArray, slot: int, asks: SloTerms, may_be_late: bool) -> bool:
    """True if the replica with these `rows` f8[ROWS, 1] may take a head."""
    if not (rows[TTFT_S, 0] < inf and rows[TPOT_S, 0] < inf):
        return False
    candidate = candidate_at(rows, table, 0, slot, asks)
    return bool((may_be_late and is_harmless(candidate, asks)) or missing(candidate, asks) <= 0.0)


@compiled_in_place
def _asks(heads: FloatArray, head: int, figures: tuple[Any, ...], in_turn: bool) -> SloTerms:
    """The terms of a head, whose tenant is in turn or not. The TTFT SLO itself only scales what is
    missing."""
    terms = HeldTerms(*figures[0])
    by_s = heads[HeadRow.TTFT_BY_S, head]
    tpot_s = heads[HeadRow.TPOT_SLO_S, head] if terms.role_code != PREFILL_ROLE else inf
    return SloTerms(
        1.0 if by_s < inf else inf,
        by_s - terms.now_s,
        tpot_s,
        figures[3][1],
        terms.places,
        1.0,
        terms.caution,
        False,
        terms.now_s,
        0.0 if in_turn or heads[HeadRow.CLASS, head] == CRITICAL else terms.reserve,
    )
