"""Observations hold each request once: in the interval of its arrival, and in that of its completion."""

import numpy as np
import pytest

from headway.engine import EngineRules
from headway.engine.kernel import layout
from headway.planning.types import Role, Slo
from headway.simulation.scenario import PlannedCrash, RequestClass, ScenarioRouter
from headway.simulation.simulate import Watchers, simulate
from tests.simulation.routers import Scripted
from tests.simulation.test_routed import Moody
from tests.simulation.worlds import ArrayTrace, Schedule, poisson_trace, roofline_profile, scenario

PROFILE = roofline_profile(capacity=40_000)
POOLS = {Role.PREFILL: 2, Role.DECODE: 3}


def joined(seen, name):
    return np.concatenate([getattr(observation.traffic, name) for observation in seen])


def observed(trace, interval_s=5.0, **changes):
    """The result, the records in the order in which they ended, and what the policy was shown."""
    watch, records = Schedule([POOLS], interval_s=interval_s), []
    setting = scenario(PROFILE, POOLS, **changes)
    result = simulate(setting, trace, watch, watchers=Watchers(finished=records.append))
    return result, np.concatenate(records), watch.seen


def completed(records, until_s):
    done = records[(records["outcome"] == layout.COMPLETED) & (records["finished_s"] <= until_s)]
    assert (np.diff(done["finished_s"]) >= 0).all()
    return done


def assert_whole(trace, records, seen):
    last_s = seen[-1].now_s
    come, done = trace.arrival_s <= last_s, completed(records, last_s)
    assert np.array_equal(joined(seen, "arrival_s"), trace.arrival_s[come])
    assert np.array_equal(joined(seen, "input_tokens"), trace.input_tokens[come])
    assert np.array_equal(joined(seen, "completed_input_tokens"), done["input_tokens"])
    assert np.array_equal(joined(seen, "completed_output_tokens"), done["output_tokens"])
    for observation in seen:
        assert_of_its_interval(observation, done)


def assert_of_its_interval(observation, done):
    traffic, start_s = observation.traffic, observation.now_s - observation.interval_s
    assert len(traffic.arrival_s) == observation.requests
    if len(traffic.arrival_s):
        assert start_s - 1e-9 <= traffic.arrival_s[0] <= traffic.arrival_s[-1] <= observation.now_s
        assert traffic.input_tokens.mean() == pytest.approx(observation.isl_tokens)
    ended = (done["finished_s"] > start_s) & (done["finished_s"] <= observation.now_s)
    assert len(traffic.completed_input_tokens) == np.count_nonzero(ended)
    if ended.any():
        assert traffic.completed_output_tokens.mean() == pytest.approx(observation.osl_tokens)


@pytest.mark.parametrize("rows", [1, 7, 65536])
def test_the_intervals_together_are_the_trace_and_its_completions(rows):
    trace = poisson_trace(5, 1200, 20.0)
    trace.rows = rows
    _, records, seen = observed(trace)
    assert len(seen) > 10
    assert_whole(trace, records, seen)


def test_failed_requests_have_arrived_and_never_complete():
    trace = poisson_trace(6, 800, 20.0, osl_mean=400)
    crashes = [PlannedCrash(at_s=12.0, role=Role.DECODE), PlannedCrash(at_s=20.0, role=Role.PREFILL)]
    result, records, seen = observed(trace, crashes=crashes)
    assert result.tally.failed > 0
    assert_whole(trace, records, seen)


def test_a_router_that_holds_retries_and_sheds_changes_nothing():
    trace = poisson_trace(7, 600, 20.0)
    router = ScenarioRouter(
        name="moody", make=lambda generator: Scripted(Moody(4), np.arange(0.1, 600.0, 0.1))
    )
    result, records, seen = observed(trace, routing=router)
    assert result.tally.shed > 0
    assert_whole(trace, records, seen)


def test_an_arrival_at_a_tick_belongs_to_the_interval_that_ends_there():
    trace = ArrayTrace(
        np.array([0.0, 5.0, 5.0, 10.0, 12.0, 40.0]), np.full(6, 100), np.array([5, 5, 5, 5, 900, 5])
    )
    for rows in (2, 6):
        trace.rows = rows
        _, _, seen = observed(trace)
        assert [list(observation.traffic.arrival_s) for observation in seen[:4]] == [
            [0.0, 5.0, 5.0],
            [10.0],
            [12.0],
            [],
        ]


def test_the_output_of_a_request_is_unknown_until_it_has_completed():
    trace = ArrayTrace(np.array([1.0, 2.0, 30.0]), np.array([100, 200, 100]), np.array([900, 5, 5]))
    _, records, seen = observed(trace)
    lasted_s = records["finished_s"][records["output_tokens"] == 900][0]
    assert lasted_s > 5.0
    for observation in seen:
        long_one = 900.0 in observation.traffic.completed_output_tokens
        assert long_one == (observation.now_s - 5.0 < lasted_s <= observation.now_s)


def test_classes_bring_the_slos_by_which_their_requests_are_judged():
    classes = tuple(
        RequestClass(name=name, slo=Slo(ttft_s=ttft_s, itl_s=0.05))
        for name, ttft_s in (("quick", 0.25), ("slow", 2.0))
    )
    _, records, seen = observed(poisson_trace(3, 400, 8.0), classes=classes)
    done = completed(records, seen[-1].now_s)
    assert np.array_equal(joined(seen, "completed_slo_ttft_s"), np.where(done["slo_class"] == 0, 0.25, 2.0))
    slo_class, ttft_s = joined(seen, "slo_class"), joined(seen, "slo_ttft_s")
    assert set(zip(slo_class.tolist(), ttft_s.tolist(), strict=True)) == {(1.0, 0.25), (2.0, 2.0)}
    assert set(joined(seen, "slo_itl_s")) == set(joined(seen, "completed_slo_itl_s")) == {0.05}


def test_without_classes_there_are_no_slos_of_requests():
    _, _, seen = observed(poisson_trace(3, 100, 8.0))
    assert seen[0].traffic.slo_class is seen[0].traffic.slo_ttft_s is None


def test_a_completion_says_what_was_cached_of_its_prompt():
    prompts = [[0, 1, 2], [0, 1, 2, 3], [7], [8]]
    tokens = np.array([1536, 2048, 512, 512])
    trace = ArrayTrace(10.0 * np.arange(4), tokens, np.full(4, 2), prompts)
    fleet = {Role.PREFILL: 1, Role.DECODE: 1}
    watch = Schedule([fleet], interval_s=5.0)
    rules = EngineRules(prefix_cache_tokens=100_000)
    simulate(scenario(PROFILE, fleet, engine=rules), trace, watch)
    assert joined(watch.seen, "completed_cached_tokens").tolist() == [0.0, 1536.0, 0.0]
