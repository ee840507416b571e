r"""TTFT and TPOT of a newcomer at every candidate, from the profile and the state of the fleet. Compiled.

For a request of u uncached prompt tokens and o expected output tokens, at a replica with a decode batch of n
sequences (K tokens) and m that will join it (J tokens):

    W(u)          work of its prompt (`surfaces`),     c  chunk tokens, C = ⌈u / c⌉ iterations (1 if c = 0)
    i             ITL(n, K), the batch's share of each iteration that carries its prompt; W(0) without a batch
    Q             prefill work outstanding: until `busy_until`, and at least all but one of those waiting,
                  less what the engine reports as done; and the work of others' prompts that it has queued
    A             until it is admitted: if its KV or its place in the batch is lacking, the part that is
                  lacking of what is taken, times a usual stay; where q are shut out of a batch of n, at
                  least (q + 1) / n stays
    mixed         TTFT = Q + A + C i + W(u);   + half an iteration where the queue is empty and a batch runs
    prefill       TTFT = Q + C W(0) + W(u), and what follows at the decode replica
    decode        TTFT = A + i / 2 + ITL(n + m + 1, …): its first iteration yields the first token
    I'            ITL(n + m + 1, K + J + input + o / 2)
    D             prefill duty of the replica, at most that of an engine that always computes prompts,
                  W(c) / (W(c) + I')
    TPOT          I' / (1 − D) for the newcomer, whose own prompt is done by then
    others' TPOT  I' / (1 − D'), D' = D + W(u) / τ: those running also lose its prompt's work, over a usual
                  stay τ, or the time that those have left who are there, half of their outputs, if that is
                  more: a crowd that stays for a moment makes stays short, but is hardly ever there
    growth        1 − ITL(1, input + o / 2) / others' TPOT: the part of it that is there because of load

Everything is measured from now, and in seconds.
"""

from enum import IntEnum
from math import exp
from typing import Any, NamedTuple

import numpy as np

from headway.engine.surfaces import ItlTable, WorkCurve, itl_of, work_of
from headway.routing.fleet.table import (
    DECODE_ROLE,
    DUTY_MEMORY,
    PREFILL_ROLE,
    FleetRow,
    FloatArray,
    SlotArray,
)
from interp.jit import compiled_in_place

MOST_DUTY = 0.95
"""Prefill duty beyond which TPOT is not extrapolated, where whole prompts set no bound."""

FADED = -100.0
"""Stays after which nothing is left of a duty; where `exp` runs into 0 it takes five times as long."""


class ForecastRow(IntEnum):
    """The rows of a forecast, seconds each but for the last, one column per candidate; NaN without a
    profile."""

    TTFT_S = 0
    TPOT_S = 1
    OTHERS_TPOT_S = 2
    """TPOT of those running, once the newcomer is there."""
    QUEUE_S = 3
    """Part of TTFT that is queueing."""
    WORK_S = 4
    """W(u), what its prompt adds to iterations that run anyway."""
    ITERATION_S = 5
    """An iteration of those running now."""
    GROWTH = 6
    """A share of others' TPOT, no time: what an idle replica would not have."""


ROWS = len(ForecastRow)


class Newcomer(NamedTuple):
    """The request, in numbers: `expected_output` tokens, `stay_s` a usual time in the batch."""

    now_s: float
    input_tokens: float
    expected_output: float
    stay_s: float


class Batching(NamedTuple):
    """The rules of the engine."""

    max_batch: float
    chunk_tokens: float


PlainFigures = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""`Newcomer`, `WorkCurve`, `ItlTable`, `Batching`, plain: named tuples take three times as long to pass."""


@compiled_in_place
def there_at(table: FloatArray, slot: int) -> float:
    """Sequences in a replica's batch or coming to it, and all requests of others."""
    ours = table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot]
    return float(ours + table[FleetRow.OTHER_REQUESTS, slot])


@compiled_in_place
def is_idle(table: FloatArray, slot: int) -> bool:
    """True if no request is there or will be, as far as is known."""
    return bool(there_at(table, slot) + table[FleetRow.WAITING, slot] == 0.0)


REQUESTS = np.array([FleetRow.RUNNING, FleetRow.COMING, FleetRow.OTHER_REQUESTS, FleetRow.WAITING])


def any_idle(table: FloatArray, slots: SlotArray) -> bool:
    """True if one of `slots` is idle, without code to compile for it."""
    return bool((table[REQUESTS[:, None], slots].sum(axis=0) == 0.0).any())


@compiled_in_place
def batch_at(table: FloatArray, slot: int) -> float:
    """Sequences in a replica's batch, those of others included."""
    there = table[FleetRow.RUNNING, slot] + table[FleetRow.OTHER_REQUESTS, slot]
    return float(max(there - table[FleetRow.OTHER_WAITING, slot], 0.0))


@compiled_in_place
def others_queued(table: FloatArray, slot: int) -> float:
    """Queued requests that are not ours; nothing is known of them, so they are taken for the newcomer's
    like."""
    return float(min(table[FleetRow.OTHER_WAITING, slot], table[FleetRow.OTHER_REQUESTS, slot]))


@compiled_in_place
def features_of(
    role: int, table: FloatArray, slot: int, cached_tokens: float, input_tokens: float
) -> tuple[float, ...]:
    """Inputs of the trained model for one candidate, in the order of `predictors.latency.FIELDS`."""
    kv_tokens = table[FleetRow.KV_TOKENS, slot] + table[FleetRow.OTHER_TOKENS, slot]
    ours = table[FleetRow.COMING, slot] if role == DECODE_ROLE else table[FleetRow.WAITING, slot]
    return (
        min(kv_tokens / table[FleetRow.CAPACITY_TOKENS, slot], 1.0),
        input_tokens,
        ours + table[FleetRow.OTHER_WAITING, slot],
        batch_at(table, slot),
        0.0,  # output tokens so far: those of a newcomer
        cached_tokens / input_tokens,
        table[FleetRow.PREFILL_TOKENS, slot] + table[FleetRow.OTHER_PROMPT_TOKENS, slot],
        table[FleetRow.OUTPUT_TOKENS, slot],
    )


@compiled_in_place
def queue_s(table: FloatArray, slot: int, now_s: float) -> float:
    """Prefill work that is outstanding at a replica."""
    waiting, others_s = table[FleetRow.WAITING, slot], table[FleetRow.OTHER_WORK_S, slot]
    if waiting == 0.0:
        return float(others_s)
    least = table[FleetRow.WORK_S, slot] * (1.0 - 1.0 / waiting)
    ours_s = max(table[FleetRow.BUSY_UNTIL_S, slot] - now_s, least) - table[FleetRow.DONE_S, slot]
    return float(max(ours_s, 0.0) + others_s)


@compiled_in_place
def duty_at(table: FloatArray, slot: int, now_s: float, memory_s: float) -> float:
    """Smoothed prefill duty by now."""
    stays = (table[FleetRow.DUTY_AT_S, slot] - now_s) / memory_s
    return float(table[FleetRow.DUTY, slot] * exp(stays)) if stays > FADED else 0.0


@compiled_in_place
def admission_s(
    table: FloatArray, slot: int, newcomer: Newcomer, capacity: float, batching: Batching
) -> float:
    """Seconds until the batch has room for the newcomer's KV and one more sequence."""
    need, stay_s = newcomer.input_tokens + newcomer.expected_output, newcomer.stay_s
    taken = table[FleetRow.RESERVED_TOKENS, slot] + table[FleetRow.OTHER_TOKENS, slot]
    # Those that others have queued there come first, and hold no KV yet; they are taken for as long.
    taken += need * others_queued(table, slot)
    there, lacking = there_at(table, slot), 0.0
    if taken + need > capacity and taken > 0.0:
        lacking = (taken + need - capacity) / taken
    if there + 1.0 > batching.max_batch:
        lacking = max(lacking, (there + 1.0 - batching.max_batch) / batching.max_batch)
    shut_out = table[FleetRow.SHUT_OUT, slot]
    if shut_out > 0.0:
        lacking = max(lacking, (shut_out + 1.0) / max(there - shut_out, 1.0))
    return lacking * stay_s


@compiled_in_place
def alone(role: int, uncached: float, figures: PlainFigures) -> tuple[float, float]:
    """TTFT and TPOT at an idle replica; the decode role's TTFT is its first iteration."""
    newcomer, batching = Newcomer(*figures[0]), Batching(*figures[3])
    work, itl = WorkCurve(*figures[1]), ItlTable(*figures[2])
    chunk = batching.chunk_tokens
    rounds = np.ceil(uncached / chunk) if chunk > 0.0 else 1.0
    prompt_s = rounds * work.seconds[0] + work_of(work, uncached)
    itl_s = itl_of(itl, 1.0, newcomer.input_tokens + 0.5 * newcomer.expected_output)
    if role == PREFILL_ROLE:
        return prompt_s, 0.0
    return (itl_s if role == DECODE_ROLE else prompt_s), itl_s


@compiled_in_place
def forecast(  # noqa: PLR0917 - one loop over candidates, compiled
    role: int,
    table: FloatArray,
    slots: SlotArray,
    cached: FloatArray,
    kind: int,
    figures: PlainFigures,
    out: FloatArray,
) -> None:
    """Fill `out` f8[ROWS, C] for the candidates in `slots` whose profile is `kind`."""
    newcomer, batching = Newcomer(*figures[0]), Batching(*figures[3])
    work, itl = WorkCurve(*figures[1]), ItlTable(*figures[2])
    chunk = batching.chunk_tokens
    mean_tokens = newcomer.input_tokens + 0.5 * newcomer.expected_output
    empty_s, stay_s = work.seconds[0], newcomer.stay_s
    alone_s = itl_of(itl, 1.0, mean_tokens) if role != PREFILL_ROLE else 0.0
    chunk_s = work_of(work, chunk) if chunk > 0.0 else 0.0
    last_uncached, work_s = -1.0, 0.0
    for place in range(len(slots)):
        slot = slots[place]
        if table[FleetRow.KIND, slot] != kind:
            continue
        uncached = newcomer.input_tokens - cached[place]
        if uncached != last_uncached and role != DECODE_ROLE:
            work_s = work_of(work, uncached)
            last_uncached = uncached
        rounds = np.ceil(uncached / chunk) if chunk > 0.0 else 1.0
        waiting_s = queue_s(table, slot, newcomer.now_s)
        if role == PREFILL_ROLE:
            row = (waiting_s + rounds * empty_s + work_s, 0.0, 0.0, waiting_s, work_s, empty_s, 0.0)
        else:
            batch = batch_at(table, slot)
            tokens = table[FleetRow.KV_TOKENS, slot] + table[FleetRow.OTHER_TOKENS, slot]
            now_itl_s = itl_of(itl, batch, max(tokens, batch)) if batch > 0.0 else empty_s
            wanted = batch + table[FleetRow.COMING, slot] + table[FleetRow.OTHER_WAITING, slot] + 1.0
            later = min(wanted, batching.max_batch)
            tokens += table[FleetRow.COMING_TOKENS, slot] + (1.0 + others_queued(table, slot)) * mean_tokens
            later_tokens = tokens * later / wanted
            later_tokens = min(later_tokens, itl.capacity_tokens)
            later_itl_s = itl_of(itl, later, max(later_tokens, later))
            room_s = admission_s(table, slot, newcomer, itl.capacity_tokens, batching)
            half_s = 0.5 * now_itl_s if batch > 0.0 else 0.0
            if role == DECODE_ROLE:
                ttft_s = room_s + half_s + later_itl_s
                growth = 1.0 - alone_s / later_itl_s
                row = (ttft_s, later_itl_s, later_itl_s, room_s, 0.0, now_itl_s, growth)
            else:
                started_s = half_s if waiting_s == 0.0 else 0.0
                most = chunk_s / (chunk_s + later_itl_s) if chunk > 0.0 else MOST_DUTY
                duty = duty_at(table, slot, newcomer.now_s, DUTY_MEMORY * stay_s)
                tpot_s = later_itl_s / (1.0 - min(duty, most))
                present = max(table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot], 1.0)
                left_s = 0.5 * table[FleetRow.OUTPUT_TOKENS, slot] / present * later_itl_s
                others_s = later_itl_s / (1.0 - min(duty + work_s / max(stay_s, left_s), most))
                before_s = waiting_s + room_s + started_s
                ttft_s, growth = before_s + rounds * now_itl_s + work_s, 1.0 - alone_s / others_s
                row = (ttft_s, tpot_s, others_s, before_s, work_s, now_itl_s, growth)
        for number in range(ROWS):
            out[number, place] = row[number]
