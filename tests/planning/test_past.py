"""A warm-up trace as a past: its intervals as observations, and the policy that begins with it."""

from dataclasses import replace

import pytest
from planning_cases import NAN, PROFILE, observed, settings, why

from headway.config import load_config
from headway.planning import Role, make_policy
from headway.planning.forecasting import AHEAD, first_state, make_request_forecaster, read_past
from headway.planning.hindsight.learning import MOST_INTERVALS
from headway.workload import TraceOptions, open_trace

INTERVAL_S = 30.0
NOW_S = 1_000_000.0
TRACE = "steady:rate_rps=2,duration_s=615,seed=3"


def past(trace=TRACE, most=MOST_INTERVALS):
    with open_trace(trace, TraceOptions()) as opened:
        return read_past(opened, INTERVAL_S, most)


def seen(most=MOST_INTERVALS, names=()):
    forecaster = make_request_forecaster(names, INTERVAL_S)
    return list(past(most=most).observations(NOW_S, forecaster))


def headway(**changes):
    return make_policy("headway", settings(interval_s=INTERVAL_S, **changes), PROFILE)


def test_whole_intervals_end_where_the_deployment_begins():
    observations = seen()
    assert [each.now_s for each in observations] == [NOW_S - INTERVAL_S * k for k in reversed(range(20))]
    assert sum(each.requests for each in observations) == sum(past().counts)
    for each in observations:
        arrivals = each.traffic.arrival_s
        assert len(arrivals) == each.requests
        assert ((arrivals > each.now_s - INTERVAL_S - 1e-6) & (arrivals <= each.now_s + 1e-6)).all()


def test_outputs_are_known_an_interval_later():
    first, second, *_ = seen()
    assert len(first.traffic.completed_output_tokens) == 0
    assert len(second.traffic.completed_output_tokens) == first.requests


def test_only_the_last_intervals_are_kept_but_predictors_see_all():
    observations = seen(most=3, names=["kalman"])
    assert [each.now_s for each in observations] == [NOW_S - 60.0, NOW_S - 30.0, NOW_S]
    assert observations[0].requests == past().counts[-3]
    assert len(observations[0].ahead["kalman"]) == AHEAD
    assert seen(most=0) == []


def test_a_policy_with_a_past_plans_by_it_from_the_first_decision_and_says_so():
    policy = headway()
    planner = load_config(None, {"planner.headway.predictors": ["kalman"]}).planner
    busy = past("steady:rate_rps=10,input_tokens=2000,output_tokens=100,duration_s=1800,seed=1")
    state = first_state(policy, busy, planner, NOW_S)
    assert len(state.pool(Role.PREFILL).history) == 60
    assert len(state.recent.arrival_s) == 0
    quiet = observed(now_s=NOW_S + INTERVAL_S, interval_s=INTERVAL_S, requests=300.0, isl_tokens=2000.0)
    reasons = policy.plan(quiet, state).reasons
    assert reasons["needs"]["prefill"]["recalled"] == 60
    assert "in the last 61 intervals, 60 of them from the warm-up trace" in why(reasons)
    assert not reasons["needs"]["prefill"]["learning"]
    cold = policy.plan(quiet, policy.initial_state()).reasons
    assert "warm-up" not in why(cold)
    assert cold["needs"]["prefill"]["learning"]


def test_the_past_is_forgotten_in_time_and_with_another_slo():
    policy = headway()
    state = first_state(policy, past(), load_config().planner, NOW_S)
    assert state.recalled == 20
    assert state.under(replace(state.slo, ttft_s=9.0)).recalled == 0
    for tick in range(1, MOST_INTERVALS - 18):
        unmeasured = observed(
            now_s=NOW_S + tick * INTERVAL_S, interval_s=INTERVAL_S, requests=NAN, isl_tokens=NAN
        )
        state = policy.assess(unmeasured, state).state
    assert (len(state.pool(Role.PREFILL).history), state.recalled) == (MOST_INTERVALS, 19)


def test_other_policies_and_none_begin_without():
    planner = load_config().planner
    reference = make_policy("reference", settings(), PROFILE)
    assert first_state(reference, past(), planner, NOW_S) == reference.initial_state()
    assert first_state(headway(), None, planner, NOW_S).recalled == 0


@pytest.mark.parametrize("seconds", [29.0, 0.5])
def test_a_trace_without_a_whole_interval_is_no_past(seconds):
    observations = past(f"steady:rate_rps=2,duration_s={seconds},seed=3").observations(
        NOW_S, make_request_forecaster([], INTERVAL_S)
    )
    assert list(observations) == []
