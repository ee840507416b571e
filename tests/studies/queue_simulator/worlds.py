"""Set-ups and runs for the tests of the queue simulator."""

from collections.abc import Sequence

import numpy as np

from headway_studies.queue_simulator.experiment import QueueRun, simulate
from headway_studies.queue_simulator.load import QueueArrivals, RequestCount, Service, draw_arrivals
from headway_studies.queue_simulator.model import Consumer, Pattern, Profile, Setup
from headway_studies.queue_simulator.waiting import DispatchPolicy, DispatchRouting, QueuePolicy


def alike(rows: Sequence[tuple[float, float, float, float]], consumers: int, name: str = "test") -> Setup:
    """Patterns 0, 1, … of (arrival rate, latency, throughput, SLO) on GPUs of one type."""
    profiles = {str(i): Profile(latency_s=row[1], throughput_rps=row[2]) for i, row in enumerate(rows)}
    patterns = tuple(Pattern(name=str(i), arrival_rps=row[0], slo_s=row[3]) for i, row in enumerate(rows))
    return Setup(
        name=name, patterns=patterns, consumers=(Consumer(kind="gpu", profiles=profiles),) * consumers
    )


def run(
    setup: Setup,
    policy: DispatchPolicy,
    *,
    requests: int,
    seed: int = 0,
    service: Service = Service.DETERMINISTIC,
) -> QueueRun:
    """One run on Poisson arrivals."""
    arrivals = draw_arrivals(setup, RequestCount(requests), service, np.random.default_rng(seed))
    return simulate(setup, arrivals, policy, np.random.default_rng(seed + 1))


def at(*arrivals: tuple[float, int]) -> QueueArrivals:
    """Arrivals of (time, pattern), as written."""
    times, patterns = zip(*arrivals, strict=True)
    return QueueArrivals(
        time_s=np.array(times, np.float64),
        pattern=np.array(patterns, np.int64),
        factor=np.ones(len(times)),
    )


def serve(
    setup: Setup, policy: DispatchPolicy, *arrivals: tuple[float, int]
) -> tuple[list[float], list[int]]:
    """When and where each of these requests started."""
    done = simulate(setup, at(*arrivals), policy, np.random.default_rng(0))
    return (done.arrivals.time_s + done.wait_s).tolist(), done.consumer.tolist()


SIMPLE_PULL = DispatchPolicy(routing=DispatchRouting.LEAST_LOAD_PULL, queue=QueuePolicy.SIMPLE)
