r"""Durations of iterations: a profile's surfaces as flat arrays, and compiled look-ups in them.

The simulator's kernel, the planner's replay and the router's forecasts all time engines by these functions.

    ITL(n, K)   an iteration of n sequences that hold K tokens together: bilinear in K / capacity and n / K
    TTFT(u)     a whole prompt of u tokens on an idle engine: the cost of an iteration, and the work
    W(u)        the prefill work curve: the running maximum of TTFT over the samples, continued to 0 tokens
                with its slope at the first ones (not below 0, nor above the shortest ITL), and above the last
                sample as TTFT is (`PrefillTable.work_nodes`)

Where an iteration carries tokens of several prompts, or decodes as well, only the work adds up: a chunk from
u to u + c tokens of a prompt adds W(u + c) − W(u) >= 0. W(0) is the cost of an iteration without work, where
no decode batch pays for it. So no token is free and no chunk takes negative time, also where samples fall or
begin at some length.
"""

from typing import NamedTuple

import numpy as np

from interp import PrefillTable, Profile
from interp.arrays import FloatArray
from interp.jit import compiled_in_place
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
