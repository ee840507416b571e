"""The entries of `ledger` in the fleet's table, compiled: each event writes a dozen cells.

A slot of −1 stands for a replica that is GONE and has no cells.
"""

from math import exp
from typing import NamedTuple

from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from interp.jit import compiled

WAITING, COMING, RUNNING = int(Column.WAITING), int(Column.COMING), int(Column.RUNNING)
PREFILL_TOKENS, WORK_S = int(Column.PREFILL_TOKENS), int(Column.WORK_S)
BUSY_UNTIL_S, RESERVED_TOKENS = int(Column.BUSY_UNTIL_S), int(Column.RESERVED_TOKENS)
KV_TOKENS, COMING_TOKENS = int(Column.KV_TOKENS), int(Column.COMING_TOKENS)
OUTPUT_TOKENS, LOAD = int(Column.OUTPUT_TOKENS), int(Column.LOAD)
DUTY, DUTY_AT_S = int(Column.DUTY), int(Column.DUTY_AT_S)


class Entry(NamedTuple):
    """One request in numbers. `held_tokens`: what its prompt holds at another replica that also decodes."""

    prefill_slot: int
    decode_slot: int
    uncached_tokens: float
    busy_s: float
    work_s: float
    held_tokens: float
    prefill_load: float
    need_tokens: float
    mean_tokens: float
    output_tokens: float
    load: float


@compiled
def enter(table: FloatArray, entry: Entry, now_s: float, stay_s: float) -> None:
    """The request is placed."""
    slot = entry.prefill_slot
    if slot >= 0:
        _wait(table, entry, 1.0)
        table[BUSY_UNTIL_S, slot] = max(table[BUSY_UNTIL_S, slot], now_s) + entry.busy_s
        kept = exp((table[DUTY_AT_S, slot] - now_s) / stay_s)
        table[DUTY, slot] = table[DUTY, slot] * kept + entry.work_s / stay_s
        table[DUTY_AT_S, slot] = now_s
    slot = entry.decode_slot
    if slot >= 0:
        table[COMING, slot] += 1.0
        table[COMING_TOKENS, slot] += entry.mean_tokens
        _hold(table, entry, 1.0)


@compiled
def move(table: FloatArray, entry: Entry, now_s: float) -> None:
    """Its prompt is computed."""
    slot = entry.prefill_slot
    if slot >= 0:
        _wait(table, entry, -1.0)
        table[BUSY_UNTIL_S, slot] = now_s + table[WORK_S, slot]
    slot = entry.decode_slot
    if slot >= 0:
        table[COMING, slot] -= 1.0
        table[COMING_TOKENS, slot] -= entry.mean_tokens
        table[RUNNING, slot] += 1.0
        table[KV_TOKENS, slot] += entry.mean_tokens
    _settle(table, entry.prefill_slot)


@compiled
def leave(table: FloatArray, entry: Entry, prefilled: bool) -> None:
    """It is no longer there; `prefilled` says which entries are left."""
    if not prefilled and entry.prefill_slot >= 0:
        _wait(table, entry, -1.0)
    slot = entry.decode_slot
    if slot >= 0:
        there, tokens = (RUNNING, KV_TOKENS) if prefilled else (COMING, COMING_TOKENS)
        table[there, slot] -= 1.0
        table[tokens, slot] -= entry.mean_tokens
        _hold(table, entry, -1.0)
    _settle(table, entry.prefill_slot)
    _settle(table, slot)


@compiled
def _wait(table: FloatArray, entry: Entry, sign: float) -> None:
    slot = entry.prefill_slot
    table[WAITING, slot] += sign
    table[PREFILL_TOKENS, slot] += sign * entry.uncached_tokens
    table[WORK_S, slot] += sign * entry.busy_s
    table[LOAD, slot] += sign * entry.prefill_load
    table[RESERVED_TOKENS, slot] += sign * entry.held_tokens


@compiled
def _hold(table: FloatArray, entry: Entry, sign: float) -> None:
    slot = entry.decode_slot
    table[RESERVED_TOKENS, slot] += sign * entry.need_tokens
    table[OUTPUT_TOKENS, slot] += sign * entry.output_tokens
    table[LOAD, slot] += sign * entry.load


@compiled
def _settle(table: FloatArray, slot: int) -> None:
    """Sums of fractions are 0 again when nobody is left."""
    if slot >= 0 and table[WAITING, slot] == 0.0:
        table[WORK_S, slot] = 0.0
        if table[RUNNING, slot] + table[COMING, slot] == 0.0:
            table[LOAD, slot] = 0.0
