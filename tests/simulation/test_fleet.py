"""The life of replicas: counts over time, who goes first, what it costs."""

import numpy as np
import pytest

from headway.planning.types import PoolLimits, Role
from headway.simulation.scenario import EngineRules, PlannedCrash, StartUp
from tests.simulation.worlds import (
    ArrayTrace,
    Schedule,
    points,
    poisson_trace,
    roofline_profile,
    run,
    scenario,
    sparse_trace,
)

PROFILE = roofline_profile()
ONE = {Role.PREFILL: 1, Role.DECODE: 1}


def test_counts_follow_start_up_and_drain():
    policy = Schedule([{**ONE, Role.DECODE: 3}, {**ONE, Role.DECODE: 2}], interval_s=10.0)
    result, _ = run(scenario(PROFILE, ONE, start_up=StartUp(delay_s=4.0)), sparse_trace(60.0), policy)
    decode = result.replicas[Role.DECODE]
    assert points(decode, "ready") == [(0.0, 1), (10.0, 1), (14.0, 3), (20.0, 2)]
    assert points(decode, "starting") == [(0.0, 0), (10.0, 2), (14.0, 0), (20.0, 0)]
    assert [desired for _, desired in points(decode, "desired")] == [1, 3, 3, 2]
    assert result.scale_events[Role.DECODE] == 2
    assert result.direction_reversals[Role.DECODE] == 1


def test_gpu_hours_count_from_start_to_gone():
    policy = Schedule([{**ONE, Role.DECODE: 3}, {**ONE, Role.DECODE: 1}], interval_s=10.0)
    pools = {Role.PREFILL: PoolLimits(gpus_per_replica=2), Role.DECODE: PoolLimits(gpus_per_replica=4)}
    setting = scenario(PROFILE, ONE, pools=pools, start_up=StartUp(delay_s=4.0))
    result, _ = run(setting, sparse_trace(60.0), policy)
    expected_s = 2 * result.simulated_s + 4 * (result.simulated_s + 2 * 10.0)
    assert result.gpu_hours == pytest.approx(expected_s / 3600, rel=1e-6)


def test_starting_replicas_are_cancelled_first():
    policy = Schedule([{**ONE, Role.DECODE: 4}, {**ONE, Role.DECODE: 2}], interval_s=10.0)
    result, _ = run(scenario(PROFILE, ONE, start_up=StartUp(delay_s=25.0)), sparse_trace(60.0), policy)
    decode = result.replicas[Role.DECODE]
    assert max(decode.draining) == 0
    assert points(decode, "starting") == [(0.0, 0), (10.0, 3), (20.0, 1), (35.0, 0)]
    assert decode.ready[-1] == 2


def test_draining_replicas_finish_what_they_have():
    trace = ArrayTrace(np.zeros(40), np.full(40, 200), np.full(40, 2000))
    policy = Schedule([ONE], interval_s=3.0)
    result, records = run(scenario(PROFILE, {**ONE, Role.DECODE: 2}), trace, policy)
    assert (records["outcome"] == 0).all()
    assert len(set(records["decode_replica"])) == 2
    decode = result.replicas[Role.DECODE]
    assert decode.draining[1] == 1
    assert decode.time_s[-1] > 15.0
    assert decode.draining[-1] == 0


def test_a_crashed_replica_is_replaced_after_its_start_up():
    setting = scenario(
        PROFILE, ONE, start_up=StartUp(delay_s=5.0), crashes=[PlannedCrash(at_s=20.5, role=Role.DECODE)]
    )
    result, _ = run(setting, sparse_trace(60.0), Schedule([ONE], interval_s=10.0))
    decode = result.replicas[Role.DECODE]
    assert points(decode, "ready") == [(0.0, 1), (20.5, 0), (25.5, 1)]
    assert points(decode, "starting") == [(0.0, 0), (20.5, 1), (25.5, 0)]


def test_the_first_request_to_an_empty_pool_makes_a_tick_due_and_those_that_wait_with_it_do_not():
    trace = ArrayTrace(np.array([25.0, 26.0, 60.0]), np.full(3, 200), np.full(3, 20))
    none = {Role.PREFILL: 1, Role.DECODE: 0}
    policy = Schedule([none, none, none, ONE, none], interval_s=10.0)
    setting = scenario(
        PROFILE, ONE, pools=dict.fromkeys(ONE, PoolLimits(min_replicas=0)), start_up=StartUp(delay_s=4.0)
    )
    result, _ = run(setting, trace, policy)
    assert [seen.now_s for seen in policy.seen[:6]] == [10.0, 20.0, 25.0, 35.0, 45.0, 55.0]
    assert policy.seen[2].requests == 1.0
    assert result.tally.requests == 3


def test_start_up_times_follow_the_distribution():
    draw = StartUp(delay_s=60.0, cv=0.5).sampler(np.random.default_rng(0))
    delays = np.array([draw() for _ in range(20_000)])
    assert delays.mean() == pytest.approx(60.0, rel=0.02)
    assert delays.std() / delays.mean() == pytest.approx(0.5, rel=0.04)


def test_observations_report_the_interval():
    trace = poisson_trace(8, 1000, 10.0)
    policy = Schedule([ONE], interval_s=10.0)
    run(scenario(PROFILE, ONE), trace, policy)
    first = policy.seen[0]
    inside = trace.arrival_s <= 10.0
    assert first.requests == inside.sum()
    assert first.isl_tokens == pytest.approx(trace.input_tokens[inside].mean())
    assert sum(seen.requests for seen in policy.seen) == pytest.approx(len(trace.arrival_s), abs=20)
    assert first.ttft_s > 0
    assert 0.008 < first.itl_s < 0.05


def test_what_comes_after_the_last_tick_is_reported_without_a_decision():
    trace = poisson_trace(8, 1000, 10.0)
    result, records = run(scenario(PROFILE, ONE), trace, Schedule([ONE], interval_s=30.0))
    last = result.intervals[-1]
    assert last.end_s == result.simulated_s == records["finished_s"].max()
    assert last.targets == last.reasons == {}
    assert sum(interval.requests for interval in result.intervals) == len(trace.arrival_s)
    assert [interval.start_s for interval in result.intervals[1:]] == [
        interval.end_s for interval in result.intervals[:-1]
    ]


def test_requests_that_have_not_ended_at_the_drain_limit_fail():
    trace = ArrayTrace(np.zeros(40), np.full(40, 100), np.full(40, 2000))
    result, records = run(scenario(PROFILE, ONE, drain_limit_s=5.0), trace, Schedule([ONE], interval_s=2.0))
    assert result.simulated_s == 5.0
    assert result.tally.failed == 40 - len(records)
    assert result.tally.failed > 0
    minutes = result.tally.minutes.columns()
    assert (minutes["requests"], minutes["failed"]) == ([40], [result.tally.failed])
    assert "drain limit" in result.notes[0]
    assert result.tally.latencies["ttft_s"].count == 40


def test_thousands_of_replicas_come_and_go():
    many = 6000
    policy = Schedule([{**ONE, Role.DECODE: many}, {**ONE, Role.DECODE: 1}], interval_s=10.0)
    pools = {role: PoolLimits() for role in ONE}
    engine = EngineRules(max_batch_size=4)
    for delay_s, drained in ((30.0, 0), (0.0, many - 1)):
        setting = scenario(PROFILE, ONE, pools=pools, engine=engine, start_up=StartUp(delay_s=delay_s))
        result, _ = run(setting, sparse_trace(30.0), policy)
        decode = result.replicas[Role.DECODE]
        assert max(decode.starting) == (many - 1 if delay_s else 0)
        assert decode.ready[-1] == 1
        assert max(decode.ready) == 1 + drained
        assert result.gpu_hours == pytest.approx(
            (2 * result.simulated_s + (many - 1) * 10.0) / 3600, rel=1e-3
        )


def test_crashes_strike_from_the_start_and_missed_ones_are_said():
    crashes = [PlannedCrash(at_s=at, role=Role.DECODE) for at in (0.0, 30.0, 31.0, 1e6)]
    setting = scenario(PROFILE, ONE, start_up=StartUp(delay_s=5.0), crashes=crashes)
    result, records = run(setting, sparse_trace(60.0), Schedule([ONE], interval_s=10.0))
    ready = points(result.replicas[Role.DECODE], "ready")
    assert ready == [(0.0, 0), (5.0, 1), (30.0, 0), (35.0, 1)]
    assert result.notes == ("2 of 4 crashes found no ready replica",)
    assert (records["outcome"] == 0).all()


def test_a_crash_before_the_first_token_costs_a_retry_not_the_request():
    profile = roofline_profile(base_s=1.0)
    trace = ArrayTrace(np.array([0.0, 5.0]), np.array([50, 50]), np.array([3, 3]))
    setting = scenario(profile, ONE, crashes=[PlannedCrash(at_s=0.5, role=Role.DECODE)])
    result, records = run(setting, trace, Schedule([ONE], interval_s=0.25))
    assert records["retries"].tolist() == [1, 0]
    assert (records["outcome"] == 0).all()
    assert result.tally.latencies["ttft_s"].count == 2


def test_first_tokens_count_in_the_interval_in_which_they_leave():
    profile = roofline_profile(base_s=1.0)
    trace = ArrayTrace(np.array([0.0]), np.array([50]), np.array([3]))
    policy = Schedule([ONE], interval_s=0.5)
    _, records = run(scenario(profile, ONE), trace, policy)
    seen = [index for index, observation in enumerate(policy.seen) if observation.ttft_s > 0]
    assert seen == [int(records["first_token_s"][0] // 0.5)]


def test_the_load_of_draining_replicas_is_not_the_pools():
    trace = ArrayTrace(np.zeros(40), np.full(40, 50), np.full(40, 2000))
    policy = Schedule([ONE], interval_s=2.0)
    run(scenario(PROFILE, {**ONE, Role.DECODE: 4}), trace, policy)
    loads = [observation.pools[Role.DECODE].running for observation in policy.seen[:2]]
    assert loads == [40.0, 10.0]


@pytest.mark.parametrize("chunk_tokens", [0, 2048])
def test_the_fluid_bound_is_below_what_a_busy_fleet_costs(chunk_tokens):
    trace = poisson_trace(5, 4000, 60.0, isl_mean=60, osl_mean=20)
    shape = {Role.MIXED: 1} if chunk_tokens else ONE
    result, _ = run(scenario(PROFILE, shape, engine=EngineRules(chunk_tokens=chunk_tokens)), trace)
    assert 0 < result.tally.fluid.gpu_seconds / 3600 < result.gpu_hours


def test_sleepers_cost_nothing_and_wake_sooner_than_others_start():
    pools = {Role.PREFILL: PoolLimits(), Role.DECODE: PoolLimits(sleepers=2)}
    steps = [{**ONE, Role.DECODE: 4}, {**ONE, Role.DECODE: 1}, {**ONE, Role.DECODE: 3}]
    start_up = StartUp(delay_s=6.0, wake_s=2.0)
    setting = scenario(PROFILE, ONE, pools=pools, start_up=start_up)
    result, _ = run(setting, sparse_trace(60.0), Schedule(steps, interval_s=10.0))
    decode = result.replicas[Role.DECODE]
    # One of the two sleepers is the first replica itself, so one of three wakes; later one of two again.
    assert points(decode, "ready")[1:] == [
        (10.0, 1),
        (12.0, 2),
        (16.0, 4),
        (20.0, 1),
        (30.0, 1),
        (32.0, 2),
        (36.0, 3),
    ]
    up_s = 2 * result.simulated_s + 3 * 10.0 + 2 * (result.simulated_s - 30.0)
    assert result.gpu_hours == pytest.approx(up_s / 3600, rel=1e-6)


def test_a_replica_that_crashed_is_not_replaced_by_a_sleeper():
    pools = {Role.PREFILL: PoolLimits(), Role.DECODE: PoolLimits(sleepers=2)}
    crashes = (PlannedCrash(at_s=5.0, role=Role.DECODE),)
    setting = scenario(PROFILE, ONE, pools=pools, start_up=StartUp(delay_s=6.0, wake_s=2.0), crashes=crashes)
    result, _ = run(setting, sparse_trace(60.0), Schedule([ONE], interval_s=100.0))
    assert (11.0, 1) in points(result.replicas[Role.DECODE], "ready")
