"""The smooth models behind the surfaces, used only where there are no samples.

Prefill:  ttft = a + b * isl + c * isl**2      launch cost, linear layers, attention
Decode:   itl  = a + b * K + c * n             launch cost and weights read, KV cache read, work per sequence

with K the tokens in the KV cache and n = K / context the batch size. Both are rooflines: an operator costs
the larger of its memory and its compute time, each of them linear in these terms. The coefficients are fitted
by least squares subject to a, b, c >= 0 (Lawson and Hanson, Solving Least Squares Problems, 1974, ch. 23), so
an extrapolation never falls as work grows, and never goes below zero. Samples are not moved onto the model:
it only continues them.

Some sweeps cannot tell the terms apart: at one batch size throughout, c * n looks like a. So the fit is made
twice: first with one more equation, which is 0 = PREFERENCE * coefficients and gives the weight to the
earlier of terms that look alike, then plainly with the terms that this left in.
"""

from dataclasses import dataclass

import numpy as np

from interp.arrays import FloatArray
from interp.samples import DecodeSamples, PrefillSamples

PREFERENCE = (0.0, 1e-3, 2e-3)
"""What the terms cost, in order, relative to the largest value of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillModel:
    """ttft_s = base_s + linear_s_per_token * isl + quadratic_s_per_token2 * isl**2."""

    base_s: float
    linear_s_per_token: float
    quadratic_s_per_token2: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeModel:
    """itl_s = base_s + per_kv_token_s * tokens in the KV cache + per_sequence_s * batch size."""

    base_s: float
    per_kv_token_s: float
    per_sequence_s: float


def fit_prefill(samples: PrefillSamples) -> PrefillModel:
    """The non-negative quadratic through `samples`."""
    isl = samples.isl_tokens
    base, linear, quadratic = _non_negative_fit((np.ones_like(isl), isl, isl**2), samples.ttft_s)
    return PrefillModel(base_s=base, linear_s_per_token=linear, quadratic_s_per_token2=quadratic)


def fit_decode(samples: DecodeSamples) -> DecodeModel:
    """The non-negative roofline through `samples`."""
    kv_tokens = samples.kv_usage * samples.max_kv_tokens
    columns = (np.ones_like(kv_tokens), kv_tokens, samples.batch_size)
    base, per_kv_token, per_sequence = _non_negative_fit(columns, samples.itl_s)
    return DecodeModel(base_s=base, per_kv_token_s=per_kv_token, per_sequence_s=per_sequence)


def _non_negative_fit(columns: tuple[FloatArray, ...], values: FloatArray) -> list[float]:
    """Coefficients >= 0 of `columns`, scaled to at most 1 first: tokens squared would drown a constant."""
    from scipy.optimize import nnls

    scales = np.array([column.max() or 1.0 for column in columns])
    terms = np.stack(columns, axis=1) / scales
    chosen, _ = nnls(np.vstack([terms, PREFERENCE]), np.append(values, 0.0))
    coefficients, _ = nnls(np.where(chosen > 0, terms, 0.0), values)
    return [float(value) for value in coefficients / scales]
