"""The router's waiting queue: microseconds of an operation, at 1,000 to 100,000 waiting requests.

A steady state: each step pushes one, takes the next in order, and every tenth cancels one from the middle.
The first look, which moves all that are lost by then, is not counted.
O(log n) means that a hundred times as many cost little more each.
"""

import time
from math import inf
from pathlib import Path

import numpy as np

from headway.routing import RequestSlo, RouteRequest
from headway.routing.capacity import RequestPattern
from headway.routing.fair_shares import TenantShares
from headway.routing.held_lines import UrgencyQueue, WaitingRequest

SIZES = (1_000, 10_000, 100_000)
STEPS = 20_000
PATTERNS = 64
ROUNDS = 5
SLO = RequestSlo(ttft_s=1.0, tpot_s=0.05)


def entries(count: int, seed: int) -> list[WaitingRequest]:
    """Requests in order of arrival, 1 ms apart, of random patterns and slacks up to a minute."""
    generator = np.random.default_rng(seed)
    slacks, patterns = generator.uniform(0, 60, count), generator.integers(0, PATTERNS, count)
    return [
        WaitingRequest(
            request=RouteRequest(
                request_id=str(number), arrival_s=number / 1e3, input_tokens=100, max_tokens=100, slo=SLO
            ),
            pattern=RequestPattern("m", int(pattern) // 8, int(pattern) % 8),
            enqueued_s=number / 1e3,
            start_by_s=number / 1e3 + float(slack),
            expires_s=inf if number % 2 else number / 1e3 + 1e4,
        )
        for number, (slack, pattern) in enumerate(zip(slacks, patterns, strict=True))
    ]


def step_us(size: int, seed: int) -> float:
    """Microseconds of one step with about `size` requests waiting."""
    known = entries(size + STEPS, seed)
    queue = UrgencyQueue(TenantShares(lambda _: 1.0))
    for entry in known[:size]:
        queue.push(entry)
    now_s = known[size].enqueued_s
    next(queue.ordered(now_s))
    started = time.perf_counter()
    for number, entry in enumerate(known[size:]):
        queue.push(entry)
        queue.remove(next(queue.ordered(now_s)).request.request_id)
        if number % 10 == 0:
            queue.remove(str(size - number // 2))
    return (time.perf_counter() - started) / STEPS * 1e6


def main(_: Path | None) -> int:
    """Print a line per size; 0."""
    step_us(SIZES[0], 0)
    for size in SIZES:
        times = [step_us(size, seed) for seed in range(ROUNDS)]
        spread = f"{min(times):.1f} to {max(times):.1f}"
        print(f"{size:>7,} waiting, {PATTERNS} patterns: a step takes {np.median(times):.1f} µs ({spread})")
    return 0
