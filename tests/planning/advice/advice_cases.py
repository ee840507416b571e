"""What the tests of advice share: an engine, requests, observations and rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from headway.planning import Observation, PoolState, Role, Slo, Traffic
from headway.planning.advice.ledger import Row
from headway.planning.replay import ReplayEngine, Requests
from tests.planning.planning_cases import PROFILE

SPLIT = {Role.PREFILL: 3, Role.DECODE: 3}
MIXED = {Role.MIXED: 6}
INTERVAL_S = 30.0


def engine(chunk_tokens: int = 0, ttft_s: float = 0.5) -> ReplayEngine:
    return ReplayEngine(
        profile=PROFILE,
        slo=Slo(ttft_s=ttft_s, itl_s=0.02),
        max_batch_size=256,
        chunk_tokens=chunk_tokens,
        transfer_latency_s=0.01,
        transfer_s_per_token=1e-6,
    )


def requests(count: int, duration_s: float, seed: int = 0) -> Requests:
    generator = np.random.default_rng(seed)
    return Requests(
        np.sort(generator.random(count)) * duration_s,
        generator.integers(100, 3000, count).astype(np.float64),
        generator.integers(1, 400, count).astype(np.float64),
    )


def pools(counts: Mapping[Role, int], starting: int = 0) -> Mapping[Role, PoolState]:
    return {
        role: PoolState(desired=count + starting, starting=starting, ready=count, draining=0)
        for role, count in counts.items()
    }


def interval(number: int, count: int = 100, **changes: Any) -> Observation:
    """Interval `number` with so many requests, which complete in it, all in time."""
    begins_s = number * INTERVAL_S
    found = requests(count, INTERVAL_S, seed=number)
    base: dict[str, Any] = {
        "now_s": begins_s + INTERVAL_S,
        "interval_s": INTERVAL_S,
        "requests": float(count),
        "isl_tokens": float(found.input_tokens.mean()) if count else np.nan,
        "osl_tokens": float(found.output_tokens.mean()) if count else np.nan,
        "ttft_s": 0.1,
        "itl_s": 0.01,
        "pools": pools(SPLIT),
        "traffic": Traffic(
            arrival_s=begins_s + found.arrival_s,
            input_tokens=found.input_tokens,
            completed_input_tokens=found.input_tokens,
            completed_output_tokens=found.output_tokens,
            completed_arrival_s=begins_s + found.arrival_s,
            completed_ttft_s=np.full(count, 0.1),
            completed_itl_s=np.full(count, 0.01),
        ),
    }
    return Observation(**(base | changes))


def row(number: int, stood: float = 10.0, planned: float = 7.0, **changes: Any) -> Row:
    """Interval `number` of 30 s with so many GPUs of each fleet, and 100 requests, all in time."""
    start_s = number * INTERVAL_S
    values: dict[str, Any] = {
        "start_s": start_s,
        "end_s": start_s + INTERVAL_S,
        "seconds": INTERVAL_S,
        "requests": 100.0,
        "stood_gpu_s": stood * INTERVAL_S,
        "planned_gpu_s": planned * INTERVAL_S,
        "stood_replica_s": {Role.MIXED: stood * INTERVAL_S},
        "planned_replica_s": {Role.MIXED: planned * INTERVAL_S},
    }
    for name in ("measured", "stood", "planned", "calm_measured", "calm_replayed"):
        values |= {name: 100.0, f"{name}_met": 100.0}
    return Row(**(values | changes))
