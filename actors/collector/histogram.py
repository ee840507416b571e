"""What one interval adds to a counter or histogram, and the mean and quantiles that follow.

    mean = sum / count                                                       exact
    q-quantile: rank r = q * count falls into the bucket (a, b], the n-th of its c observations:
        a + (b - a) * n / c                                                  linear in the bucket

These are the rules of PromQL's `histogram_quantile`, so that both sources give one number: the lowest bucket
begins at 0, and a quantile in the bucket without an upper bound is the highest bound that there is (a lower
bound of it).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf

from actors.collector.values import NAN, Latency

Buckets = Sequence[tuple[float, float]]
"""(upper bound, observations up to it), cumulative as Prometheus keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increase:
    """What was added: observations, their sum, and observations by bucket. A counter has `count` alone."""

    count: float = NAN
    total: float = NAN
    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def mean(self) -> float:
        """Mean of the added observations, NaN if there were none."""
        return self.total / self.count if self.count > 0 else NAN


def quantile(q: float, buckets: Buckets) -> float:
    """The q-quantile of what was added; NaN without observations, or without a bucket that holds them all."""
    rising = _rising(buckets)
    if len(rising) < 2 or not isinf(rising[-1][0]) or not rising[-1][1] > 0:
        return NAN
    rank = q * rising[-1][1]
    index = next(i for i, (_, count) in enumerate(rising) if count >= rank)
    if index == len(rising) - 1:
        return rising[-2][0]
    return _within(rank, rising, index)


def latency(increase: Increase) -> Latency:
    """Mean and quantiles."""
    p50, p95, p99 = (quantile(q, increase.buckets) for q in (0.50, 0.95, 0.99))
    return Latency(mean=increase.mean, p50=p50, p95=p95, p99=p99, count=increase.count)


def _within(rank: float, rising: Buckets, index: int) -> float:
    """Linear interpolation in a bucket with an upper bound."""
    upper, count = rising[index]
    if index == 0:
        lower, below = 0.0, 0.0
        if upper <= 0.0:
            return upper
    else:
        lower, below = rising[index - 1]
    return lower + (upper - lower) * (rank - below) / (count - below) if count > below else lower


def _rising(buckets: Buckets) -> list[tuple[float, float]]:
    """Sorted, and repaired where summed series with different bounds made the counts fall."""
    highest = -inf
    rising: list[tuple[float, float]] = []
    for bound, count in sorted(buckets):
        highest = max(highest, count)
        rising.append((bound, highest))
    return rising
