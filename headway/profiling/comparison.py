"""How two profiles differ: the second over the first, at the first one's samples.

A ratio of 1.1 in TTFT or ITL means that the second is a tenth slower there. Only samples within the second
one's sampled range count; the others are counted apart. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from interp import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Second over first at `points` samples; None where there is none. `outside` samples are not covered."""

    points: int
    outside: int
    median: float | None
    least: float | None
    most: float | None


def compare_profiles(first: Profile, second: Profile) -> Mapping[str, Ratios]:
    """Ratios of TTFT, ITL, and throughput per GPU in prefill and decode."""
    isl = first.prefill.samples.isl_tokens
    kv, context = first.decode.samples.kv_usage, first.decode.samples.context_tokens
    # The second engine may hold more or less: the same batch is what can be compared.
    kv = kv * (first.decode.table.max_kv_tokens / second.decode.table.max_kv_tokens)
    prefill_inside = ~second.prefill.extrapolated(isl)
    decode_inside = ~second.decode.extrapolated(np.minimum(kv, 1.0), context) & (kv <= 1.0)
    a, b = first.prefill, second.prefill
    c, d = first.decode.samples, second.decode
    kv = np.minimum(kv, 1.0)
    return {
        "TTFT": _ratios(b.ttft_s(isl) / a.samples.ttft_s, prefill_inside),
        "prefill throughput per GPU": _ratios(
            b.throughput_per_gpu(isl) / a.samples.throughput_per_gpu, prefill_inside
        ),
        "ITL": _ratios(d.itl_s(kv, context) / c.itl_s, decode_inside),
        "decode throughput per GPU": _ratios(
            d.throughput_per_gpu(kv, context) / c.throughput_per_gpu, decode_inside
        ),
    }


def _ratios(values: np.ndarray, inside: np.ndarray) -> Ratios:
    kept = values[inside]
    if len(kept) == 0:
        return Ratios(points=0, outside=len(values), median=None, least=None, most=None)
    return Ratios(
        points=len(kept),
        outside=int(np.count_nonzero(~inside)),
        median=float(np.median(kept)),
        least=float(kept.min()),
        most=float(kept.max()),
    )
