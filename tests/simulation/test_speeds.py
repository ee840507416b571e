"""Engines at other speeds than profiled: always, from a time on, some of them; and queues outside of them."""

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.engine.kernel.layout import Routing
from headway.engine.observed_latency import Phase
from headway.engine.refinement import Refinement, learn, measured
from headway.engine.rules import EngineSpeeds
from headway.planning.types import Role
from headway.simulation.observing import PerformanceLearner, reports
from headway.simulation.simulate import SimulationRun, Watchers, simulate
from interp import scaled
from tests.simulation.worlds import (
    ArrayTrace,
    Schedule,
    constant_profile,
    poisson_trace,
    roofline_profile,
    run,
    scenario,
)

SPLIT = {Role.PREFILL: 2, Role.DECODE: 2}
MIXED = {Role.MIXED: 3}
CHUNKED = EngineRules(max_batch_size=64, chunk_tokens=512)


@pytest.mark.parametrize(("fleet", "rules"), [(SPLIT, EngineRules(max_batch_size=64)), (MIXED, CHUNKED)])
@pytest.mark.parametrize(("prefill", "decode"), [(0.5, 0.5), (0.7, 1.3), (1.6, 0.8)])
def test_a_speed_is_that_of_a_scaled_profile(fleet, rules, prefill, decode):
    profile, trace = roofline_profile(), poisson_trace(1, 2000, 8.0)
    speeds = EngineSpeeds(prefill={0.0: prefill}, decode={0.0: decode})
    _, found = run(scenario(profile, fleet, engine=rules, speeds=speeds), trace)
    _, expected = run(scenario(scaled(profile, prefill, decode), fleet, engine=rules), trace)
    for column in ("prefill_started_s", "first_token_s", "finished_s"):
        assert found[column] == pytest.approx(expected[column], rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("fleet", [SPLIT, MIXED])
def test_speed_1_is_as_profiled_bit_for_bit(fleet):
    profile, trace = roofline_profile(), poisson_trace(2, 1000, 8.0)
    steps = EngineSpeeds(prefill={0.0: 1.0}, decode={0.0: 1.0}, slow_share=0.5, slow_speed=1.0)
    _, found = run(scenario(profile, fleet, speeds=steps), trace)
    _, expected = run(scenario(profile, fleet), trace)
    assert found.tobytes() == expected.tobytes()


def test_a_step_in_the_middle_of_a_stream():
    """100 tokens of 10 ms; after 0.5 s each takes 20 ms."""
    profile = constant_profile(itl_s=0.01, prefill_s_per_token=1e-3)
    trace = ArrayTrace(np.array([0.0]), np.array([100]), np.array([101]))
    speeds = EngineSpeeds(prefill={}, decode={0.6: 0.5})
    _, (record,) = run(scenario(profile, {Role.MIXED: 1}, speeds=speeds), trace)
    assert record["first_token_s"] == pytest.approx(0.1)
    assert record["finished_s"] == pytest.approx(0.6 + 50 * 0.02, abs=0.021)
    faster = EngineSpeeds(prefill={0.0: 0.5}, decode={0.7: 2.0})
    _, (record,) = run(scenario(profile, {Role.MIXED: 1}, speeds=faster), trace)
    assert record["first_token_s"] == pytest.approx(0.2)
    assert record["finished_s"] == pytest.approx(0.7 + 50 * 0.005, abs=0.011)


def test_a_prompt_under_way_ends_as_it_began():
    profile = constant_profile(itl_s=0.01, prefill_s_per_token=1e-3)
    trace = ArrayTrace(np.array([0.0, 0.0]), np.array([1000, 1000]), np.array([1, 1]))
    speeds = EngineSpeeds(prefill={0.5: 0.5})
    _, records = run(scenario(profile, {Role.MIXED: 1}, speeds=speeds), trace)
    assert records["first_token_s"] == pytest.approx([1.0, 3.0])


def taking(records: np.ndarray, each_s: float) -> set[int]:
    """The replicas whose prompts took that long."""
    took_s = records["first_token_s"] - records["arrival_s"]
    return set(records["prefill_replica"][np.isclose(took_s, each_s)].tolist())


def test_a_share_of_the_replicas_is_slow_for_life():
    profile = constant_profile(itl_s=0.01, prefill_s_per_token=1e-3)
    count = 400
    trace = ArrayTrace(np.arange(count) * 10.0, np.full(count, 1000), np.ones(count, np.int64))
    fleet = {Role.MIXED: 100}
    speeds = EngineSpeeds(slow_share=0.3, slow_speed=0.25)
    # Round robin: each replica is asked four times.
    setting = scenario(profile, fleet, speeds=speeds, routing=Routing.ROUND_ROBIN)
    _, records = run(setting, trace, Schedule([fleet], interval_s=1e4))
    slow, quick = (taking(records, each_s) for each_s in (4.0, 1.0))
    assert len(slow) + len(quick) == 100
    assert not slow & quick
    assert 15 <= len(slow) <= 45
    again = run(setting, trace, Schedule([fleet], interval_s=1e4))[1]
    assert again.tobytes() == records.tobytes()


def test_what_waits_outside_comes_on_top():
    profile = constant_profile(itl_s=0.01, prefill_s_per_token=1e-3)
    trace = ArrayTrace(np.arange(5) * 10.0, np.full(5, 100), np.full(5, 11))
    _, records = run(scenario(profile, {Role.MIXED: 1}, queueing_s=0.75), trace)
    assert records["first_token_s"] - records["arrival_s"] == pytest.approx(0.85)


def test_speeds_between_steps():
    speeds = EngineSpeeds(prefill={0.0: 0.5, 60.0: 2.0}, decode={30.0: 0.8})
    assert list(speeds.changes()) == [30.0, 60.0]
    assert speeds.slowness(0.0) == (2.0, 1.0)
    assert speeds.slowness(30.0) == (2.0, 1.25)
    assert speeds.slowness(61.0) == (0.5, 1.25)


@pytest.mark.parametrize(("fleet", "rules"), [(SPLIT, EngineRules(max_batch_size=64)), (MIXED, CHUNKED)])
@pytest.mark.parametrize("speed", [0.7, 1.4])
def test_what_engines_report_says_how_fast_they_are(fleet, rules, speed):
    profile, trace = roofline_profile(), poisson_trace(3, 3000, 10.0)
    speeds = EngineSpeeds(prefill={0.0: speed}, decode={0.0: speed})
    setting = scenario(profile, fleet, engine=rules, speeds=speeds)
    driven = SimulationRun(setting, trace, Schedule([fleet], interval_s=2.0), None, Watchers())
    learnt = Refinement()
    while (observation := driven.advance()) is not None:
        learnt = learn(learnt, measured(profile, reports(driven.fleet)), observation.now_s)
        driven.act(observation, driven.policy.plan(observation, 0))
    for phase in Phase:
        assert learnt.factor(phase) == pytest.approx(1.0 / speed, rel=0.03)


TEN = {Role.PREFILL: 10, Role.DECODE: 10}


def finished(setting, trace, fleet, *, learning: bool) -> np.ndarray:
    """Records of a run with a fixed fleet, with routing that knows of slow replicas, or without."""
    batches: list[np.ndarray] = []
    policy = Schedule([fleet], interval_s=10.0)
    learner = PerformanceLearner(setting.profile, lambda _: policy) if learning else None
    simulate(setting, trace, policy, watchers=Watchers(finished=batches.append), learner=learner)
    return np.concatenate(batches)


@pytest.mark.parametrize(
    ("fleet", "rules"), [(TEN, EngineRules(max_batch_size=64)), ({Role.MIXED: 10}, CHUNKED)]
)
def test_slow_replicas_get_fewer_requests_and_delay_fewer(fleet, rules):
    profile, trace = roofline_profile(), poisson_trace(5, 20_000, 60.0)
    setting = scenario(
        profile, fleet, engine=rules, speeds=EngineSpeeds(slow_share=0.25, slow_speed=0.5), seed=3
    )
    before, after = (finished(setting, trace, fleet, learning=learning) for learning in (False, True))

    def itl_s(records: np.ndarray) -> np.ndarray:
        several = records[records["output_tokens"] > 1]
        return (several["finished_s"] - several["first_token_s"]) / (several["output_tokens"] - 1)

    assert np.quantile(itl_s(after), 0.99) < 0.8 * np.quantile(itl_s(before), 0.99)
    counts = np.bincount(after["decode_replica"])
    assert counts[counts > 0].min() < 0.6 * np.median(counts[counts > 0])


@pytest.mark.parametrize(("fleet", "rules"), [(TEN, EngineRules(max_batch_size=64)), (MIXED, CHUNKED)])
def test_a_fleet_without_slow_replicas_is_served_as_if_nobody_looked(fleet, rules):
    profile, trace = roofline_profile(), poisson_trace(6, 5_000, 8.0)
    setting = scenario(
        profile, fleet, engine=rules, speeds=EngineSpeeds(prefill={0.0: 0.8}, decode={0.0: 0.8})
    )
    before, after = (finished(setting, trace, fleet, learning=learning) for learning in (False, True))
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize(("fleet", "rules"), [(SPLIT, EngineRules(max_batch_size=64)), (MIXED, CHUNKED)])
@pytest.mark.parametrize("scrape_s", [5.0, 30.0])
def test_a_plan_goes_by_what_engines_of_others_show(fleet, rules, scrape_s):
    """Engines at 0.7 of the profiled speed, known by their metrics alone."""
    profile, trace = roofline_profile(), poisson_trace(3, 5000, 10.0)
    speeds = EngineSpeeds(prefill={0.0: 0.7}, decode={0.0: 0.7})
    policy, planned = Schedule([fleet], interval_s=60.0), []

    def by(surfaces):
        planned.append(surfaces)
        return policy

    learner = PerformanceLearner(profile, by, scrape_s)
    simulate(scenario(profile, fleet, engine=rules, speeds=speeds), trace, policy, learner=learner)
    for phase in Phase:
        assert learner.refinement.factor(phase) == pytest.approx(1.0 / 0.7, rel=0.09)
    assert planned[-1].prefill.ttft_s(600.0) == pytest.approx(profile.prefill.ttft_s(600.0) / 0.7, rel=0.09)
    # The first interval is decided before anything is known of them.
    assert planned[0].prefill.ttft_s(600.0) > profile.prefill.ttft_s(600.0)
    assert [observation.now_s for observation in policy.seen][:1] == [60.0]
