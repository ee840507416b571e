"""More replicas for a queue that is already there.

Forecasts speak of what will come; what waits now comes on top. The queue's work is its requests × their mean
seconds. What the ready replicas clear within half of the TTFT target (at most PATIENCE_S) is harmless; the
rest shall be gone DRAIN_S after the new replicas are there:

    extra = ⌈(waiting × seconds − ready × min(TTFT / 2, PATIENCE_S)) / DRAIN_S⌉

at most as many again as are needed anyway. It only ever adds.
"""

from math import ceil, isfinite

from headway.planning.types import PoolState

PATIENCE_S, DRAIN_S = 5.0, 60.0


def extra_replicas(pool: PoolState, seconds_each: float, ttft_s: float, needed: int) -> int:
    """Replicas to add; 0 where the queue is not measured."""
    if not (isfinite(pool.waiting) and isfinite(seconds_each)):
        return 0
    harmless_s = max(1, pool.ready) * min(ttft_s / 2.0, PATIENCE_S)
    excess_s = pool.waiting * seconds_each - harmless_s
    return min(needed, ceil(excess_s / DRAIN_S)) if excess_s > 0.0 else 0
