"""Records of the kernel for Python: ended requests, transitions of replicas, latency histograms.

Where a router drives (`Routing.ROUTER`), there are also notices of what concerns it (`layout.NOTICE`).

Histograms have geometric buckets: bounded memory, quantiles within half a bucket. Bucket i > 0 holds values
in (LEAST_S · RATIO^(i−1), LEAST_S · RATIO^i]; bucket 0 everything up to LEAST_S. A quantile is reported as
its bucket's geometric middle, at most 0.25 % off. Exact sums are kept elsewhere.
"""

from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel import layout
from headway.engine.kernel.layout import NONE, KernelState, Routing
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
    counted = 0  # rounding the running total, not each part, keeps the sum at `times`
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


@compiled
def notify(state: KernelState, kind: int, index: int, number: int, value: int) -> None:
    """Tell the router, if one drives."""
    if state.settings[0].routing == Routing.ROUTER:
        clock = state.clock[0]
        notice = state.notices[clock.notices]
        notice.kind, notice.index, notice.number, notice.value = kind, index, number, value
        clock.notices += 1


@compiled
def log_transition(state: KernelState, replica: int, change: int) -> None:
    """Tell Python that a replica changed its state."""
    clock, unit = state.clock[0], state.replicas[replica]
    entry = state.transitions[clock.transitions]
    entry.time_s, entry.created_s = clock.now_s, unit.created_s
    entry.role, entry.state = unit.role, change
    clock.transitions += 1
    if change != layout.CANCELLED:
        notify(state, layout.REPLICA_CHANGED, replica, unit.serial, change)


@compiled
def end_request(state: KernelState, request: int, outcome: int) -> None:
    """Write the request's record and free its slot."""
    clock, asked = state.clock[0], state.requests[request]
    asked.outcome, asked.finished_s = outcome, clock.now_s
    if outcome == layout.COMPLETED:
        window = state.window[0]
        window.completed += 1
        window.output_tokens += asked.output_tokens
        window.duration_s += clock.now_s - asked.arrival_s
    state.finished[clock.finished] = asked
    clock.finished += 1
    clock.active -= 1
    if outcome != layout.SHED:
        notify(
            state,
            layout.ENDED,
            request,
            asked.number,
            asked.output_tokens if outcome == layout.COMPLETED else NONE,
        )
    free_slot(state, request)


@compiled
def free_slot(state: KernelState, request: int) -> None:
    """Put a request's slot on the list of free ones."""
    clock, asked = state.clock[0], state.requests[request]
    asked.number = NONE
    asked.next = clock.free_request
    clock.free_request = request
    clock.free_requests += 1


@compiled
def count_gap(state: KernelState, gap_s: float, times: int) -> None:
    """Count `times` gaps between tokens of `gap_s` seconds."""
    window = state.window[0]
    window.gaps += times
    window.gap_s += gap_s * times
    add(state.histograms[layout.ITL], gap_s, times)


@compiled
def count_first_token(state: KernelState, request: int, at_s: float) -> None:
    """The request's first token leaves at `at_s`."""
    asked, window = state.requests[request], state.window[0]
    asked.first_token_s = at_s
    ttft_s = at_s - asked.arrival_s
    window.first_tokens += 1
    window.ttft_s += ttft_s
    add(state.histograms[layout.TTFT], ttft_s, 1)
    notify(state, layout.FIRST_TOKEN, request, asked.number, 0)
