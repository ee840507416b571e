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
from interp.jit import compiled
from interp.kernels import bilinear, ttft_at


class EngineSurfaces(NamedTuple):
    """One engine type. Nodes of W (tokens, seconds) and its growth beyond; the ITL table; KV tokens."""

    work_tokens: FloatArray
    work_s: FloatArray
    growth: tuple[float, float]
    kv: FloatArray
    inv_context: FloatArray
    itl_s: FloatArray
    capacity_tokens: float


def engine_surfaces(profile: Profile) -> EngineSurfaces:
    """The surfaces of `profile`."""
    tokens, seconds = profile.prefill.table.work_nodes()
    growth, decode = profile.prefill.table, profile.decode.table
    return EngineSurfaces(
        work_tokens=tokens,
        work_s=seconds,
        growth=(float(growth.linear_s_per_token), float(growth.quadratic_s_per_token2)),
        # Copies: compiled code is made for writable arrays, a table's may be read-only.
        kv=np.array(decode.kv),
        inv_context=np.array(decode.inv_context),
        itl_s=np.array(decode.itl_s),
        capacity_tokens=float(decode.max_kv_tokens),
    )


@compiled
def work_until_s(surfaces: EngineSurfaces, tokens: float) -> float:
    """W(tokens) in seconds; the difference of two values is what the tokens between them add."""
    linear, quadratic = surfaces.growth
    return ttft_at(tokens, surfaces.work_tokens, surfaces.work_s, linear, quadratic)


@compiled
def work_of(surfaces: EngineSurfaces, tokens: float) -> float:
    """Seconds that computing `tokens` prompt tokens adds to iterations, W(tokens) − W(0)."""
    return float(work_until_s(surfaces, tokens) - surfaces.work_s[0])


@compiled
def itl_of(surfaces: EngineSurfaces, batch: float, kv_tokens: float) -> float:
    """Seconds of an iteration of `batch` > 0 sequences that hold `kv_tokens` together."""
    usage = kv_tokens / surfaces.capacity_tokens
    return float(bilinear(usage, batch / kv_tokens, surfaces.kv, surfaces.inv_context, surfaces.itl_s))


def idle_itl_s(profile: Profile, context_tokens: FloatArray) -> FloatArray:
    """Seconds of an iteration of one sequence with that context, f8[N]: ITL on an idle engine."""
    usage = np.minimum(1.0, context_tokens / profile.decode.table.max_kv_tokens)
    return np.asarray(profile.decode.itl_s(usage, context_tokens))


def prompt_work_s(table: PrefillTable, tokens: FloatArray) -> FloatArray:
    """W(tokens) − W(0) for whole prompts, f8[N], in numpy: needs no compiler."""
    nodes, seconds = table.work_nodes()
    beyond = np.maximum(tokens - nodes[-1], 0.0)
    growth = table.linear_s_per_token + table.quadratic_s_per_token2 * (tokens + nodes[-1])
    work: FloatArray = np.interp(tokens, nodes, seconds) + beyond * growth - seconds[0]
    return work
