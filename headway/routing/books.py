"""The entries of `ledger` in the fleet's table, compiled: each event writes a dozen cells.

A slot of −1 stands for a replica that is GONE and has no cells. Figures come as one plain tuple, because
handing named ones to compiled code takes longer than all the writing.
"""

from math import exp

from headway.routing.columns import Column
from headway.routing.fleet import FloatArray
from interp.jit import compiled

WAITING, COMING, RUNNING = int(Column.WAITING), int(Column.COMING), int(Column.RUNNING)
PREFILL_TOKENS, WORK_S = int(Column.PREFILL_TOKENS), int(Column.WORK_S)
BUSY_UNTIL_S, RESERVED_TOKENS = int(Column.BUSY_UNTIL_S), int(Column.RESERVED_TOKENS)
KV_TOKENS, COMING_TOKENS = int(Column.KV_TOKENS), int(Column.COMING_TOKENS)
OUTPUT_TOKENS, LOAD = int(Column.OUTPUT_TOKENS), int(Column.LOAD)
DUTY, DUTY_AT_S = int(Column.DUTY), int(Column.DUTY_AT_S)
TPOT_SLO_S, TTFT_SLACK_S = int(Column.TPOT_SLO_S), int(Column.TTFT_SLACK_S)

Entry = tuple[float, float, float, float, float, float, float, float, float]
"""One request in numbers, in the order of the constants that follow."""

OWN_UNCACHED, OWN_BUSY_S, OWN_WORK_S = 0, 1, 2
OWN_HELD = 3
"""Tokens that its prompt holds at another replica that also decodes."""
OWN_PREFILL_LOAD, OWN_NEED, OWN_MEAN, OWN_OUTPUT, OWN_LOAD = 4, 5, 6, 7, 8


@compiled
def enter(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray,
    prefill: int,
    decode: int,
    entry: Entry,
    now_s: float,
    stay_s: float,
    slack_s: float,
    guard_s: float,
) -> None:
    """The request is placed; `slack_s` and `guard_s` bind those that come after it."""
    if prefill >= 0:
        _wait(table, prefill, entry, 1.0)
        table[BUSY_UNTIL_S, prefill] = max(table[BUSY_UNTIL_S, prefill], now_s) + entry[OWN_BUSY_S]
        kept = exp((table[DUTY_AT_S, prefill] - now_s) / stay_s)
        table[DUTY, prefill] = table[DUTY, prefill] * kept + entry[OWN_WORK_S] / stay_s
        table[DUTY_AT_S, prefill] = now_s
        table[TTFT_SLACK_S, prefill] = min(table[TTFT_SLACK_S, prefill], slack_s)
    if decode >= 0:
        table[COMING, decode] += 1.0
        table[COMING_TOKENS, decode] += entry[OWN_MEAN]
        _hold(table, decode, entry, 1.0)
        table[TPOT_SLO_S, decode] = min(table[TPOT_SLO_S, decode], guard_s)


@compiled
def move(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, prefill: int, decode: int, entry: Entry, now_s: float, slack_s: float
) -> None:
    """Its prompt is computed; `slack_s` is the least of those that still wait there."""
    if prefill >= 0:
        _wait(table, prefill, entry, -1.0)
        table[BUSY_UNTIL_S, prefill] = now_s + table[WORK_S, prefill]
        table[TTFT_SLACK_S, prefill] = slack_s
    if decode >= 0:
        table[COMING, decode] -= 1.0
        table[COMING_TOKENS, decode] -= entry[OWN_MEAN]
        table[RUNNING, decode] += 1.0
        table[KV_TOKENS, decode] += entry[OWN_MEAN]
    _settle(table, prefill)


@compiled
def withdraw(  # noqa: PLR0917 - plain figures, compiled
    table: FloatArray, prefill: int, decode: int, entry: Entry, slack_s: float, guard_s: float
) -> None:
    """It leaves before its prompt was computed; `slack_s` and `guard_s` are the least of those left."""
    if prefill >= 0:
        _wait(table, prefill, entry, -1.0)
        table[TTFT_SLACK_S, prefill] = slack_s
    if decode >= 0:
        table[COMING, decode] -= 1.0
        table[COMING_TOKENS, decode] -= entry[OWN_MEAN]
        _hold(table, decode, entry, -1.0)
        table[TPOT_SLO_S, decode] = guard_s
    _settle(table, prefill)
    _settle(table, decode)


@compiled
def leave(table: FloatArray, prefill: int, decode: int, entry: Entry, guard_s: float) -> None:
    """It leaves its decode replica; `guard_s` is the least of those that are left there."""
    if decode >= 0:
        table[RUNNING, decode] -= 1.0
        table[KV_TOKENS, decode] -= entry[OWN_MEAN]
        _hold(table, decode, entry, -1.0)
        table[TPOT_SLO_S, decode] = guard_s
    _settle(table, prefill)
    _settle(table, decode)


@compiled
def _wait(table: FloatArray, slot: int, entry: Entry, sign: float) -> None:
    table[WAITING, slot] += sign
    table[PREFILL_TOKENS, slot] += sign * entry[OWN_UNCACHED]
    table[WORK_S, slot] += sign * entry[OWN_BUSY_S]
    table[LOAD, slot] += sign * entry[OWN_PREFILL_LOAD]
    table[RESERVED_TOKENS, slot] += sign * entry[OWN_HELD]


@compiled
def _hold(table: FloatArray, slot: int, entry: Entry, sign: float) -> None:
    table[RESERVED_TOKENS, slot] += sign * entry[OWN_NEED]
    table[OUTPUT_TOKENS, slot] += sign * entry[OWN_OUTPUT]
    table[LOAD, slot] += sign * entry[OWN_LOAD]


@compiled
def _settle(table: FloatArray, slot: int) -> None:
    """Sums of fractions are 0 again when nobody is left."""
    if slot >= 0 and table[WAITING, slot] == 0.0:
        table[WORK_S, slot] = 0.0
        if table[RUNNING, slot] + table[COMING, slot] == 0.0:
            table[LOAD, slot] = 0.0
