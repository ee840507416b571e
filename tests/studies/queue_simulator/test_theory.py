"""Mean waits against closed forms: one pattern of integer capacity c on n consumers is c servers each."""

from math import factorial

import numpy as np
import pytest

from headway_studies.queue_simulator.load import RunDuration, Service, draw_arrivals
from headway_studies.queue_simulator.waiting import DispatchPolicy, DispatchRouting, QueuePolicy
from tests.studies.queue_simulator.worlds import SIMPLE_PULL, alike, run

COUNT = 50_000
LATENCY_S = 2.0
WITHIN = 0.05


def mean_wait_s(
    servers: int, load: float, service: Service, policy: DispatchPolicy = SIMPLE_PULL, gpus: int = 1
):
    rate = load * gpus * servers / LATENCY_S
    setup = alike([(rate, LATENCY_S, servers / LATENCY_S, 10.0)], gpus)
    return np.mean(
        [run(setup, policy, requests=COUNT, seed=seed, service=service).wait_s.mean() for seed in (1, 2)]
    )


def erlang_c(servers: int, offered: float) -> float:
    """The probability of waiting with `offered` erlangs on `servers` servers."""
    busy = offered**servers / factorial(servers) * servers / (servers - offered)
    return busy / (sum(offered**k / factorial(k) for k in range(servers)) + busy)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_m_d_1(load):
    """W = ρ S / (2 (1 − ρ))."""
    expected_s = load * LATENCY_S / (2 * (1 - load))
    assert mean_wait_s(1, load, Service.DETERMINISTIC) == pytest.approx(expected_s, rel=WITHIN)


@pytest.mark.parametrize(("servers", "gpus", "load"), [(1, 1, 0.6), (4, 1, 0.8), (2, 3, 0.8)])
def test_m_m_c(servers, gpus, load):
    """W = C(c, λ S) S / (c (1 − ρ)): a global queue makes c servers of all consumers together."""
    total = servers * gpus
    expected_s = erlang_c(total, load * total) * LATENCY_S / (total * (1 - load))
    waited_s = mean_wait_s(servers, load, Service.EXPONENTIAL, gpus=gpus)
    assert waited_s == pytest.approx(expected_s, rel=WITHIN)


def test_random_push_is_as_many_queues_of_their_own():
    """Poisson arrivals split at random stay Poisson: n × M/M/1, whatever n."""
    policy = DispatchPolicy(routing=DispatchRouting.RANDOM_PUSH, queue=QueuePolicy.SIMPLE)
    expected_s = 0.6 * LATENCY_S / (1 - 0.6)
    assert mean_wait_s(1, 0.6, Service.EXPONENTIAL, policy, gpus=3) == pytest.approx(expected_s, rel=WITHIN)


def test_arrivals_are_poisson():
    setup = alike([(3.0, 1.0, 5.0, 9.0), (1.0, 1.0, 5.0, 9.0)], 1)
    generator = np.random.default_rng(4)
    counts = np.array(
        [
            np.bincount(
                draw_arrivals(setup, RunDuration(2.0), Service.DETERMINISTIC, generator).pattern, minlength=2
            )
            for _ in range(20_000)
        ]
    )
    assert counts.mean(axis=0) == pytest.approx([6.0, 2.0], rel=0.02)
    assert counts.var(axis=0) == pytest.approx([6.0, 2.0], rel=0.04)
