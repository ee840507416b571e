"""A profile's surfaces in the shape that compiled look-ups want, and the work curve of prompts.

The work curve W(u) says what u prompt tokens add to an iteration that runs anyway: the running maximum of
TTFT over the samples, continued to 0 tokens (`PrefillTable.work_nodes`). W(0) is the cost of an iteration
without work and without decodes. The simulator's engines are timed by the same curve.
"""

from typing import NamedTuple

import numpy as np

from headway.routing.table import FloatArray
from interp import Profile
from interp.jit import compiled
from interp.kernels import bilinear, ttft_at


class Surfaces(NamedTuple):
    """One engine type. Nodes of W (tokens, seconds) and its growth beyond; the ITL table; KV tokens."""

    work_tokens: FloatArray
    work_s: FloatArray
    growth: tuple[float, float]
    kv: FloatArray
    inv_context: FloatArray
    itl_s: FloatArray
    capacity_tokens: float


def surfaces_of(profile: Profile) -> Surfaces:
    """The surfaces of `profile`."""
    tokens, seconds = profile.prefill.table.work_nodes()
    growth, decode = profile.prefill.table, profile.decode.table
    return Surfaces(
        work_tokens=tokens,
        work_s=seconds,
        growth=(float(growth.linear_s_per_token), float(growth.quadratic_s_per_token2)),
        kv=np.ascontiguousarray(decode.kv),
        inv_context=np.ascontiguousarray(decode.inv_context),
        itl_s=np.ascontiguousarray(decode.itl_s),
        capacity_tokens=float(decode.max_kv_tokens),
    )


@compiled
def work_of(surfaces: Surfaces, tokens: float) -> float:
    """Seconds that computing `tokens` prompt tokens adds to iterations, W(tokens) − W(0)."""
    linear, quadratic = surfaces.growth
    return float(
        ttft_at(tokens, surfaces.work_tokens, surfaces.work_s, linear, quadratic) - surfaces.work_s[0]
    )


@compiled
def itl_of(surfaces: Surfaces, batch: float, kv_tokens: float) -> float:
    """Seconds of an iteration of `batch` > 0 sequences that hold `kv_tokens` together."""
    usage = kv_tokens / surfaces.capacity_tokens
    return float(bilinear(usage, batch / kv_tokens, surfaces.kv, surfaces.inv_context, surfaces.itl_s))
