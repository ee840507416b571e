"""The fleet's table: a row per quantity, a column per replica, and the entries of requests in it, compiled.

Each event writes a dozen cells. A slot of −1 stands for a replica that is GONE and has no cells.
"""

from collections.abc import Mapping
from enum import IntEnum
from math import exp, inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.config import Role
from interp.jit import compiled

FloatArray = NDArray[np.float64]
SlotArray = NDArray[np.int64]

PREFILL_ROLE, DECODE_ROLE, MIXED_ROLE = 0, 1, 2
ROLE_CODES: Mapping[Role, int] = {
    Role.PREFILL: PREFILL_ROLE,
    Role.DECODE: DECODE_ROLE,
    Role.MIXED: MIXED_ROLE,
}


class FleetRow(IntEnum):
    """The rows of the table; counts of requests, tokens, seconds."""

    WAITING = 0
    """Requests whose prompts are still to be computed here."""
    COMING = 1
    """Requests that will decode here and whose prompts are not computed yet, here or elsewhere."""
    RUNNING = 2
    """Requests in their decode phase here."""
    PREFILL_TOKENS = 3
    """Uncached prompt tokens of those waiting."""
    WORK_S = 4
    """Estimated seconds that computing them takes."""
    BUSY_UNTIL_S = 5
    """The time when that is estimated to be done."""
    KV_TOKENS = 6
    """Context tokens of those running: Σ input + output so far + half of what is still expected."""
    COMING_TOKENS = 7
    """The same of those coming."""
    RESERVED_TOKENS = 8
    """KV tokens that all requests here are expected to fill in the end."""
    OUTPUT_TOKENS = 9
    """Output tokens that those running and coming are expected to have in the end."""
    DUTY = 10
    """Share of the time that goes to prompts, smoothed over DUTY_MEMORY of a usual stay, as of DUTY_AT_S."""
    DUTY_AT_S = 11
    TPOT_SLO_S = 12
    """The tightest TPOT SLO of those that decode here or will."""
    TTFT_SLACK_S = 13
    """The least slack of those waiting: TTFT SLO − TTFT predicted, of those that were to keep it."""
    OTHER_REQUESTS = 14
    """Requests that the engine reports beyond ours."""
    OTHER_TOKENS = 15
    """KV tokens that the engine reports beyond ours."""
    LOAD = 16
    """Share of its capacity for patterns that is taken."""
    CAPACITY_TOKENS = 17
    """KV tokens that fit; infinite where that is unknown."""
    KIND = 18
    """Index of the profile of its GPU type, −1 for one without."""
    FORCED = 19
    """Requests that were placed here though they harm others: they had waited as long as they may."""
    OTHER_WAITING = 20
    """Requests that the engine reports as queued, beyond ours whose prompts are to be computed there."""
    OTHER_PROMPT_TOKENS = 21
    """Estimated uncached prompt tokens of those of them that are not ours."""
    OTHER_WORK_S = 22
    """Estimated seconds that computing these takes."""
    DONE_S = 23
    """The part of WORK_S that is done by what the engine reports."""
    SATURATED_UNTIL_S = 24
    """The time until which the engine's word stands that it is saturated."""
    TTFT_CAUTION = 25
    """Safety factor of predictions of TTFT there, less 1 (`corrections`)."""
    TPOT_CAUTION = 26
    SHUT_OUT = 27
    """Requests of ours that wait there for room in its batch or its KV (`reports`)."""


DUTY_MEMORY = 0.5
"""The part of a usual stay that those running have before them, on average."""

EMPTY: Mapping[FleetRow, float] = {
    FleetRow.TPOT_SLO_S: inf,
    FleetRow.TTFT_SLACK_S: inf,
    FleetRow.CAPACITY_TOKENS: inf,
    FleetRow.BUSY_UNTIL_S: -inf,
    FleetRow.KIND: -1.0,
}
"""The cells of a new replica, where they are not 0."""


class Entry(NamedTuple):
    """The figures of one request in the table. Compiled code gets them as a plain tuple, `tuple(entry)`, and
    names them anew: to pass a named one takes longer than all the writing."""

    uncached: float = 0.0
    """Prompt tokens that its prefill replica computes."""
    busy_s: float = 0.0
    """Seconds for which its prompt keeps that replica, and of these the work beside the batch."""
    work_s: float = 0.0
    held: float = 0.0
    """Tokens that its prompt holds at another replica that also decodes."""
    prefill_load: float = 0.0
    need: float = 0.0
    """KV tokens that it is expected to fill in the end, and on average."""
    mean: float = 0.0
    output: float = 0.0
    load: float = 0.0


PlainEntry = tuple[float, ...]


@compiled
def enter(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    prefill: int,
    decode: int,
    entry: PlainEntry,
    now_s: float,
    memory_s: float,
    slack_s: float,
    guard_s: float,
) -> None:
    """The request is placed; `slack_s` and `guard_s` bind those that come after it. Duty remembers
    `memory_s`."""
    own = Entry(*entry)
    if prefill >= 0:
        _wait(table, prefill, own, 1.0)
        table[FleetRow.BUSY_UNTIL_S, prefill] = max(table[FleetRow.BUSY_UNTIL_S, prefill], now_s) + own.busy_s
        kept = exp((table[FleetRow.DUTY_AT_S, prefill] - now_s) / memory_s)
        table[FleetRow.DUTY, prefill] = table[FleetRow.DUTY, prefill] * kept + own.work_s / memory_s
        table[FleetRow.DUTY_AT_S, prefill] = now_s
        table[FleetRow.TTFT_SLACK_S, prefill] = min(table[FleetRow.TTFT_SLACK_S, prefill], slack_s)
    if decode >= 0:
        table[FleetRow.COMING, decode] += 1.0
        table[FleetRow.COMING_TOKENS, decode] += own.mean
        _hold(table, decode, own, 1.0)
        table[FleetRow.TPOT_SLO_S, decode] = min(table[FleetRow.TPOT_SLO_S, decode], guard_s)


@compiled
def move(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, prefill: int, decode: int, entry: PlainEntry, now_s: float, slack_s: float
) -> None:
    """Its prompt is computed; `slack_s` is the least of those that still wait there."""
    own = Entry(*entry)
    if prefill >= 0:
        _wait(table, prefill, own, -1.0)
        table[FleetRow.BUSY_UNTIL_S, prefill] = now_s + table[FleetRow.WORK_S, prefill]
        table[FleetRow.TTFT_SLACK_S, prefill] = slack_s
    if decode >= 0:
        table[FleetRow.COMING, decode] -= 1.0
        table[FleetRow.COMING_TOKENS, decode] -= own.mean
        table[FleetRow.RUNNING, decode] += 1.0
        table[FleetRow.KV_TOKENS, decode] += own.mean
    _settle(table, prefill)


@compiled
def withdraw(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, prefill: int, decode: int, entry: PlainEntry, slack_s: float, guard_s: float
) -> None:
    """It leaves before its prompt was computed; `slack_s` and `guard_s` are the least of those left."""
    own = Entry(*entry)
    if prefill >= 0:
        _wait(table, prefill, own, -1.0)
        table[FleetRow.TTFT_SLACK_S, prefill] = slack_s
    if decode >= 0:
        table[FleetRow.COMING, decode] -= 1.0
        table[FleetRow.COMING_TOKENS, decode] -= own.mean
        _hold(table, decode, own, -1.0)
        table[FleetRow.TPOT_SLO_S, decode] = guard_s
    _settle(table, prefill)
    _settle(table, decode)


@compiled
def leave(table: FloatArray, prefill: int, decode: int, entry: PlainEntry, guard_s: float) -> None:
    """It leaves its decode replica; `guard_s` is the least of those that are left there."""
    own = Entry(*entry)
    if decode >= 0:
        table[FleetRow.RUNNING, decode] -= 1.0
        table[FleetRow.KV_TOKENS, decode] -= own.mean
        _hold(table, decode, own, -1.0)
        table[FleetRow.TPOT_SLO_S, decode] = guard_s
    _settle(table, prefill)
    _settle(table, decode)


@compiled
def _wait(table: FloatArray, slot: int, own: Entry, sign: float) -> None:
    if sign < 0.0:
        # What the engine has done is spread evenly over the prompts there.
        table[FleetRow.DONE_S, slot] *= 1.0 - 1.0 / max(table[FleetRow.WAITING, slot], 1.0)
    table[FleetRow.WAITING, slot] += sign
    table[FleetRow.PREFILL_TOKENS, slot] += sign * own.uncached
    table[FleetRow.WORK_S, slot] += sign * own.busy_s
    table[FleetRow.LOAD, slot] += sign * own.prefill_load
    table[FleetRow.RESERVED_TOKENS, slot] += sign * own.held


@compiled
def _hold(table: FloatArray, slot: int, own: Entry, sign: float) -> None:
    table[FleetRow.RESERVED_TOKENS, slot] += sign * own.need
    table[FleetRow.OUTPUT_TOKENS, slot] += sign * own.output
    table[FleetRow.LOAD, slot] += sign * own.load


@compiled
def _settle(table: FloatArray, slot: int) -> None:
    """Sums of fractions do not return to 0 by themselves when the last request leaves."""
    if slot >= 0 and table[FleetRow.WAITING, slot] == 0.0:
        table[FleetRow.WORK_S, slot] = table[FleetRow.DONE_S, slot] = 0.0
        if table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot] == 0.0:
            table[FleetRow.LOAD, slot] = 0.0
