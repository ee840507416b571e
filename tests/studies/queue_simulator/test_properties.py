"""What holds for every set-up, policy and seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway_studies.queue_simulator.experiment import Experiment, QueueRun, measure, run_experiment, simulate
from headway_studies.queue_simulator.load import (
    QueueArrivals,
    RequestCount,
    RunDuration,
    Service,
    draw_arrivals,
    fluid_load,
)
from headway_studies.queue_simulator.model import SETUPS, Setup
from headway_studies.queue_simulator.waiting import (
    DispatchPolicy,
    DispatchRouting,
    Passing,
    QueuePolicy,
    all_policies,
)
from tests.studies.queue_simulator.worlds import SIMPLE_PULL, alike, run

ROUNDING = 1e-9
POLICIES = [policy for passing in Passing for policy in all_policies(passing=passing)]

# Capacities of 1 and more, loads from light to several times what there is.
rows = st.tuples(st.floats(0.1, 20), st.floats(0.1, 10), st.floats(1, 30), st.floats(0.5, 60)).map(
    lambda row: (row[0], row[1], row[2] / row[1], row[3])
)
setups = st.builds(alike, st.lists(rows, min_size=1, max_size=4), st.integers(1, 4))


def loads(setup: Setup, done: QueueRun) -> np.ndarray:
    cost = np.array([setup.consumers[0].profiles[pattern.name].load for pattern in setup.patterns])
    return cost[done.arrivals.pattern]


@settings(max_examples=150, deadline=None)
@given(setups, st.sampled_from(POLICIES), st.sampled_from(Service), st.integers(0, 999))
def test_everyone_is_served_within_capacity(setup, policy, service, seed):
    done = run(setup, policy, requests=60, seed=seed, service=service)
    assert (done.wait_s >= 0).all()
    assert (done.consumer >= 0).all()
    start_s, cost = done.arrivals.time_s + done.wait_s, loads(setup, done)
    for request in range(len(start_s)):
        beside = (done.consumer == done.consumer[request]) & (start_s <= start_s[request])
        running = beside & (done.end_s > start_s[request] + ROUNDING)
        running[request] = True
        assert cost[running].sum() <= 1 + 1e-6


@settings(max_examples=60, deadline=None)
@given(setups, st.sampled_from(POLICIES), st.integers(0, 999), st.sampled_from([0.25, 8.0]))
def test_the_unit_of_time_does_not_matter(setup, policy, seed, factor):
    """All times × k: all waits × k. Powers of two, so that rounding is the same."""
    done = run(setup, policy, requests=60, seed=seed)
    stretched = alike(
        [
            (
                pattern.arrival_rps / factor,
                profile.latency_s * factor,
                profile.throughput_rps / factor,
                pattern.slo_s * factor,
            )
            for pattern in setup.patterns
            for profile in [setup.consumers[0].profiles[pattern.name]]
        ],
        len(setup.consumers),
    )
    arrivals = QueueArrivals(
        time_s=done.arrivals.time_s * factor, pattern=done.arrivals.pattern, factor=done.arrivals.factor
    )
    again = simulate(stretched, arrivals, policy, np.random.default_rng(seed + 1))
    assert (again.wait_s == done.wait_s * factor).all()


@settings(max_examples=60, deadline=None)
@given(setups, st.integers(0, 999))
def test_pull_of_a_simple_queue_starts_in_order_of_arrival(setup, seed):
    done = run(setup, SIMPLE_PULL, requests=80, seed=seed)
    assert (np.diff(done.arrivals.time_s + done.wait_s) >= -ROUNDING).all()


def passed_after_slack(setup: Setup, done: QueueRun) -> int:
    """Requests that a later one passed when their slack was gone."""
    slo_s = np.array([pattern.slo_s for pattern in setup.patterns])[done.arrivals.pattern]
    lost_from_s = done.arrivals.time_s + slo_s - done.service_s + ROUNDING
    start_s = done.arrivals.time_s + done.wait_s
    return sum(
        bool(
            (
                (start_s[request + 1 :] < start_s[request] - ROUNDING)
                & (start_s[request + 1 :] > lost_from_s[request])
            ).any()
        )
        for request in range(len(start_s))
    )


@settings(max_examples=60, deadline=None)
@given(setups, st.integers(0, 999))
def test_nobody_is_passed_when_the_slack_is_gone(setup, seed):
    """No starvation: what bin-pack lets pass, it lets pass for a bounded time."""
    policy = DispatchPolicy(
        routing=DispatchRouting.BIN_PACK_PULL, queue=QueuePolicy.SIMPLE, passing=Passing.SLACK
    )
    assert passed_after_slack(setup, run(setup, policy, requests=80, seed=seed)) == 0


def test_without_the_limit_large_requests_starve():
    """On one GPU under the document's load: small ones fill every gap, and the large wait to the end."""
    setup = SETUPS["ideal-single"]
    unlimited = DispatchPolicy(
        routing=DispatchRouting.BIN_PACK_PULL, queue=QueuePolicy.SIMPLE, passing=Passing.ALWAYS
    )
    done = run(setup, unlimited, requests=1_000)
    assert passed_after_slack(setup, done) > 100


@pytest.mark.parametrize("routing", DispatchRouting)
@pytest.mark.parametrize("queue", QueuePolicy)
def test_one_consumer_leaves_nothing_to_route(routing, queue):
    """Where a request goes is settled; what passes the head apart, all policies are the same queue."""
    setup = SETUPS["ideal-single"]
    policy = DispatchPolicy(routing=routing, queue=queue, passing=Passing.NEVER)
    reference = DispatchPolicy(routing=DispatchRouting.LEAST_LOAD_PULL, queue=queue)
    waits = run(setup, policy, requests=600).wait_s
    assert waits.tobytes() == run(setup, reference, requests=600).wait_s.tobytes()


def test_same_seed_same_figures_and_no_policy_disturbs_another():
    setup = SETUPS["multi"]
    several = run_experiment(
        Experiment(setup=setup, policies=all_policies(), seeds=2, amount=RequestCount(300))
    )
    for result in several:
        alone = Experiment(setup=setup, policies=(result.policy,), seeds=2, amount=RequestCount(300))
        assert run_experiment(alone) == (result,)
    assert several[0].runs[0] != several[0].runs[1]


def test_utilisation_is_that_of_the_offered_load():
    """Below saturation every second of work is done: Σ λ / RPS over the consumers."""
    setup = SETUPS["multi"].scaled(0.5)
    done = run(setup, SIMPLE_PULL, requests=60_000)
    expected = fluid_load(setup)
    assert measure(setup, done).utilisation == pytest.approx(expected, rel=0.02)


def test_violations_and_quantiles_of_a_run_by_hand():
    """Two waits, 0 and 8 s, with latency 10: only the second misses 15 s."""
    setup = alike([(1, 10, 0.1, 15)], 1)
    arrivals = QueueArrivals(time_s=np.array([0.0, 2.0]), pattern=np.zeros(2, np.int64), factor=np.ones(2))
    figures = measure(setup, simulate(setup, arrivals, SIMPLE_PULL, np.random.default_rng(0)))
    assert (figures.total.mean_wait_s, figures.total.p50_wait_s, figures.total.max_wait_s) == (4, 4, 8)
    assert figures.total.slo_violations == 0.5
    assert figures.patterns[0] == figures.total
    assert figures.utilisation == 1.0


def test_a_run_without_requests_has_no_figures():
    setup = SETUPS["multi"]
    none = draw_arrivals(setup, RunDuration(1e-9), Service.EXPONENTIAL, np.random.default_rng(0))
    figures = measure(setup, simulate(setup, none, SIMPLE_PULL, np.random.default_rng(0)))
    assert figures.total.requests == 0
    assert np.isnan([figures.total.mean_wait_s, figures.total.slo_violations, figures.utilisation]).all()
