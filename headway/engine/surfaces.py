"""Durations, compiled: of iterations, by a profile's surfaces, and of a decode batch's stretches.

A profile's surfaces are flat arrays here, with compiled look-ups in them. The simulator's kernel, the
planner's replay and the router's forecasts all time engines by these functions.

    ITL(n, K)   an iteration of n sequences that hold K tokens together: bilinear in K / capacity and n / K
    TTFT(u)     a whole prompt of u tokens on an idle engine: the cost of an iteration, and the work
    W(u)        the prefill work curve: the running maximum of TTFT over the samples, continued to 0 tokens
                with its slope at the first ones (not below 0, nor above the shortest ITL), and above the last
                sample as TTFT is (`PrefillTable.work_nodes`)

Where an iteration carries tokens of several prompts, or decodes as well, only the work adds up: a chunk from
u to u + c tokens of a prompt adds W(u + c) − W(u) >= 0. W(0) is the cost of an iteration without work, where
no decode batch pays for it. So no token is free and no chunk takes negative time, also where samples fall or
begin at some length.

A decode batch: when its sequences finish, and how long it takes between two changes.

Finishing. The batch is a heap of sequences by the iteration at which they finish: moving it on touches none.

Duration, in exact closed forms. One iteration of a batch of n sequences that hold K tokens together
lasts ITL(K, n), and leaves K + n tokens. The profile's surface is bilinear in u = K / max_kv_tokens and
v = n / K (one over the mean context) within a cell of its table, and u·v = n / max_kv_tokens does not change
while n stays. So within one cell

    ITL(K) = constant + linear · K + inverse / K

and m iterations from K take, with ψ the digamma function,

    Σ_{j<m} ITL(K + j n) = constant m + linear (m K + n m (m − 1) / 2) + inverse / n · (ψ(K/n + m) − ψ(K/n)).

Nothing is approximated: the sum equals the token-by-token sum to rounding.
"""

from math import floor, log1p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp import PrefillTable, Profile
from interp.arrays import FloatArray
from interp.jit import compiled, compiled_in_place
from interp.kernels import bilinear, ttft_at


class WorkCurve(NamedTuple):
    """W: its nodes, f8[N] each, and its growth beyond the last."""

    tokens: FloatArray
    seconds: FloatArray
    linear_s_per_token: float
    quadratic_s_per_token2: float


class ItlTable(NamedTuple):
    """ITL f8[L, M] over KV usage f8[M] and one over the mean context f8[L], both ascending; KV tokens."""

    kv: FloatArray
    inv_context: FloatArray
    itl_s: FloatArray
    capacity_tokens: float


class EngineSurfaces(NamedTuple):
    """One engine type."""

    work: WorkCurve
    itl: ItlTable


def engine_surfaces(profile: Profile) -> EngineSurfaces:
    """The surfaces of `profile`."""
    prefill, decode = profile.prefill.table, profile.decode.table
    linear, quadratic = float(prefill.linear_s_per_token), float(prefill.quadratic_s_per_token2)
    # Copies: compiled code is made for writable arrays, a table's may be read-only.
    axes = np.array(decode.kv), np.array(decode.inv_context)
    return EngineSurfaces(
        WorkCurve(*prefill.work_nodes(), linear, quadratic),
        ItlTable(*axes, np.array(decode.itl_s), float(decode.max_kv_tokens)),
    )


@compiled_in_place
def work_until_s(work: WorkCurve, tokens: float) -> float:
    """W(tokens) in seconds; the difference of two values is what the tokens between them add."""
    return ttft_at(tokens, work.tokens, work.seconds, work.linear_s_per_token, work.quadratic_s_per_token2)


@compiled_in_place
def chunk_work_s(work: WorkCurve, done: float, tokens: float) -> float:
    """Seconds that `tokens` of a prompt add to an iteration when `done` of its tokens have been computed.

    A prompt takes what one of its uncached tokens alone would: cached ones count on neither side.
    """
    return float(work_until_s(work, done + tokens) - work_until_s(work, done))


@compiled_in_place
def work_of(work: WorkCurve, tokens: float) -> float:
    """Seconds that computing `tokens` prompt tokens adds to iterations, W(tokens) − W(0)."""
    return float(work_until_s(work, tokens) - work.seconds[0])


@compiled_in_place
def itl_of(itl: ItlTable, batch: float, kv_tokens: float) -> float:
    """Seconds of an iteration of `batch` > 0 sequences that hold `kv_tokens` together."""
    usage = kv_tokens / itl.capacity_tokens
    return float(bilinear(usage, batch / kv_tokens, itl.kv, itl.inv_context, itl.itl_s))


def idle_itl_s(profile: Profile, context_tokens: FloatArray) -> FloatArray:
    """Seconds of an iteration of one sequence with that context, f8[N]: ITL on an idle engine."""
    usage = np.minimum(1.0, context_tokens / profile.decode.table.max_kv_tokens)
    return np.asarray(profile.decode.itl_s(usage, context_tokens))


def idle_prompt_s(profile: Profile, tokens: FloatArray, chunk_tokens: int) -> FloatArray:
    """Seconds of whole prompts on an idle engine, f8[N]; each chunk is an iteration, 0 for prompts in one."""
    table = profile.prefill.table
    if chunk_tokens == 0:
        return np.asarray(profile.prefill.ttft_s(tokens))
    iterations_s: FloatArray = np.ceil(tokens / chunk_tokens) * table.work_nodes()[1][0]
    return prompt_work_s(table, tokens) + iterations_s


def prompt_work_s(table: PrefillTable, tokens: FloatArray) -> FloatArray:
    """W(tokens) − W(0) for whole prompts, f8[N], in numpy: needs no compiler."""
    nodes, seconds = table.work_nodes()
    beyond = np.maximum(tokens - nodes[-1], 0.0)
    growth = table.linear_s_per_token + table.quadratic_s_per_token2 * (tokens + nodes[-1])
    work: FloatArray = np.interp(tokens, nodes, seconds) + beyond * growth - seconds[0]
    return work


DIGAMMA_SERIES_FROM = 10.0
DIRECT_TERMS = 6


class ItlCell(NamedTuple):
    """ITL(K) = constant + linear K + inverse / K for a batch of n, valid up to `end_tokens`."""

    constant: float
    linear: float
    inverse: float
    end_tokens: float


@compiled
def push_sequence(keys: NDArray[Any], sequences: NDArray[Any], size: int, key: float, sequence: int) -> None:
    """Add a sequence that finishes at iteration `key` to a heap of `size`."""
    place = size
    while place > 0 and keys[(place - 1) >> 1] > key:
        keys[place], sequences[place] = keys[(place - 1) >> 1], sequences[(place - 1) >> 1]
        place = (place - 1) >> 1
    keys[place], sequences[place] = key, sequence


@compiled
def pop_sequence(keys: NDArray[Any], sequences: NDArray[Any], size: int) -> int:
    """Take the first sequence to finish out of a heap of `size` > 0."""
    first, size, place = sequences[0], size - 1, 0
    key, sequence = keys[size], sequences[size]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and keys[child + 1] < keys[child]:
            child += 1
        if key <= keys[child]:
            break
        keys[place], sequences[place] = keys[child], sequences[child]
        place = child
    keys[place], sequences[place] = key, sequence
    return int(first)


@compiled
def admits(batch: int, most: int, reserved_tokens: float, capacity_tokens: float) -> bool:
    """True if one more sequence may join a batch of `batch`: by the batch limit `most`, and by KV.

    `reserved_tokens` are those of the batch with what the newcomer will hold in the end.
    """
    return batch < most and reserved_tokens <= capacity_tokens


@compiled
def _last_at_or_below(axis: NDArray[np.float64], value: float) -> int:
    """Index of the last entry <= value, -1 if none."""
    low, high = 0, len(axis)
    while low < high:
        middle = (low + high) >> 1
        if axis[middle] <= value:
            low = middle + 1
        else:
            high = middle
    return low - 1


@compiled
def find_cell(itl: ItlTable, batch: int, kv_tokens: float) -> ItlCell:
    """The cell in which a batch of `batch` sequences with `kv_tokens` tokens runs its next iteration."""
    kv, inv = itl.kv, itl.inv_context
    end = np.inf
    column = _last_at_or_below(kv, kv_tokens / itl.capacity_tokens)
    kv_scale, kv_offset = 0.0, 0.0
    if column < 0:
        column = 0
        end = kv[0] * itl.capacity_tokens
    elif column >= len(kv) - 1:
        column = len(kv) - 1
    else:
        width = kv[column + 1] - kv[column]
        kv_scale = 1.0 / (width * itl.capacity_tokens)
        kv_offset = -kv[column] / width
        end = kv[column + 1] * itl.capacity_tokens
    # One over the mean context falls as the batch grows, so a value on a node belongs to the cell below it.
    row = _last_at_or_below(inv, batch / kv_tokens * (1.0 - 1e-12))
    inv_scale, inv_offset = 0.0, 0.0
    if row < 0:
        row = 0
    elif row >= len(inv) - 1:
        row = len(inv) - 1
        end = min(end, batch / inv[row])
    else:
        width = inv[row + 1] - inv[row]
        inv_scale = batch / width
        inv_offset = -inv[row] / width
        end = min(end, batch / inv[row])
    right, up = min(column + 1, len(kv) - 1), min(row + 1, len(inv) - 1)
    origin = itl.itl_s[row, column]
    along_kv = itl.itl_s[row, right] - origin
    along_inv = itl.itl_s[up, column] - origin
    twist = itl.itl_s[up, right] - itl.itl_s[up, column] - along_kv
    return ItlCell(
        origin
        + kv_offset * along_kv
        + inv_offset * along_inv
        + (kv_scale * inv_scale + kv_offset * inv_offset) * twist,
        kv_scale * (along_kv + inv_offset * twist),
        inv_scale * (along_inv + kv_offset * twist),
        end,
    )


@compiled
def itl_at(cell: ItlCell, kv_tokens: float) -> float:
    """Duration in seconds of the iteration that starts with `kv_tokens` tokens."""
    return cell.constant + cell.linear * kv_tokens + cell.inverse / kv_tokens


@compiled
def _sum_of_reciprocals(start: float, count: float) -> float:
    """Σ_{j < count} 1 / (start + j), by the asymptotic series of the digamma function where it is exact."""
    total = 0.0
    while count > 0.0 and (start < DIGAMMA_SERIES_FROM or count <= DIRECT_TERMS):
        total += 1.0 / start
        start += 1.0
        count -= 1.0
    if count > 0.0:
        end = start + count
        low, high = 1.0 / (start * start), 1.0 / (end * end)
        total += log1p(count / start) - 0.5 / end + 0.5 / start
        total += (low - high) / 12.0 - (low * low - high * high) / 120.0 + (low**3 - high**3) / 252.0
    return total


@compiled
def stretch_s(cell: ItlCell, batch: int, kv_tokens: float, iterations: float) -> float:
    """Seconds that `iterations` iterations take within one cell."""
    growth = iterations * kv_tokens + 0.5 * batch * iterations * (iterations - 1.0)
    total = cell.constant * iterations + cell.linear * growth
    if cell.inverse != 0.0:
        total += cell.inverse / batch * _sum_of_reciprocals(kv_tokens / batch, iterations)
    return total


@compiled
def iterations_in_cell(cell: ItlCell, batch: int, kv_tokens: float) -> float:
    """The number of iterations that start before the cell ends; at least one, infinity for an open cell."""
    if cell.end_tokens == np.inf:
        return np.inf
    return max(1.0, floor((cell.end_tokens - kv_tokens) / batch) + 1.0)


@compiled
def duration_s(itl: ItlTable, batch: int, kv_tokens: float, iterations: float) -> float:
    """Seconds that `iterations` iterations of an unchanged batch take, across cells."""
    total = 0.0
    while iterations > 0.0:
        cell = find_cell(itl, batch, kv_tokens)
        step = min(iterations, iterations_in_cell(cell, batch, kv_tokens))
        total += stretch_s(cell, batch, kv_tokens, step)
        kv_tokens += step * batch
        iterations -= step
    return total


@compiled
def _solve_in_cell(cell: ItlCell, batch: int, kv_tokens: float, elapsed_s: float, most: float) -> float:
    """The least m in 1..most with stretch_s(m) >= elapsed_s, given that `most` is such a one."""
    guess = 1.0
    # Newton gets within a step or two; the walks after it make the answer exact whatever the rounding.
    for _ in range(3):
        excess = stretch_s(cell, batch, kv_tokens, guess) - elapsed_s
        guess = min(max(floor(guess - excess / itl_at(cell, kv_tokens + guess * batch)), 1.0), most)
    while guess < most and stretch_s(cell, batch, kv_tokens, guess) < elapsed_s:
        guess += 1.0
    while guess > 1.0 and stretch_s(cell, batch, kv_tokens, guess - 1.0) >= elapsed_s:
        guess -= 1.0
    return guess


@compiled
def iterations_until(
    itl: ItlTable, batch: int, kv_tokens: float, elapsed_s: float, most: float
) -> tuple[float, float]:
    """The least m >= 1 whose iterations end at or after `elapsed_s`, at most `most`; and when they end."""
    done, time_s = 0.0, 0.0
    while True:
        cell = find_cell(itl, batch, kv_tokens)
        step = min(most - done, iterations_in_cell(cell, batch, kv_tokens))
        length = stretch_s(cell, batch, kv_tokens, step)
        if time_s + length >= elapsed_s:
            step = _solve_in_cell(cell, batch, kv_tokens, elapsed_s - time_s, step)
            return done + step, time_s + stretch_s(cell, batch, kv_tokens, step)
        done += step
        time_s += length
        if done >= most:
            return done, time_s
        kv_tokens += step * batch
