"""Headroom of every candidate, compiled: two passes over the fleet. The theory is in `slo_scorer`.

Helpers get plain figures, which `candidate_at` reads: those with several ways out that got the arrays counted
references to them at each call, which took three quarters of the time.
"""

from math import inf
from typing import Any, NamedTuple

import numpy as np

from headway.routing.fleet.table import FleetRow, FloatArray, SlotArray
from headway.routing.predict.corrections import FIRST_SAFETY
from headway.routing.predict.forecast import ForecastRow
from interp.jit import compiled, compiled_in_place

TTFT, TPOT, OTHERS, DELAY = (
    int(ForecastRow.TTFT_S),
    int(ForecastRow.TPOT_S),
    int(ForecastRow.OTHERS_TPOT_S),
    int(ForecastRow.DELAY_S),
)
WORK, GROWTH = int(ForecastRow.WORK_S), int(ForecastRow.GROWTH)

WORK_WEIGHT = 2.0
"""A second of work beside a second of waiting: what a cached prompt saves, those who come later have, too."""

LIKENESS_WEIGHT = 0.3
"""Part of the score that says how much alike the TPOT SLOs there are: the tightest limits the batch."""

LEAST = 1e-6
"""The score of a valid candidate without any headroom to spare."""

SPREAD, WORTH_OF_GROWTH = FIRST_SAFETY - 1.0, 0.25
"""For the spread of TPOT's errors no more room is kept free than a quarter of what load has added to TPOT.

Refusing makes no error less that an idle replica has, too. Of n that run, each within its SLO with
P(n) = Φ(z), n P(n) is most where Φ(z) = (e / σ) φ(z): e is growth, σ the spread of measured / predicted (of
logarithms), z σ the margin. At the σ of 11 % that FIRST_SAFETY stands for, z σ is 0.23 to 0.31 e for e of 0.2
to 0.7, and nothing below 0.14. A factor beyond FIRST_SAFETY tells of predictions that are too low: it counts
in full."""

RESOLUTION = 0.02
"""Differences of headroom below this share of an SLO count less and less."""

CHUNKS = 2.0
"""A replica takes patient requests with no prompt, or at most so many chunks of prompt tokens, outstanding.
A prompt more would keep it no busier where the router hears of each prompt's end at once, and an urgent
request that comes meanwhile would wait for two."""


class SloTerms(NamedTuple):
    """A request's SLOs and how they are weighed; infinite where there is none.

    `left_s` is what is left of the TTFT SLO. Predictions are multiplied by `safety`, and by 1 + `caution` ×
    FleetRow.TTFT_CAUTION or TPOT_CAUTION, the replica's own, the latter as growth allows. `least_harm`: the
    request's own SLOs are lost and do not count. `patient`: it waits for a replica with a short queue, of
    prompts or of `chunk_tokens`. `reserve` sequences more must still fit under the TPOT SLOs, where one alone
    has `first_itl_s`.
    """

    ttft_s: float
    left_s: float
    tpot_s: float
    ttft_weight: float
    chunk_tokens: float
    safety: float = 1.0
    caution: float = 0.0
    least_harm: bool = False
    patient: bool = False
    reserve: float = 0.0
    first_itl_s: float = 0.0


class JudgedReplica(NamedTuple):
    """One candidate: its forecast (seconds), the SLOs that bind it, and the requests that are there.

    `tightest_s` is the tightest TPOT SLO there that can be kept, infinite without one; `slack_s` the least
    slack of those waiting. `decoding` requests decode there or will, of others' too. `room`: a prompt that
    comes now is begun at once, or nearly so. Headroom is that of TTFT and TPOT times the `safety` factors.
    """

    ttft_s: float
    tpot_s: float
    others_s: float
    delay_s: float
    rank_s: float
    tightest_s: float
    slack_s: float
    decoding: float
    waiting: float
    room: bool
    ttft_safety: float
    tpot_safety: float


@compiled_in_place
def begins_soon(table: FloatArray, slot: int, chunk_tokens: float) -> bool:
    """True if a prompt that comes to this replica is begun at once, or nearly so."""
    few = table[FleetRow.PREFILL_TOKENS, slot] <= CHUNKS * chunk_tokens
    return bool(few or table[FleetRow.WAITING, slot] == 0.0)


@compiled_in_place
def candidate_at(
    rows: FloatArray, table: FloatArray, place: int, slot: int, terms: SloTerms
) -> JudgedReplica:
    """The candidate in a place."""
    tightest_s, waiting = table[FleetRow.TPOT_SLO_S, slot], table[FleetRow.WAITING, slot]
    decoding = (
        table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot] + table[FleetRow.OTHER_REQUESTS, slot]
    )
    ttft_safety = terms.safety * (1.0 + terms.caution * table[FleetRow.TTFT_CAUTION, slot])
    caution = terms.caution * table[FleetRow.TPOT_CAUTION, slot]
    spread = min(caution, SPREAD)
    caution += min(spread, max(0.0, WORTH_OF_GROWTH * rows[GROWTH, place])) - spread
    return JudgedReplica(
        rows[TTFT, place],
        rows[TPOT, place],
        rows[OTHERS, place],
        rows[DELAY, place],
        rows[TTFT, place] * ttft_safety + WORK_WEIGHT * rows[WORK, place],
        tightest_s,
        table[FleetRow.TTFT_SLACK_S, slot],
        decoding,
        waiting,
        begins_soon(table, slot, terms.chunk_tokens),
        ttft_safety,
        terms.safety * (1.0 + caution),
    )


@compiled_in_place
def likeness(own_s: float, tightest_s: float) -> float:
    """The likeness of two TPOT SLOs, in [0, 1]; 1 where none runs or none is given."""
    alike = tightest_s == own_s
    if alike or tightest_s == inf:
        return 1.0
    return min(own_s, tightest_s) / max(own_s, tightest_s)


@compiled_in_place
def reserve_s(candidate: JudgedReplica, terms: SloTerms) -> float:
    """Seconds that `reserve` sequences more would add to TPOT, each as much as those there do on average."""
    if terms.reserve == 0.0:
        return 0.0
    each_s = max(0.0, candidate.others_s - terms.first_itl_s)
    return float(terms.reserve * each_s / (candidate.decoding + 1.0))


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
def missing(candidate: JudgedReplica, terms: SloTerms) -> float:
    """The share of the SLOs that an invalid candidate lacks; 0 for a valid one."""
    ttft_s, tightest_s = candidate.ttft_s, candidate.tightest_s
    queued_s = min(0.0, candidate.slack_s - candidate.delay_s)
    if terms.least_harm:
        over_s = max(0.0, candidate.others_s * candidate.tpot_safety - tightest_s)
        return float(LEAST + 0.01 * ttft_s + over_s / tightest_s - queued_s)
    empty = candidate.decoding + candidate.waiting == 0.0
    lacking = 0.0
    if empty and ttft_s <= terms.left_s and candidate.tpot_s <= terms.tpot_s:
        return lacking
    if terms.ttft_s < inf:
        lacking -= terms.ttft_weight * min(0.0, ttft_headroom_s(candidate, terms)) / terms.ttft_s
    limit_s = min(terms.tpot_s, tightest_s)
    if limit_s < inf:
        under_s = tpot_headroom_s(candidate, terms) - reserve_s(candidate, terms)
        lacking -= (1.0 - terms.ttft_weight) * min(0.0, under_s) / limit_s
    return float(lacking - queued_s)


@compiled
def nearest_of(
    rows: FloatArray, table: FloatArray, slots: SlotArray, figures: tuple[Any, ...], next_wait_s: float
) -> tuple[int, int, bool]:
    """Where none is valid: the slot that lacks least, and the one with the loosest SLO of those that would be
    valid but for the SLOs of those that run there; −1 for none. True if one would be valid were its TTFT
    `next_wait_s` less. `figures` are `SloTerms`."""
    terms, nearest, blocked, of_next = SloTerms(*figures), -1, -1, False
    least, loosest_s = inf, 0.0
    for place in range(len(slots)):
        candidate = candidate_at(rows, table, place, slots[place], terms)
        if not (candidate.ttft_s < inf and candidate.tpot_s < inf):
            continue
        lacking = missing(candidate, terms)
        if lacking < least:
            least, nearest = lacking, slots[place]
        own_s = terms.tpot_s - candidate.tpot_s * candidate.tpot_safety
        alone = ttft_headroom_s(candidate, terms) >= 0.0 and own_s >= 0.0
        over = candidate.others_s * candidate.tpot_safety > candidate.tightest_s
        if alone and over and candidate.tightest_s > loosest_s:
            loosest_s, blocked = candidate.tightest_s, slots[place]
        if next_wait_s > 0.0 and not of_next and (candidate.room or not terms.patient):
            of_next = missing(_sooner(candidate, next_wait_s), terms) == 0.0
    return nearest, blocked, of_next


@compiled_in_place
def _sooner(candidate: JudgedReplica, seconds: float) -> JudgedReplica:
    """The candidate with so much less of TTFT."""
    return JudgedReplica(
        candidate.ttft_s - seconds,
        candidate.tpot_s,
        candidate.others_s,
        candidate.delay_s,
        candidate.rank_s,
        candidate.tightest_s,
        candidate.slack_s,
        candidate.decoding,
        candidate.waiting,
        candidate.room,
        candidate.ttft_safety,
        candidate.tpot_safety,
    )


class BestHeadroom(NamedTuple):
    """The best among the valid, and the ranges that differences are measured by, seconds.

    `rank_s` is the least of TTFT and weighed work, `tpot_s` the most headroom.

    `soonest_s` is the least TTFT where there is room; infinite where there is none.
    """

    rank_s: float
    rank_range_s: float
    tpot_s: float
    tpot_range_s: float
    soonest_s: float


@compiled_in_place
def best_of(
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
        rank_s, tpot_s = candidate.rank_s, tpot_headroom_s(candidate, terms)
        worst_s, best_s = max(worst_s, rank_s), min(best_s, rank_s)
        most_tpot_s, least_tpot_s = max(most_tpot_s, tpot_s), min(least_tpot_s, tpot_s)
    return BestHeadroom(best_s, worst_s - best_s, most_tpot_s, most_tpot_s - least_tpot_s, soonest_s)


@compiled_in_place
def share_of(candidate: JudgedReplica, terms: SloTerms, best: BestHeadroom) -> float:
    """The closeness of a valid candidate's headroom to the best, in [0, 1]."""
    limit_s, ttft_weight = min(terms.tpot_s, candidate.tightest_s), terms.ttft_weight
    if terms.ttft_s == inf:
        ttft_weight = 0.0
    elif limit_s == inf:
        ttft_weight = 1.0
    share = 1.0
    if ttft_weight > 0.0:
        gap_s = candidate.rank_s - best.rank_s
        share -= ttft_weight * gap_s / max(best.rank_range_s, RESOLUTION * terms.ttft_s)
    if ttft_weight < 1.0 and limit_s < inf:
        gap_s = best.tpot_s - tpot_headroom_s(candidate, terms)
        if best.tpot_range_s < inf:
            gap_s /= max(best.tpot_range_s, RESOLUTION * limit_s)
        share -= (1.0 - ttft_weight) * min(gap_s, 1.0)
    return share


@compiled_in_place
def score_of(candidate: JudgedReplica, terms: SloTerms, best: BestHeadroom) -> float:
    """The score of a valid candidate, in (0, 1]; −LEAST where a patient request rather waits."""
    sooner = candidate.ttft_s < best.soonest_s and best.soonest_s < inf
    if terms.patient and not sooner and not candidate.room:
        return -LEAST
    share = share_of(candidate, terms, best)
    share += LIKENESS_WEIGHT * (likeness(terms.tpot_s, candidate.tightest_s) - share)
    return min(1.0, max(LEAST, share))


@compiled
def judge(rows: FloatArray, table: FloatArray, slots: SlotArray, figures: tuple[Any, ...]) -> FloatArray:
    """Per candidate: its score in (0, 1] if valid; else minus what is missing; NaN without a prediction.

    `figures` are `SloTerms`, as a plain tuple in a third of the time.
    """
    terms, out = SloTerms(*figures), np.empty(len(slots))
    best = best_of(rows, table, slots, terms, out)
    for place in range(len(slots)):
        if out[place] == 0.0:
            out[place] = score_of(candidate_at(rows, table, place, slots[place], terms), terms, best)
    return out
