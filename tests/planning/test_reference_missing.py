"""The reference policy's table of missing data, row by row. A NaN spoils only what depends on it."""

from dataclasses import replace

import pytest
from planning_cases import DISAGGREGATED, NAN, PROFILE, expected_load, first, limits, observed, run, settings

from headway.planning import LoadForecast, PoolLimits, PoolState, Role, make_policy

PREFILL, DECODE = Role.PREFILL, Role.DECODE
BUSY = observed(requests=90_000.0, ttft_s=0.030)
POLICY = make_policy("reference", settings(), PROFILE)


def factors(decision):
    return {role: correction["value"] for role, correction in decision.reasons["corrections"].items()}


@pytest.mark.parametrize("requests", [NAN, float("inf"), -1.0])
def test_unknown_requests_hold_the_last_targets_and_say_so(requests):
    before, held = run(POLICY, [BUSY, observed(requests=requests, isl_tokens=NAN, ttft_s=NAN)])
    assert held.targets == before.targets
    assert held.reasons["held"] == ["prefill", "decode"]
    assert "held" in held.reasons["summary"]
    assert held.next_state == before.next_state


def test_unknown_requests_at_first_hold_the_desired_counts_within_the_limits():
    unknown = observed(requests=NAN)
    assert first(POLICY, unknown).targets == {PREFILL: 3, DECODE: 3}
    narrow = make_policy(
        "reference", settings(limits=limits(prefill=PoolLimits(), decode=PoolLimits(max_replicas=2))), PROFILE
    )
    assert first(narrow, unknown).targets == {PREFILL: 3, DECODE: 2}


def test_a_forecast_does_not_stand_in_for_unknown_requests():
    assert first(POLICY, observed(requests=NAN, forecast=expected_load(90_000))).targets == {
        PREFILL: 3,
        DECODE: 3,
    }


NOTHING_YET = observed(interval_s=5.0, requests=0.0, isl_tokens=NAN, osl_tokens=NAN, ttft_s=NAN, itl_s=NAN)


def test_a_decision_out_of_turn_goes_by_the_forecast_of_a_whole_interval():
    expected = expected_load(90_000)
    forecast, part = replace(BUSY, forecast=expected), replace(NOTHING_YET, forecast=expected)
    busy, between = run(POLICY, [forecast, part])
    assert between.targets == busy.targets
    assert (
        "90000 requests of 1000 input and 200 output tokens in the next 180 s" in between.reasons["summary"]
    )
    # Without a forecast a few seconds without requests are no reason to shrink.
    assert run(POLICY, [BUSY, NOTHING_YET])[1].targets == first(POLICY, BUSY).targets
    # One that is longer, as after a failed tick, counts by its rate.
    longer = replace(BUSY, interval_s=360.0, requests=2 * BUSY.requests)
    assert first(POLICY, longer).targets == first(POLICY, BUSY).targets


@pytest.mark.parametrize("forecast", [None, expected_load(90_000)])
def test_zero_traffic_goes_to_the_minimum_and_keeps_what_was_learned(forecast):
    nothing = observed(
        requests=0.0,
        isl_tokens=NAN,
        osl_tokens=NAN,
        ttft_s=NAN,
        itl_s=NAN,
        request_duration_s=NAN,
        forecast=forecast,
    )
    pools = limits(prefill=PoolLimits(min_replicas=2), decode=PoolLimits())
    busy, idle, again = run(make_policy("reference", settings(limits=pools), PROFILE), [BUSY, nothing, BUSY])
    assert idle.targets == {PREFILL: 2, DECODE: 1}
    assert idle.reasons["kind"] == "zero_traffic"
    assert "No request arrived" in idle.reasons["summary"]
    assert factors(idle) == factors(busy)
    assert idle.next_state.lengths == busy.next_state.lengths
    assert again.targets == busy.targets


def test_unknown_ttft_keeps_the_prefill_factor_and_decode_goes_on():
    changed = observed(requests=90_000.0, ttft_s=NAN, itl_s=0.009)
    before, after = run(POLICY, [BUSY, changed])
    assert factors(after)["prefill"] == factors(before)["prefill"] == pytest.approx(0.5)
    assert factors(after)["decode"] != factors(before)["decode"]
    assert "prefill: correction factor kept: ttft not measured" in after.reasons["warnings"]


@pytest.mark.parametrize("changes", [{"itl_s": NAN}, {"ttft_s": NAN, "request_duration_s": NAN}])
def test_unknown_itl_or_duration_keeps_the_decode_factor(changes):
    before, after = run(POLICY, [BUSY, observed(requests=90_000.0, **changes)])
    assert factors(after)["decode"] == factors(before)["decode"]


def test_unknown_itl_leaves_prefill_alone():
    before, after = run(POLICY, [BUSY, observed(requests=90_000.0, ttft_s=0.060, itl_s=NAN)])
    assert factors(after)["prefill"] == pytest.approx(1.0)
    assert after.targets[PREFILL] > before.targets[PREFILL]


def test_no_ready_decode_replica_keeps_the_decode_factor():
    starting = PoolState(desired=3, starting=3, ready=0, draining=0)
    decision = first(POLICY, observed(pools=DISAGGREGATED | {DECODE: starting}))
    assert decision.reasons["corrections"]["decode"]["basis"] == "kept: no decode replica is ready"
    assert factors(decision)["decode"] == 1.0


@pytest.mark.parametrize("isl", [NAN, 0.0])
def test_the_last_known_isl_stands_in(isl):
    before, after = run(POLICY, [BUSY, observed(requests=90_000.0, ttft_s=0.030, isl_tokens=isl)])
    assert after.targets == before.targets
    assert after.reasons["forecast"]["isl_tokens"] == 1_000.0


def test_an_isl_never_known_holds_both_pools():
    decision = first(POLICY, observed(requests=90_000.0, isl_tokens=NAN))
    assert decision.targets == {PREFILL: 3, DECODE: 3}
    assert decision.reasons["held"] == ["prefill", "decode"]
    assert "prefill: target held, no length is known" in decision.reasons["warnings"]


def test_an_osl_never_known_holds_only_decode():
    decision = first(POLICY, observed(requests=90_000.0, osl_tokens=NAN))
    assert decision.reasons["held"] == ["decode"]
    assert decision.targets[DECODE] == 3
    assert decision.targets[PREFILL] == first(POLICY, observed(requests=90_000.0)).targets[PREFILL] > 3


def test_the_last_known_osl_stands_in():
    before, after = run(POLICY, [BUSY, observed(requests=90_000.0, ttft_s=0.030, osl_tokens=NAN)])
    assert after.targets == before.targets


def test_forecast_lengths_serve_pools_where_none_was_observed():
    blind = observed(isl_tokens=NAN, osl_tokens=NAN, forecast=expected_load(90_000))
    decision = first(POLICY, blind)
    assert decision.reasons["held"] == []
    assert factors(decision) == {"prefill": 1.0, "decode": 1.0}
    assert decision.targets[PREFILL] > 3


@pytest.mark.parametrize("missing", ["requests", "isl_tokens", "osl_tokens"])
def test_a_forecast_series_that_is_missing_is_constant(missing):
    given = {"requests": 90_000.0, "isl_tokens": 2_000.0, "osl_tokens": 400.0}
    names = {"requests": 3_600.0, "isl_tokens": 1_000.0, "osl_tokens": 200.0}
    decision = first(
        POLICY, observed(forecast=LoadForecast(**given | {missing: NAN}, source={"requests": "kalman"}))
    )
    used = decision.reasons["forecast"]
    assert {name: used[name] for name in given} == given | {missing: names[missing]}
    assert used["source"][missing] == "constant (no forecast)"
    assert used["source"]["requests"] == ("constant (no forecast)" if missing == "requests" else "kalman")
