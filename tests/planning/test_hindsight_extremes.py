"""The policy `headway` where traffic or measurements are extreme: none at all, outliers, ever more load."""

import dataclasses
from functools import cache

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import NAN, limits, observed
from test_hindsight_policy import INTERVAL_S, Fleet, policy, run, targets, traffic

from headway.planning import PoolLimits, Role, Slo
from headway.planning.hindsight.learning import Traffic

BOTH = (Role.PREFILL, Role.DECODE)
MAY_BE_EMPTY = limits(prefill=PoolLimits(min_replicas=0), decode=PoolLimits(min_replicas=0))


class IdleFleet(Fleet):
    """Nothing runs in it when it is looked at."""

    def pools(self):
        return {role: dataclasses.replace(pool, running=0.0) for role, pool in super().pools().items()}


@cache
def calm(ticks=30, even=False):
    """The last decision of a steady run of the policy."""
    return run(policy(), [20.0] * ticks, even=even)[-1]


def after_calm(**changes):
    """The observation after it, with `changes`."""
    return observed(
        now_s=31 * INTERVAL_S,
        interval_s=INTERVAL_S,
        traffic=traffic(30, 20.0),
        pools=Fleet(ready=max(calm().targets.values())).pools(),
        **changes,
    )


def test_pools_that_may_be_empty_are_when_idle_and_come_back_with_the_first_request():
    decisions = run(policy(limits=MAY_BE_EMPTY), [20.0] * 20 + [0.0] * 40 + [5.0] * 3, IdleFleet())
    for role in BOTH:
        counts = targets(decisions, role)
        assert min(counts[20:28]) >= 1
        assert counts[59] == 0
        assert min(counts[60:]) >= 1


def test_what_still_runs_keeps_a_replica():
    decisions = run(policy(limits=MAY_BE_EMPTY), [20.0] * 20 + [0.0] * 40)
    assert min(decisions[-1].targets.values()) == 1


def test_a_waiting_request_starts_a_replica_even_where_arrivals_are_not_measured():
    planner = policy(limits=MAY_BE_EMPTY)
    state = run(planner, [20.0] * 20 + [0.0] * 40, IdleFleet())[-1].next_state
    empty = Fleet(ready=0).pools()
    waiting = {role: dataclasses.replace(pool, running=0.0, waiting=1.0) for role, pool in empty.items()}
    unmeasured = observed(now_s=2000.0, interval_s=INTERVAL_S, requests=NAN, traffic=None, pools=waiting)
    assert min(planner.plan(unmeasured, state).targets.values()) == 1


def test_a_request_that_came_before_a_pool_was_empty_and_comes_again_starts_a_replica():
    planner = policy(limits=MAY_BE_EMPTY)
    state = run(planner, [20.0] * 20 + [0.0] * 40, IdleFleet())[-1].next_state
    empty = {role: dataclasses.replace(pool, running=0.0) for role, pool in Fleet(ready=0).pools().items()}
    for repeats in (0.0, 1.0):
        seen = observed(
            now_s=2000.0,
            interval_s=INTERVAL_S,
            requests=0.0,
            repeats=repeats,
            traffic=traffic(60, 0.0),
            pools=empty,
        )
        assert set(planner.plan(seen, state).targets.values()) == {repeats}


@pytest.mark.parametrize("outlier", [{"ttft_s": 9.0}, {"itl_s": 1.2}, {"ttft_s": NAN, "itl_s": NAN}])
def test_latencies_are_not_planned_from_so_an_outlier_moves_nothing(outlier):
    usual, odd = (policy().plan(after_calm(**more), calm().next_state) for more in ({}, outlier))
    assert odd.targets == usual.targets


def test_an_empty_pool_gets_what_its_queue_needs_and_not_twice_its_last_need():
    planner = policy(limits=MAY_BE_EMPTY)
    state = run(planner, [20.0] * 20 + [0.0] * 40, IdleFleet())[-1].next_state
    empty, needed = Fleet(ready=0).pools(), []
    for waiting in (1.0, 3e3, 1e4):
        pools = {
            role: dataclasses.replace(each, running=0.0, waiting=waiting) for role, each in empty.items()
        }
        seen = observed(
            now_s=2000.0, interval_s=INTERVAL_S, requests=0.0, traffic=traffic(60, 0.0), pools=pools
        )
        needed.append(planner.plan(seen, state).targets[Role.PREFILL])
    assert needed[0] == 1
    # A prompt takes about a twentieth of a second there, and the queue shall be gone after a minute.
    assert 2 < needed[1] < needed[2]


@pytest.mark.parametrize("waiting", [1e3, 1e9])
def test_a_queue_at_most_doubles_what_is_needed(waiting):
    seen = after_calm()
    queued = {role: dataclasses.replace(pool, waiting=waiting) for role, pool in seen.pools.items()}
    usual, odd = (
        policy().plan(dataclasses.replace(seen, pools=pools), calm().next_state).reasons["needs"]
        for pools in (seen.pools, queued)
    )
    for role in ("prefill", "decode"):
        assert usual[role]["replicas"] < odd[role]["replicas"] <= 2 * usual[role]["replicas"]


@hypothesis.settings(max_examples=15)
@given(st.tuples(st.floats(1.0, 400.0), st.floats(1.0, 400.0)))
def test_more_load_in_the_last_interval_never_needs_fewer_replicas_but_for_one(rates):
    """Of both pools: they share a loss budget, and where its division changes, one gives and one takes."""
    state = calm(12, even=True).next_state
    less, more = (
        policy()
        .plan(
            observed(now_s=13 * INTERVAL_S, interval_s=INTERVAL_S, traffic=traffic(12, rate, even=True)),
            state,
        )
        .reasons["needs"]
        for rate in sorted(rates)
    )
    assert total(more) >= total(less) - 1


def total(needs):
    return sum(need["replicas"] for need in needs.values())


def test_what_no_engine_serves_in_time_is_said_and_not_planned_for():
    decisions = run(policy(slo=Slo(ttft_s=0.02, itl_s=0.020)), [20.0] * 20)
    assert any(
        warning.startswith("The SLO of 100 % of requests") for warning in decisions[-1].reasons["warnings"]
    )
    assert max(targets(decisions)) <= 2
    feasible = calm().reasons["warnings"]
    assert not any("even when idle" in warning for warning in feasible)


def even_traffic(begin_s, end_s, *, isl=1000.0, osl=100.0):
    """20 requests a second, the first of them with `isl` tokens."""
    arrival_s = np.arange(begin_s, end_s, 0.05) + 0.05
    inputs = np.full(len(arrival_s), 1000.0)
    inputs[:1] = isl
    outputs = np.full(len(arrival_s), osl)
    return Traffic(
        arrival_s=arrival_s,
        input_tokens=inputs,
        completed_input_tokens=np.full(len(arrival_s), 1000.0),
        completed_output_tokens=outputs,
    )


def works_after(planner, state, ends_s, **lengths):
    """The work of each pool's last interval, after intervals that end then."""
    for end_s in ends_s:
        seen = observed(
            now_s=end_s,
            interval_s=INTERVAL_S,
            pools=Fleet().pools(),
            traffic=even_traffic(end_s - INTERVAL_S, end_s, **lengths),
        )
        state = planner.plan(seen, state).next_state
    assert (np.diff(state.recent.arrival_s) > 0.0).all()
    return [pool.history.work[-1] for pool in state.pools.values()]


@pytest.mark.parametrize("late_s", [2.0, 10.0])
def test_what_a_late_tick_has_seen_is_not_counted_again_by_the_next(late_s):
    planner = policy()
    steady_works = works_after(planner, planner.initial_state(), [30.0, 60.0, 90.0])
    assert works_after(planner, planner.initial_state(), [30.0, 60.0 + late_s, 90.0]) == pytest.approx(
        steady_works
    )


@pytest.mark.parametrize("isl", [1e6, 1e7])
def test_a_prompt_that_no_engine_has_room_for_is_no_work(isl):
    planner = policy()
    usual = works_after(planner, planner.initial_state(), [30.0, 60.0])
    odd = works_after(planner, planner.initial_state(), [30.0, 60.0], isl=isl)
    assert odd == pytest.approx(usual, rel=0.01)


@pytest.mark.parametrize("lengths", [{"osl": 0.0}, {"isl": 0.0}, {"isl": NAN}])
def test_lengths_of_nothing_count_as_one_token(lengths):
    planner = policy()
    works = works_after(planner, planner.initial_state(), [30.0, 60.0, 90.0], **lengths)
    assert all(0.0 < work < 2.0 for work in works)


def test_an_slo_that_is_loosened_releases_what_the_old_one_asked_for():
    tight, loose = (policy(slo=Slo(ttft_s=ttft_s, itl_s=0.02)) for ttft_s in (0.085, 2.0))
    before = run(tight, [20.0] * 40)[-1]
    state, fleet, counts = before.next_state, Fleet(ready=max(before.targets.values())), []
    for tick in range(40, 70):
        seen = observed(
            now_s=(tick + 1) * INTERVAL_S,
            interval_s=INTERVAL_S,
            pools=fleet.pools(),
            traffic=traffic(tick, 20.0),
        )
        decision = loose.plan(seen, state)
        fleet.scale(tick, decision.targets)
        state = decision.next_state
        counts.append(decision.targets[Role.PREFILL])
    assert counts[0] == before.targets[Role.PREFILL]
    assert counts[-1] == run(loose, [20.0] * 30)[-1].targets[Role.PREFILL] < counts[0]
