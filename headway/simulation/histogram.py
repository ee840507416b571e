"""Latency histograms with geometric buckets: bounded memory, quantiles within half a bucket.

Bucket i > 0 holds values in (LEAST_S · RATIO^(i−1), LEAST_S · RATIO^i]; bucket 0 everything up to LEAST_S. A
quantile is reported as its bucket's geometric middle, at most 0.25 % off. Exact sums are kept elsewhere.
"""

from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from interp.jit import compiled

LEAST_S = 1e-5
RATIO = 1.005
LOG_RATIO = log(RATIO)
BUCKETS = 4700  # up to LEAST_S * RATIO ** 4699 = 1.5e5 s
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


@compiled
def bucket_of(value_s: float) -> int:
    """The bucket that holds `value_s`."""
    if value_s <= LEAST_S:
        return 0
    return min(int(ceil(log(value_s / LEAST_S) / LOG_RATIO)), BUCKETS - 1)  # noqa: RUF046 - a float when compiled


@compiled
def add(counts: NDArray[np.int64], value_s: float, times: int) -> None:
    """Count `value_s` as seen `times` times."""
    counts[bucket_of(value_s)] += times


@compiled
def add_range(counts: NDArray[np.int64], from_s: float, to_s: float, times: int) -> None:
    """Count `times` values that run evenly from `from_s` to `to_s`."""
    low, high = bucket_of(min(from_s, to_s)), bucket_of(max(from_s, to_s))
    if low == high:
        counts[low] += times
        return
    least, span = min(from_s, to_s), abs(to_s - from_s)
    counted = 0
    edge = LEAST_S * RATIO**low
    for bucket in range(low, high):
        upto = int(times * ((edge - least) / span))
        counts[bucket] += upto - counted
        counted = upto
        edge *= RATIO
    counts[high] += times - counted


def buckets_of(values_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """`bucket_of` for an array."""
    with np.errstate(divide="ignore", invalid="ignore"):
        raw = np.ceil(np.log(np.maximum(values_s, LEAST_S) / LEAST_S) / LOG_RATIO)
    return np.clip(raw, 0, BUCKETS - 1).astype(np.int64)


def quantile(counts: NDArray[np.int64], q: float) -> float:
    """The q-quantile in seconds; NaN for an empty histogram."""
    total = int(counts.sum())
    if total == 0:
        return float("nan")
    bucket = int(np.searchsorted(np.cumsum(counts), max(1, ceil(q * total))))
    return float(LEAST_S * RATIO ** (bucket - 0.5)) if bucket else LEAST_S
