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


FIRST_COLUMNS = 64


class Columns:
    """A table f8[rows, columns] whose columns are taken and given back: as wide as it ever was.

    `values` is another array after a column was taken. A column is `empty`, f8[rows], when it is taken.
    """

    def __init__(self, empty: FloatArray) -> None:
        self._empty, self._free = empty[:, None], list[int]()
        self.values: FloatArray = np.zeros((len(empty), 0))

    def take(self) -> int:
        """A column that is free."""
        if not self._free:
            old = self.values.shape[1]
            new = max(FIRST_COLUMNS, old + old // 4)
            self.values = np.concatenate([self.values, self._empty.repeat(new - old, axis=1)], axis=1)
            # In descending order: `pop` takes the last, so that columns are given out in ascending order.
            self._free.extend(range(new - 1, old - 1, -1))
        return self._free.pop()

    def give_back(self, column: int) -> None:
        """It is free again."""
        self.values[:, column : column + 1] = self._empty
        self._free.append(column)


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
    OTHER_REQUESTS = 13
    """Requests that the engine reports beyond ours."""
    OTHER_TOKENS = 14
    """KV tokens that the engine reports beyond ours."""
    LOAD = 15
    """Share of its capacity for patterns that is taken."""
    CAPACITY_TOKENS = 16
    """KV tokens that fit; infinite where that is unknown."""
    KIND = 17
    """Index of the profile of its GPU type, −1 for one without."""
    OTHER_WAITING = 18
    """Requests that the engine reports as queued, beyond ours whose prompts are to be computed there."""
    OTHER_PROMPT_TOKENS = 19
    """Estimated uncached prompt tokens of those of them that are not ours."""
    OTHER_WORK_S = 20
    """Estimated seconds that computing these takes."""
    DONE_S = 21
    """The part of WORK_S that is done by what the engine reports."""
    SATURATED_UNTIL_S = 22
    """The time until which the engine's word stands that it is saturated."""
    TTFT_CAUTION = 23
    """Safety factor of predictions of TTFT there, less 1 (`corrections`)."""
    TPOT_CAUTION = 24
    PROMPT_AT_S = 25
    """When the last prompt was placed here whose TTFT SLO could be kept."""
    SHUT_OUT = 26
    """Requests of ours that wait there for room in its batch or its KV (`reports`)."""
    ADAPTERS = 27
    """Adapters there (`adapters`)."""
    ADAPTERS_IN_USE = 28
    """Of these, adapters of requests there."""
    ADAPTER_ROOM = 29
    """Adapters that a batch can use."""
    ADAPTER_WORK = 30
    """Tokens of requests placed there, smoothed."""


DUTY_MEMORY = 0.5
"""The part of a usual stay that those running have before them, on average."""

EMPTY: Mapping[FleetRow, float] = {
    FleetRow.TPOT_SLO_S: inf,
    FleetRow.CAPACITY_TOKENS: inf,
    FleetRow.BUSY_UNTIL_S: -inf,
    FleetRow.PROMPT_AT_S: -inf,
    FleetRow.KIND: -1.0,
}
"""The cells of a new replica, where they are not 0."""


class Entry(NamedTuple):
    """The figures of one request in the table, kept as a plain tuple and named anew where they are read: to
    pass a named one to compiled code takes longer than all the writing, and the garbage collector looks at
    it."""

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
NO_ENTRY: PlainEntry = tuple(Entry())
Step = tuple[float, float, float]

PLACED: Step = (1.0, 1.0, 0.0)
PREFILLED: Step = (-1.0, -1.0, 1.0)
WITHDRAWN: Step = (-1.0, -1.0, 0.0)
ENDED: Step = (0.0, 0.0, -1.0)
"""What a step of a request adds to those that wait at its prefill replica, to those that are coming to its
decode replica, and to those that run there."""


@compiled
def change(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    prefill: int,
    decode: int,
    entry: PlainEntry,
    step: Step,
    now_s: float,
    memory_s: float,
) -> None:
    """A request takes the step. Duty remembers `memory_s`."""
    own = Entry(*entry)
    waits, comes, runs = step
    stays = comes + runs
    if prefill >= 0 and waits != 0.0:
        if waits < 0.0:
            # What the engine has done is spread evenly over the prompts there.
            table[FleetRow.DONE_S, prefill] *= 1.0 - 1.0 / max(table[FleetRow.WAITING, prefill], 1.0)
        table[FleetRow.WAITING, prefill] += waits
        table[FleetRow.PREFILL_TOKENS, prefill] += waits * own.uncached
        table[FleetRow.WORK_S, prefill] += waits * own.busy_s
        table[FleetRow.LOAD, prefill] += waits * own.prefill_load
        table[FleetRow.RESERVED_TOKENS, prefill] += waits * own.held
        if waits > 0.0:
            before_s = max(table[FleetRow.BUSY_UNTIL_S, prefill], now_s)
            table[FleetRow.BUSY_UNTIL_S, prefill] = before_s + own.busy_s
            kept = exp((table[FleetRow.DUTY_AT_S, prefill] - now_s) / memory_s)
            table[FleetRow.DUTY, prefill] = table[FleetRow.DUTY, prefill] * kept + own.work_s / memory_s
            table[FleetRow.DUTY_AT_S, prefill] = now_s
        elif runs > 0.0:
            table[FleetRow.BUSY_UNTIL_S, prefill] = now_s + table[FleetRow.WORK_S, prefill]
    if decode >= 0:
        table[FleetRow.COMING, decode] += comes
        table[FleetRow.COMING_TOKENS, decode] += comes * own.mean
        table[FleetRow.RUNNING, decode] += runs
        table[FleetRow.KV_TOKENS, decode] += runs * own.mean
        table[FleetRow.RESERVED_TOKENS, decode] += stays * own.need
        table[FleetRow.OUTPUT_TOKENS, decode] += stays * own.output
        table[FleetRow.LOAD, decode] += stays * own.load
    _settle(table, prefill)
    _settle(table, decode)


@compiled
def _settle(table: FloatArray, slot: int) -> None:
    """Sums of fractions do not return to 0 by themselves when the last request leaves."""
    if slot >= 0 and table[FleetRow.WAITING, slot] == 0.0:
        table[FleetRow.WORK_S, slot] = table[FleetRow.DONE_S, slot] = 0.0
        if table[FleetRow.RUNNING, slot] + table[FleetRow.COMING, slot] == 0.0:
            table[FleetRow.LOAD, slot] = 0.0
