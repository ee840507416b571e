"""Losses that replays do not explain: found, planned for where more replicas mend them, and said."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import PROFILE, observed, run, settings

from headway.engine import EngineRules
from headway.planning import PlanningError, PoolState, Role, Slo, Traffic, make_policy
from headway.planning.hindsight.excess import Excess, excess, excess_lines, with_excess
from headway.planning.hindsight.history import BEFORE, KEPT, OutcomeHistory, PoolHistory, missed
from headway.planning.replay import LossCurve, ReplayEngine
from headway.planning.replay.curve import least_within

INTERVAL_S, HALF_LIFE_S, BUDGET, REQUESTS = 30.0, 7200.0, 0.01, 1000
NEEDED = 10


def curve(requests=REQUESTS, enough=NEEDED):
    lost = np.full(enough + 1, requests)
    lost[enough] = 0
    return LossCurve(requests=requests, lost=lost)


def outcomes(ready, share, pace=1.0, seed=0, repeats=0.0):
    """Intervals with so many replicas, in which `share(provision)` of the requests miss."""
    rng = np.random.default_rng(seed)
    history, paces = OutcomeHistory(), np.broadcast_to(pace, len(ready))
    for place, count in enumerate(ready):
        now_s = (place + 1) * INTERVAL_S
        history = history.add(now_s, int(count), curve(), float(paces[place]), BUDGET, repeats=repeats)
        missed = rng.binomial(1, min(1.0, share(count / NEEDED)), REQUESTS).astype(np.float64)
        history = history.with_ended(np.full(REQUESTS, now_s - 1.0), missed)
    return history


def found(*args, **options):
    return excess(outcomes(*args, **options), BUDGET, HALF_LIFE_S)


@pytest.mark.parametrize(
    ("ready", "share", "pace"),
    [
        ([10] * 60, 0.001, 1.0),
        ([10] * 5, 0.5, 1.0),
        ([9] * 60, 1.0, 1.0),
        ([10] * 40, 0.3, [0.7] * 38 + [1, 1]),
    ],
    ids=["as replays say", "a few intervals", "too few replicas", "engines that have changed"],
)
def test_where_nothing_can_be_said_there_is_no_excess(ready, share, pace):
    assert found(ready, lambda _: share, pace=pace) is None


@pytest.mark.parametrize(("ready", "is_found"), [(14, False), (16, True)])
def test_a_fleet_that_served_repeats_beside_its_requests_was_that_much_smaller_for_them(ready, is_found):
    each = found([ready] * 60, lambda _: 0.05, repeats=REQUESTS / 2)
    assert (each is not None) is is_found


def test_an_excess_is_found_with_the_replicas_that_mend_it():
    each = found(np.repeat([10, 11, 12, 13], 15), lambda u: 0.08 * u**-12)
    assert each.slope == pytest.approx(12, abs=2)
    assert each.share == pytest.approx(0.08 * each.provision**-12, rel=0.2)
    assert each.planned
    assert each.larger == pytest.approx((0.08 / 0.005) ** (1 / 12), rel=0.05)


def test_losses_that_more_replicas_do_not_mend_are_not_planned_for():
    each = found(np.repeat([10, 13, 16], 20), lambda u: 0.08)
    assert not each.planned
    assert each.slope < 1.0


def test_a_first_suspicion_is_tried():
    each = found([10] * 8, lambda u: 0.05)
    assert each.planned
    assert 1.0 < each.larger < 1.5


def test_replicas_that_have_just_come_do_not_count():
    early = OutcomeHistory()
    for place, ready in enumerate([5] + [10] * (BEFORE + 1)):
        early = early.add((place + 1) * INTERVAL_S, ready, curve(), 1.0, BUDGET)
    assert early.provision.tolist() == [0.5] * (BEFORE + 1) + [1.0]


def test_one_bad_interval_is_not_taken_for_a_rule():
    one = outcomes([10] * 60, lambda u: 0.0)
    worst = one.with_ended(np.full(REQUESTS, 30 * INTERVAL_S - 1.0), np.ones(REQUESTS))
    each = excess(worst, BUDGET, HALF_LIFE_S)
    assert each is None or each.larger < 1.1


def test_requests_count_for_the_interval_in_which_they_came():
    history = outcomes([10] * 3, lambda u: 0.0)
    later = history.with_ended(np.array([1.0, 31.0, 32.0, 1e9]), np.array([1.0, 0.0, 1.0, 1.0]))
    assert (later.seen - history.seen).tolist() == [1.0, 2.0, 0.0]
    assert (later.missed - history.missed).tolist() == [1.0, 1.0, 0.0]


def test_old_intervals_are_forgotten():
    assert len(outcomes([10] * (KEPT + 7), lambda u: 0.0)) == KEPT


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), st.floats(0.003, 1.0), st.floats(0.1, 20.0))
def test_curves_with_an_excess_fall_and_stay_within_what_came(lost, share, slope):
    falling = np.sort(lost)[::-1]
    falling[0] = max(1, falling[0])
    history = PoolHistory().add(1.0, LossCurve(int(falling[0]), falling), 960)
    raised = with_excess(
        history, Excess(share=share, provision=1.0, slope=slope, larger=1.2, intervals=9), BUDGET
    )
    assert (np.diff(raised.lost) <= 0).all()
    assert (raised.lost[: len(falling)] >= falling).all()
    assert raised.lost.max() == falling[0]
    (least,) = least_within(np.array([0, len(falling)]), falling, BUDGET)
    assert len(raised.lost) >= min(2 * least, 2) + 1


def test_operators_read_what_is_lost_and_what_is_done():
    planned = Excess(share=0.041, provision=1.0, slope=9.0, larger=1.13, intervals=76)
    beyond = Excess(share=0.3, provision=1.0, slope=0.2, larger=float("inf"), intervals=76)
    lines = list(excess_lines({Role.PREFILL: planned, Role.DECODE: beyond}, INTERVAL_S))
    assert lines[0] == (
        "prefill: 4.1 % of the requests of 38 min missed their SLO beyond what replays explain; "
        "1.13 times as many replicas as without are held for it"
    )
    assert lines[1].endswith("more replicas do not help, none are held for it")


def late_traffic(tick, late):
    """300 requests; of those that completed so many were late, for no reason that an engine has."""
    arrival_s = (tick + np.arange(1, 301) / 300.0) * INTERVAL_S
    lengths = np.full(300, 2000.0)
    return Traffic(
        arrival_s=arrival_s,
        input_tokens=lengths,
        completed_input_tokens=lengths,
        completed_output_tokens=np.full(300, 50.0),
        completed_arrival_s=arrival_s,
        completed_ttft_s=np.where(np.arange(300) < late, 60.0, 0.01),
        completed_itl_s=np.full(300, 1e-4),
    )


def test_the_policy_says_and_plans_for_what_its_replays_do_not_know():
    def decisions(late):
        policy = make_policy("headway", settings(interval_s=INTERVAL_S), PROFILE)
        pool = PoolState(desired=4, starting=0, ready=4, draining=0)
        seen = {"interval_s": INTERVAL_S, "requests": 300.0, "pools": {Role.PREFILL: pool, Role.DECODE: pool}}
        intervals = [(tick, late_traffic(tick, late)) for tick in range(30)]
        return run(
            policy, [observed(now_s=(n + 1) * INTERVAL_S, traffic=each, **seen) for n, each in intervals]
        )[-1]

    plain, with_late = decisions(0), decisions(30)
    assert "excess" not in plain.reasons
    assert with_late.reasons["excess"]["prefill"]["share"] == pytest.approx(0.1, rel=0.2)
    assert "decode" not in with_late.reasons["excess"]
    assert with_late.targets[Role.PREFILL] > plain.targets[Role.PREFILL]
    assert any("beyond what replays explain" in line for line in with_late.reasons["warnings"])


@pytest.mark.parametrize(
    ("role", "times", "expected"),
    [
        (Role.PREFILL, (9.0, 0.5, 0.001), [1.0]),
        (Role.PREFILL, (9.0, 0.1, 0.5), [0.0]),
        (Role.DECODE, (9.0, 0.5, 0.5), [0.0]),
        (Role.DECODE, (9.0, 0.1, 0.5), [1.0]),
        (Role.DECODE, (9.0, 0.1, np.nan), []),
        (Role.MIXED, (9.0, 0.1, np.nan), [0.0]),
        (Role.MIXED, (9.0, 0.1, 0.5), [1.0]),
        (Role.PREFILL, (np.nan, 0.5, 0.001), []),
        (Role.PREFILL, (9.0, np.nan, 0.001), []),
    ],
)
def test_a_latency_is_laid_to_the_pool_that_it_is_about(role, times, expected):
    engine = ReplayEngine.of(PROFILE, Slo(ttft_s=0.2, itl_s=0.02), EngineRules())
    arrival_s, ttft_s, itl_s = ([each] for each in times)
    traffic = Traffic(
        arrival_s=[],
        input_tokens=[],
        completed_input_tokens=[500.0],
        completed_output_tokens=[20.0],
        completed_arrival_s=arrival_s,
        completed_ttft_s=ttft_s,
        completed_itl_s=itl_s,
    )
    assert missed(engine, traffic, role)[1].tolist() == expected


def test_a_request_with_an_slo_of_its_own_misses_by_that():
    engine = ReplayEngine.of(PROFILE, Slo(ttft_s=0.2, itl_s=0.02), EngineRules())
    traffic = Traffic(
        arrival_s=[],
        input_tokens=[],
        completed_input_tokens=[500.0] * 3,
        completed_output_tokens=[20.0] * 3,
        completed_arrival_s=[9.0] * 3,
        completed_ttft_s=[0.5] * 3,
        completed_itl_s=[0.015] * 3,
        completed_slo_ttft_s=[np.nan, 1.0, 1.0],
        completed_slo_itl_s=[np.nan, np.nan, 0.012],
    )
    assert missed(engine, traffic, Role.PREFILL)[1].tolist() == [1.0, 0.0, 0.0]
    assert missed(engine, traffic, Role.DECODE)[1].tolist() == [0.0, 0.0, 1.0]


def test_columns_of_completed_requests_have_one_length():
    with pytest.raises(PlanningError, match="differ in length"):
        Traffic(
            arrival_s=[],
            input_tokens=[],
            completed_input_tokens=[1.0, 2.0],
            completed_output_tokens=[1.0, 2.0],
            completed_arrival_s=[1.0],
            completed_ttft_s=[1.0],
            completed_itl_s=[1.0],
        )
