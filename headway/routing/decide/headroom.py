"""Headroom of every candidate, compiled: two passes over the fleet. The theory is in `slo_scorer`.

Helpers get plain figures, which `candidate_at` reads: those with several ways out that got the arrays counted
references to them at each call, which took three quarters of the time.
"""

from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.predict.corrections import FIRST_SAFETY
from headway.routing.predict.forecast import ForecastRow, there_at
from interp.jit import compiled, compiled_in_place

TTFT, TPOT, OTHERS = int(ForecastRow.TTFT_S), int(ForecastRow.TPOT_S), int(ForecastRow.OTHERS_TPOT_S)
WORK, GROWTH = int(ForecastRow.WORK_S), int(ForecastRow.GROWTH)

HARMLESS_SHARE = 1e-9
"""What others may lose of their SLOs where nothing is lost: rounding."""

LEAST = 1e-6
"""The score of a valid candidate without any headroom to spare."""

SPREAD, WORTH_OF_GROWTH = FIRST_SAFETY - 1.0, 0.25
"""For the spread of TPOT's errors no more room is kept free than a quarter of what load has added to TPOT.

Refusing makes no error less that an idle replica has, too. Of n that run, each within its SLO with
P(n) = Φ(z), n P(n) is most where Φ(z) = (e / σ) φ(z): e is growth, σ the spread of measured / predicted (of
logarithms), z σ the margin. At the σ of 11 % that FIRST_SAFETY stands for, z σ is 0.23 to 0.31 e for e of 0.2
to 0.7, and nothing below 0.14. A factor beyond FIRST_SAFETY tells of predictions that are too low: it counts
in full."""

TTFT_WEIGHT = 0.8
"""Weight of TTFT headroom in scores; TPOT headroom has the rest of 1."""

RESOLUTION = 0.02
"""Differences of headroom below this share of an SLO count less and less."""

SPARE = 0.5
"""The part of its predicted TTFT that one in the place of a late head has to spare: where there is choice
none need be just in time."""

LATE_ROOM, QUIET = 0.5, 4.0
"""What requests whose SLO is lost leave to those that come next and can be saved: half of the room under a
replica's TPOT SLOs, and its prompts' turn. Where none has come for QUIET times as long as their own prompt
takes, the next comes while that is computed in one of QUIET cases at most, if arrivals are Poisson."""

CHUNKS = 2.0
"""A replica takes requests with no prompt, or at most so many chunks of prompt tokens, outstanding.
A prompt more would keep it no busier where the router hears of each prompt's end at once, and an urgent
request that comes meanwhile would wait for two."""


class SloTerms(NamedTuple):
    """A request's SLOs and how they are weighed; infinite where there is none.

    `left_s` is what is left of the TTFT SLO. Predictions are multiplied by `safety`, and by 1 + `caution` ×
    FleetRow.TTFT_CAUTION or TPOT_CAUTION, the replica's own, the latter as growth allows. `least_harm`: the
    request's TTFT SLO is lost and does not count. It waits for a replica with a short queue, of prompts or of
    `chunk_tokens`, and a place in a batch of `max_batch`. Beside it `reserve` sequences more must fit under
    the TPOT SLOs.
    """

    ttft_s: float
    left_s: float
    tpot_s: float
    chunk_tokens: float
    max_batch: float
    safety: float = 1.0
    caution: float = 0.0
    least_harm: bool = False
    now_s: float = 0.0
    reserve: float = 0.0


class JudgedReplica(NamedTuple):
    """One candidate: its forecast (seconds), the SLO that binds it, and the requests that are `there`.

    `tightest_s` is the tightest TPOT SLO there that can be kept, infinite without one; `alone_s` the TPOT of
    the newcomer alone. `room`: a prompt that comes now is begun at once, or nearly so. `quiet`: there has
    been none for QUIET times as long as the newcomer's takes. Headroom is that of TTFT and TPOT times the
    `safety` factors.
    """

    ttft_s: float
    tpot_s: float
    others_s: float
    alone_s: float
    tightest_s: float
    there: float
    room: bool
    quiet: bool
    ttft_safety: float
    tpot_safety: float


@compiled_in_place
def begins_soon(table: FloatArray, slot: int, chunk_tokens: float, max_batch: float) -> bool:
    """True if a prompt that comes to this replica is begun at once, or nearly so; a decode replica has room
    for it by the time it is computed (`judge.places`).

    In a batch without a place it is begun when one of those there ends. When that will be is hardly known:
    requests that cost alike begin and end together.
    """
    there = there_at(table, slot)
    few = table[FleetRow.PREFILL_TOKENS, slot] <= CHUNKS * chunk_tokens
    return bool(there + 1.0 <= max_batch and (few or table[FleetRow.WAITING, slot] == 0.0))


@compiled_in_place
def is_quiet(table: FloatArray, slot: int, now_s: float, work_s: float) -> bool:
    """True if a prompt of `work_s` that is late delays none that can be saved, as far as can be told."""
    idle = table[FleetRow.WAITING, slot] + table[FleetRow.OTHER_WORK_S, slot] == 0.0
    return bool(idle and now_s - table[FleetRow.PROMPT_AT_S, slot] >= QUIET * work_s)


@compiled_in_place
def candidate_at(
    rows: FloatArray, table: FloatArray, place: int, slot: int, terms: SloTerms
) -> JudgedReplica:
    """The candidate in a place."""
    ttft_safety = terms.safety * (1.0 + terms.caution * table[FleetRow.TTFT_CAUTION, slot])
    caution = terms.caution * table[FleetRow.TPOT_CAUTION, slot]
    spread = min(caution, SPREAD)
    caution += min(spread, max(0.0, WORTH_OF_GROWTH * rows[GROWTH, place])) - spread
    return JudgedReplica(
        rows[TTFT, place],
        rows[TPOT, place],
        rows[OTHERS, place],
        rows[OTHERS, place] * (1.0 - rows[GROWTH, place]),
        table[FleetRow.TPOT_SLO_S, slot],
        there_at(table, slot) + table[FleetRow.WAITING, slot],
        begins_soon(table, slot, terms.chunk_tokens, terms.max_batch),
        is_quiet(table, slot, terms.now_s, rows[WORK, place]),
        ttft_safety,
        terms.safety * (1.0 + caution),
    )


@compiled_in_place
def ttft_headroom_s(candidate: JudgedReplica, terms: SloTerms) -> float:
    """Seconds that are left of the TTFT SLO at the first token."""
    return float(terms.left_s - candidate.ttft_s * candidate.ttft_safety)


@compiled_in_place
def tpot_headroom_s(candidate: JudgedReplica, terms: SloTerms) -> float:
    """The newcomer's margin under its own TPOT SLO or the others' under theirs, whichever is less."""
    own_s = terms.tpot_s - candidate.tpot_s * candidate.tpot_safety
    return float(min(own_s, candidate.tightest_s - candidate.others_s * candidate.tpot_safety))


@compiled_in_place
def harm(candidate: JudgedReplica, terms: SloTerms) -> float:
    """The share of the TPOT SLOs, its own and those there, by which a request whose TTFT SLO is lost takes
    more than LATE_ROOM of the room under them."""
    limit_s = min(terms.tpot_s, candidate.tightest_s)
    if limit_s == inf or candidate.there == 0.0:
        return 0.0
    most_s = candidate.alone_s + LATE_ROOM * max(0.0, limit_s - candidate.alone_s)
    return float(max(0.0, candidate.others_s * candidate.tpot_safety - most_s) / limit_s)


@compiled_in_place
def is_harmless(candidate: JudgedReplica, terms: SloTerms) -> bool:
    """True if a request whose TTFT SLO is lost leaves those that can be saved their room and their turn."""
    return bool(candidate.quiet and candidate.room and harm(candidate, terms) <= HARMLESS_SHARE)


@compiled
def harmless(
    rows: FloatArray, table: FloatArray, slots: SlotArray, figures: tuple[Any, ...]
) -> NDArray[np.bool_]:
    """The same for all candidates, bool[C]; `figures` are `SloTerms`."""
    terms, out = SloTerms(*figures), np.empty(len(slots), dtype=np.bool_)
    for place in range(len(slots)):
        out[place] = is_harmless(candidate_at(rows, table, place, slots[place], terms), terms)
    return out


@compiled_in_place
def missing(candidate: JudgedReplica, terms: SloTerms) -> float:
    """The share of the SLOs that an invalid candidate lacks; 0 for a valid one."""
    if terms.least_harm:
        return float(LEAST + 0.01 * candidate.ttft_s + harm(candidate, terms))
    lacking = 0.0
    if candidate.there == 0.0 and candidate.ttft_s <= terms.left_s and candidate.tpot_s <= terms.tpot_s:
        return lacking
    if terms.ttft_s < inf:
        lacking -= TTFT_WEIGHT * min(0.0, ttft_headroom_s(candidate, terms)) / terms.ttft_s
    limit_s = min(terms.tpot_s, candidate.tightest_s)
    if limit_s < inf:
        # Each of the reserve adds as much as those there do on average.
        each_s = max(0.0, candidate.others_s - candidate.alone_s) / (candidate.there + 1.0)
        under_s = tpot_headroom_s(candidate, terms) - terms.reserve * each_s
        lacking -= (1.0 - TTFT_WEIGHT) * min(0.0, under_s) / limit_s
    return float(lacking)


@compiled_in_place
def late_by(candidate: JudgedReplica, terms: SloTerms) -> float:
    """By how much the request comes too late for a candidate that would else be valid, and SPARE more; 0 if
    it does not, infinite where more than time is lacking."""
    if not (candidate.ttft_s < inf and candidate.tpot_s < inf) or not candidate.room:
        return inf
    late_s = candidate.ttft_s * candidate.ttft_safety - terms.left_s
    if late_s <= 0.0 or missing(_sooner(candidate, late_s / candidate.ttft_safety), terms) > 0.0:
        return inf
    return float(late_s + SPARE * candidate.ttft_s)


@compiled
def nearest_of(
    rows: FloatArray, table: FloatArray, slots: SlotArray, figures: tuple[Any, ...], next_wait_s: float
) -> tuple[tuple[int, int, bool, float], tuple[float, float, float]]:
    """Where none is valid: the slot that lacks least, and the one with the loosest SLO of those that would be
    valid but for the SLOs of those that run there; −1 for none. True if one would be valid were its TTFT
    `next_wait_s` less. The least `late_by`. Then the least TTFT, TPOT, and TPOT SLO there, infinite without
    any. `figures` are `SloTerms`."""
    terms, nearest, blocked, of_next = SloTerms(*figures), -1, -1, False
    least, loosest_s, late_s = inf, 0.0, inf
    best_ttft_s = best_tpot_s = tightest_s = inf
    for place in range(len(slots)):
        candidate = candidate_at(rows, table, place, slots[place], terms)
        if candidate.ttft_s < best_ttft_s:  # noqa: PLR1730 - min() would keep a NaN
            best_ttft_s = candidate.ttft_s
        if candidate.tpot_s < best_tpot_s:  # noqa: PLR1730 - min() would keep a NaN
            best_tpot_s = candidate.tpot_s
        tightest_s = min(tightest_s, candidate.tightest_s)
        if not (candidate.ttft_s < inf and candidate.tpot_s < inf):
            continue
        lacking = missing(candidate, terms)
        late_s = min(late_s, late_by(candidate, terms))
        if lacking < least:
            least, nearest = lacking, slots[place]
        own_s = terms.tpot_s - candidate.tpot_s * candidate.tpot_safety
        alone = ttft_headroom_s(candidate, terms) >= 0.0 and own_s >= 0.0
        over = candidate.others_s * candidate.tpot_safety > candidate.tightest_s
        if alone and over and candidate.tightest_s > loosest_s:
            loosest_s, blocked = candidate.tightest_s, slots[place]
        if next_wait_s > 0.0 and not of_next and candidate.room:
            of_next = missing(_sooner(candidate, next_wait_s), terms) == 0.0
    return (nearest, blocked, of_next, late_s), (best_ttft_s, best_tpot_s, tightest_s)


@compiled_in_place
def _sooner(candidate: JudgedReplica, seconds: float) -> JudgedReplica:
    """The candidate with so much less of TTFT."""
    return JudgedReplica(candidate[0] - seconds, *candidate[1:])


class BestHeadroom(NamedTuple):
    """The best among the valid, and the ranges that differences are measured by, seconds.

    `ttft_s` is the least TTFT, with safety, and `tpot_s` the most headroom.

    `soonest_s` is the least TTFT where there is room; infinite where there is none.
    """

    ttft_s: float
    ttft_range_s: float
    tpot_s: float
    tpot_range_s: float
    soonest_s: float


@compiled_in_place
def best_headroom(
    rows: FloatArray, table: FloatArray, slots: SlotArray, terms: SloTerms, out: FloatArray
) -> BestHeadroom:
    """The first pass: NaN, or minus what is missing, in `out`; and the best among the valid, which have 0."""
    worst_s, most_tpot_s, best_s, least_tpot_s, soonest_s = -inf, -inf, inf, inf, inf
    for place in range(len(slots)):
        candidate = candidate_at(rows, table, place, slots[place], terms)
        if not (candidate.ttft_s < inf and candidate.tpot_s < inf):
            out[place] = np.nan
            continue
        out[place] = -missing(candidate, terms)
        if out[place] < 0.0:
            continue
        if candidate.room:
            soonest_s = min(soonest_s, candidate.ttft_s)
        ttft_s, tpot_s = candidate.ttft_s * candidate.ttft_safety, tpot_headroom_s(candidate, terms)
        worst_s, best_s = max(worst_s, ttft_s), min(best_s, ttft_s)
        most_tpot_s, least_tpot_s = max(most_tpot_s, tpot_s), min(least_tpot_s, tpot_s)
    return BestHeadroom(best_s, worst_s - best_s, most_tpot_s, most_tpot_s - least_tpot_s, soonest_s)


@compiled_in_place
def score_of(candidate: JudgedReplica, terms: SloTerms, best: BestHeadroom) -> float:
    """The closeness of a valid candidate's headroom to the best, in (0, 1]; −LEAST where the request rather
    waits."""
    sooner = candidate.ttft_s < best.soonest_s and best.soonest_s < inf
    if not sooner and not candidate.room:
        return -LEAST
    limit_s, ttft_weight = min(terms.tpot_s, candidate.tightest_s), TTFT_WEIGHT
    if terms.ttft_s == inf:
        ttft_weight = 0.0
    elif limit_s == inf:
        ttft_weight = 1.0
    share = 1.0
    if ttft_weight > 0.0:
        gap_s = candidate.ttft_s * candidate.ttft_safety - best.ttft_s
        share -= ttft_weight * gap_s / max(best.ttft_range_s, RESOLUTION * terms.ttft_s)
    if ttft_weight < 1.0 and limit_s < inf:
        gap_s = best.tpot_s - tpot_headroom_s(candidate, terms)
        if best.tpot_range_s < inf:
            gap_s /= max(best.tpot_range_s, RESOLUTION * limit_s)
        share -= (1.0 - ttft_weight) * min(gap_s, 1.0)
    return min(1.0, max(LEAST, share))


@compiled
def judge(rows: FloatArray, table: FloatArray, slots: SlotArray, figures: tuple[Any, ...]) -> FloatArray:
    """Per candidate: its score in (0, 1] if valid; else minus what is missing; NaN without a prediction.

    `figures` are `SloTerms`, as a plain tuple in a third of the time.
    """
    terms, out = SloTerms(*figures), np.empty(len(slots))
    best = best_headroom(rows, table, slots, terms, out)
    for place in range(len(slots)):
        if out[place] == 0.0:
            out[place] = score_of(candidate_at(rows, table, place, slots[place], terms), terms, best)
    return out
