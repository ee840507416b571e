"""Fill the two tables of a profile from an engine's step latencies.

Prefill, batch of one:  ttft = T_prefill(isl),      throughput per GPU = isl / ttft / gpus   [tokens/s/GPU]
Decode, n requests at context c:  itl = T_decode(n, c),  throughput per GPU = n / itl / gpus  [tokens/s/GPU],
                        kv_usage = n·c / max_kv_tokens   (0..1)

Latencies come from a `LatencyEstimator` in milliseconds and are turned into seconds here. Pure.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from headway.profiling.errors import EstimateError
from headway.profiling.estimator import LatencyEstimator
from headway.profiling.grids import DecodePoint
from interp import DecodeSamples, PrefillSamples

MS_PER_S = 1000.0
Tick = Callable[[], None]


def fill_prefill(
    estimator: LatencyEstimator, isl_tokens: Sequence[int], gpus: int, tick: Tick
) -> PrefillSamples:
    """Sample prefill at each input length (at least two); `tick` is called after each sample."""
    ttft = [_seconds(estimator.prefill_ms(isl), f"prefill at {isl} tokens", tick) for isl in isl_tokens]
    isl, ttft_s = np.asarray(isl_tokens, dtype=np.float64), np.asarray(ttft, dtype=np.float64)
    return PrefillSamples(isl_tokens=isl, ttft_s=ttft_s, throughput_per_gpu=isl / ttft_s / gpus)


def fill_decode(
    estimator: LatencyEstimator, points: Sequence[DecodePoint], gpus: int, tick: Tick
) -> DecodeSamples:
    """Sample decode at each point (at least one); `tick` is called after each sample."""
    itl = [
        _seconds(
            estimator.decode_ms(point.batch, point.context_tokens),
            f"decode at batch {point.batch} and {point.context_tokens} tokens",
            tick,
        )
        for point in points
    ]
    batch = np.array([point.batch for point in points], dtype=np.float64)
    context = np.array([point.context_tokens for point in points], dtype=np.float64)
    itl_s, capacity = np.asarray(itl, dtype=np.float64), float(estimator.facts.max_kv_tokens)
    return DecodeSamples(
        max_kv_tokens=capacity,
        kv_usage=batch * context / capacity,
        context_tokens=context,
        itl_s=itl_s,
        throughput_per_gpu=batch / itl_s / gpus,
    )


def _seconds(latency_ms: float, what: str, tick: Tick) -> float:
    """Convert a latency, when it is one: finite and above zero."""
    if not (math.isfinite(latency_ms) and latency_ms > 0.0):
        raise EstimateError(f"{what}: the estimator answered {latency_ms} ms, which is no latency")
    tick()
    return latency_ms / MS_PER_S
