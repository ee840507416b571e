"""Intervals of advice, ordinary and not: the plan's own fleet, its costs, what is known of the real one."""

from dataclasses import replace

import numpy as np
import pytest

from headway.planning import Observation, PolicySettings, PoolLimits, Role, make_policy
from headway.planning.advice.advisor import Advisor, Seen
from headway.planning.advice.ledger import Row
from headway.planning.advice.replay import PlannedPool, SeenStarts, StartUp
from headway.planning.deciding import decide
from headway.planning.hindsight.history import Attained, attained
from headway.planning.types import NAN, Slo
from tests.planning.advice.advice_cases import INTERVAL_S, SPLIT, engine, interval, pools
from tests.planning.planning_cases import PROFILE, settings

LIMITS = {role: PoolLimits(gpus_per_replica=2) for role in SPLIT}
OURS = {Role.PREFILL: 1, Role.DECODE: 2}


def made(**stated: float) -> Advisor:
    return Advisor(LIMITS, StartUp(guess_s=60.0, stated_s=stated.get("start_up_s")))


def seen(advisor: Advisor, observation: Observation, **more: object) -> tuple[Observation, Row]:
    known = Seen(attained=attained(observation.traffic, Slo(ttft_s=0.5, itl_s=0.02)), **more)  # type: ignore[arg-type] # as given
    shown, row = advisor.see(observation, engine(), known)
    assert row is not None
    return shown, row


def test_the_plan_begins_as_the_real_fleet_and_goes_on_from_its_own() -> None:
    advisor = made()
    shown, row = seen(advisor, interval(0))
    assert {role: pool.desired for role, pool in shown.pools.items()} == SPLIT
    assert shown.stood == pools(SPLIT)
    assert row.stood_gpu_s == row.planned_gpu_s == 6 * 2 * INTERVAL_S
    advisor.order(OURS, 30.0)
    shown, row = seen(advisor, interval(1))
    assert {role: (pool.desired, pool.ready) for role, pool in shown.pools.items()} == {
        Role.PREFILL: (1, 1),
        Role.DECODE: (2, 2),
    }
    assert row.stood_gpu_s == 6 * 2 * INTERVAL_S
    # Three replicas of two GPUs, and what drained of the others for some seconds.
    assert 3 * 2 * INTERVAL_S < row.planned_gpu_s < 3.5 * 2 * INTERVAL_S
    assert shown.serving == shown.stood


def test_an_order_serves_a_start_up_later_and_costs_from_the_first_second() -> None:
    advisor = made(start_up_s=45.0)
    seen(advisor, interval(0))
    advisor.order({Role.PREFILL: 5, Role.DECODE: 3}, 30.0)
    shown, row = seen(advisor, interval(1))
    assert (shown.pools[Role.PREFILL].ready, shown.pools[Role.PREFILL].starting) == (3, 2)
    assert row.planned_gpu_s == 8 * 2 * INTERVAL_S
    assert row.starting_gpu_s == 2 * 2 * INTERVAL_S
    shown, row = seen(advisor, interval(2))
    assert (shown.pools[Role.PREFILL].ready, shown.pools[Role.PREFILL].starting) == (5, 0)
    assert row.starting_gpu_s == pytest.approx(2 * 2 * 15.0)
    assert row.planned_replica_s[Role.PREFILL] == pytest.approx(3 * 15.0 + 5 * 15.0)


def test_releases_take_back_what_has_not_come_first() -> None:
    pool = PlannedPool(desired=5, ready=3, coming_s=(40.0, 70.0))
    assert pool.order(4, 10.0, 60.0) == PlannedPool(desired=4, ready=3, coming_s=(40.0,))
    assert pool.order(2, 10.0, 60.0) == PlannedPool(desired=2, ready=2)
    assert pool.order(6, 10.0, 45.0).coming_s == (40.0, 55.0, 70.0)
    assert pool.at(50.0) == PlannedPool(desired=5, ready=4, coming_s=(70.0,))


def test_a_start_takes_as_long_as_it_was_seen_to() -> None:
    start_up = StartUp(guess_s=60.0)
    assert (start_up.of(Role.DECODE), start_up.sure) == (60.0, False)
    looks = [(0.0, 2), (10.0, 3), (100.0, 3), (130.0, 0)]
    for at_s, starting in looks:
        there = {role: replace(pools({role: 3 - starting + 2})[role], starting=starting) for role in SPLIT}
        start_up = start_up.see([(at_s, there)])
    # Two were under way at the first look: since when is not known. The third took from 10 to 130 s.
    assert (start_up.of(Role.DECODE), start_up.sure) == (120.0, True)
    assert replace(start_up, stated_s=20.0).of(Role.DECODE) == 20.0
    assert SeenStarts().see(0.0, 0, 4).see(5.0, 0, 9).took_s == ()


def test_real_replicas_cost_from_look_to_look() -> None:
    advisor = made()
    seen(advisor, interval(0))
    more = pools({Role.PREFILL: 3, Role.DECODE: 3}, starting=2)
    looks = [(40.0, more), (50.0, pools(SPLIT))]
    _, row = seen(advisor, interval(1), looks=looks)
    assert row.stood_gpu_s == pytest.approx((6 * 30.0 + 4 * 10.0) * 2)
    assert row.stood_replica_s[Role.DECODE] == pytest.approx(3 * 30.0)
    # Without a look between two ticks the change is taken to come halfway.
    _, row = seen(advisor, interval(2, pools=pools({Role.PREFILL: 3, Role.DECODE: 5})))
    assert row.stood_gpu_s == pytest.approx((6 * 15.0 + 8 * 15.0) * 2)


def test_zero_traffic_costs_and_ends_nothing() -> None:
    advisor = made()
    seen(advisor, interval(0))
    seen(advisor, interval(1, count=0))
    _, row = seen(advisor, interval(2, count=0))
    assert (row.requests, row.planned, row.stood, row.measured) == (0.0, 0.0, 0.0, 0.0)
    assert row.planned_gpu_s == row.stood_gpu_s > 0.0


def test_demand_that_is_not_known_costs_and_says_nothing_of_requests() -> None:
    advisor = made()
    for number in range(3):
        seen(advisor, interval(number))
    unknown = interval(3, traffic=None, requests=NAN, isl_tokens=NAN, osl_tokens=NAN, ttft_s=NAN, itl_s=NAN)
    seen(advisor, unknown)
    shown, row = seen(advisor, replace(unknown, now_s=unknown.now_s + INTERVAL_S))
    assert (row.requests, row.measured, row.planned) == (0.0, 0.0, 0.0)
    assert row.stood_gpu_s > 0.0
    assert np.isnan(shown.ttft_s)
    assert np.isnan(shown.requests)


def test_counts_that_are_not_known_leave_no_row_and_the_plan_goes_on() -> None:
    advisor = made(start_up_s=45.0)
    seen(advisor, interval(0))
    advisor.order({Role.PREFILL: 4, Role.DECODE: 3}, 30.0)
    for number in (1, 2):
        shown, row = advisor.see(interval(number), engine(), Seen(known=False))
        assert row is None
    assert shown.pools[Role.PREFILL].ready == 4
    _, row = seen(advisor, interval(3))
    assert (row.start_s, row.end_s) == (90.0, 120.0)


def test_a_gap_between_intervals_is_left_out_and_what_ran_in_it_ends() -> None:
    advisor = made()
    seen(advisor, interval(0))
    _, row = seen(advisor, interval(100))
    assert (row.start_s, row.end_s, row.seconds) == (3000.0, 3030.0, 30.0)
    assert row.stood <= 100


def test_intervals_that_overlap_count_once() -> None:
    advisor = made()
    seen(advisor, interval(0))
    early = interval(1)
    _, one = seen(advisor, replace(early, now_s=40.0, traffic=interval(1).traffic))
    assert (one.start_s, one.seconds) == (30.0, 10.0)
    _, other = seen(advisor, early)
    assert (other.start_s, other.seconds) == (40.0, 20.0)
    _, last = seen(advisor, interval(2, count=0))
    replayed = one.stood + other.stood + last.stood
    assert replayed <= 200
    shown, row = advisor.see(interval(2, count=0), engine(), Seen())
    assert row is None
    assert shown.pools


def test_a_clock_that_is_set_back_begins_the_replays_anew() -> None:
    advisor = made()
    for number in range(5, 8):
        seen(advisor, interval(number))
    advisor.order(OURS, 240.0)
    shown, row = seen(advisor, interval(1))
    assert (row.start_s, row.seconds) == (30.0, 30.0)
    assert shown.pools[Role.PREFILL].desired == 1


def test_a_restart_goes_on_with_the_plan_s_fleet() -> None:
    advisor = made(start_up_s=100.0)
    seen(advisor, interval(0))
    advisor.order({Role.PREFILL: 4, Role.DECODE: 1}, 30.0)
    again = Advisor(LIMITS, StartUp(guess_s=60.0, stated_s=100.0), advisor.memory)
    shown, row = seen(again, interval(2))
    assert {role: pool.desired for role, pool in shown.pools.items()} == {Role.PREFILL: 4, Role.DECODE: 1}
    assert shown.pools[Role.PREFILL].starting == 1
    assert row.stood_gpu_s == 6 * 2 * INTERVAL_S
    assert row.planned_gpu_s == 5 * 2 * INTERVAL_S


def test_what_another_has_seen_until_then_is_not_counted_again() -> None:
    """A tick that was late, and the next one in time: their intervals overlap."""
    late = Advisor(LIMITS, StartUp(guess_s=60.0), after_s=40.0)
    _, row = seen(late, interval(1))
    assert (row.start_s, row.end_s) == (40.0, 60.0)
    assert row.stood_gpu_s == 6 * 2 * 20.0
    # A clock that was set back since is believed.
    _, row = seen(Advisor(LIMITS, StartUp(guess_s=60.0), after_s=1e9), interval(1))
    assert (row.start_s, row.end_s) == (30.0, 60.0)


def test_the_real_fleet_all_gone_for_a_while() -> None:
    advisor = made()
    seen(advisor, interval(0))
    gone = pools(dict.fromkeys(SPLIT, 0))
    _, row = seen(advisor, interval(1, pools=gone), looks=[(30.5, gone)])
    assert row.stood_gpu_s == pytest.approx(6 * 0.5 * 2)
    assert row.planned_met > 50
    _, back = seen(advisor, interval(2))
    assert back.stood_met < back.stood


def test_where_only_first_tokens_are_measured_only_they_are_compared() -> None:
    found = interval(0).traffic
    assert found is not None
    slo = Slo(ttft_s=0.2, itl_s=0.005)
    assert attained(found, slo) == Attained(ended=100.0, met=0.0)
    first_tokens = replace(found, completed_itl_s=np.full(100, np.nan))
    assert attained(first_tokens, slo) == Attained(ended=100.0, met=100.0, ttft_only=True)
    assert attained(replace(found, completed_ttft_s=None), slo) == Attained()
    assert attained(None, slo) == Attained()


def test_calm_intervals_are_those_after_calm_ones() -> None:
    advisor = made()
    calm = [seen(advisor, interval(number))[1].calm_measured > 0.0 for number in range(8)]
    assert calm == [False] * 4 + [True] * 4
    _, changed = seen(advisor, interval(8, pools=pools({Role.PREFILL: 3, Role.DECODE: 4})))
    assert changed.calm_measured == 0.0


def test_excess_losses_are_laid_to_the_fleet_that_had_them() -> None:
    """A plan with fewer replicas than stand there does not take the real fleet's misses for its own."""
    own: PolicySettings = settings(limits=LIMITS, slo=Slo(ttft_s=0.5, itl_s=0.02), interval_s=INTERVAL_S)
    policy = make_policy("headway", own, PROFILE)
    advisor, state = made(), policy.initial_state()
    for number in range(12):
        shown, _ = seen(advisor, interval(number))
        decision = decide(policy, shown, state, own.bounds)
        state = decision.next_state
        advisor.order(decision.targets, shown.now_s)
    memory = state.pools[Role.DECODE]
    assert advisor.planned[Role.DECODE].desired < 3
    assert set(memory.outcomes.ready.tolist()) == {3.0}
