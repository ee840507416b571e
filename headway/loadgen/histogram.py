"""A latency histogram with geometric buckets that is filled value by value: bounded memory, quantiles
within 0.25 %.

Bucket i > 0 holds values in (LEAST_S · RATIO^(i−1), LEAST_S · RATIO^i]; bucket 0 everything up to LEAST_S.
Only buckets in use take memory. Values have weights, since a token of a shared chunk may stand for a
fraction of one measurement. A quantile is its bucket's geometric middle; the mean is exact.
"""

from math import ceil, isfinite, log

LEAST_S = 1e-5
RATIO = 1.005
LOG_RATIO = log(RATIO)
BUCKETS = 4700
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
ROUNDING = 1e-9


class Histogram:
    """Seconds, each with a weight."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.total_s = 0.0
        self.highest_s = 0.0
        self._buckets: dict[int, float] = {}

    def add(self, value_s: float, weight: float = 1.0) -> None:
        """Count a value; negative and non-finite ones are a fault of the caller."""
        if not (isfinite(value_s) and value_s >= 0 and weight > 0):
            raise ValueError(f"a latency of {value_s} s with weight {weight}")
        bucket = min(ceil(log(value_s / LEAST_S) / LOG_RATIO), BUCKETS - 1) if value_s > LEAST_S else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + weight
        self.weight += weight
        self.total_s += value_s * weight
        self.highest_s = max(self.highest_s, value_s)

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the weight does not exceed; None when empty."""
        if not self.weight:
            return None
        wanted, seen = share * self.weight * (1 - ROUNDING), 0.0
        bucket = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                break
        return LEAST_S * RATIO ** (bucket - 0.5) if bucket else LEAST_S

    @property
    def mean_s(self) -> float | None:
        """The exact mean; None when empty."""
        return self.total_s / self.weight if self.weight else None

    def summary(self) -> dict[str, float | None]:
        """Mean and quantiles in seconds; None where nothing was measured."""
        return {"mean": self.mean_s, **{name: self.quantile(share) for name, share in QUANTILES.items()}}
