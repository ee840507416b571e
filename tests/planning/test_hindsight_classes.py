"""Promises to classes: each keeps a loss budget of its own, the critical ones first."""

from dataclasses import replace

import numpy as np
import pytest
from planning_cases import PROFILE, observed, run, settings, why

from headway.planning import PoolLimits, PoolState, Role, Traffic, make_policy
from headway.planning.hindsight.choice import ClassPast, cheapest, class_budgets, divide_budget
from headway.planning.hindsight.history import PoolHistory
from headway.planning.hindsight.settings import HeadwaySettings
from headway.planning.hindsight.state import HindsightState
from headway.planning.replay import LossCurve
from headway.planning.types import Promise, Slo

PREFILL, DECODE = Role.PREFILL, Role.DECODE
LOOSE = Slo(ttft_s=5.0, itl_s=0.02)
URGENT = Promise(name="urgent", slo=Slo(ttft_s=0.1, itl_s=0.02), critical=True)
BATCH = Promise(name="batch", slo=LOOSE)
INTERVAL_S = 30.0


def planner(slo=LOOSE, classes=(), **changes):
    return make_policy(
        "headway", settings(slo=slo, classes=classes, interval_s=INTERVAL_S, **changes), PROFILE
    )


def traffic(tick, rate, share, urgent_s):
    """Poisson arrivals of 1,000 tokens in, 100 out; `share` of them is urgent, None: nobody has a class."""
    rng = np.random.default_rng(tick)
    count = rng.poisson(rate * INTERVAL_S)
    urgent = rng.random(count) < (share or 0.0)
    return Traffic(
        arrival_s=tick * INTERVAL_S + np.sort(rng.uniform(0.0, INTERVAL_S, count)),
        input_tokens=np.full(count, 1000.0),
        completed_input_tokens=np.full(count, 1000.0),
        completed_output_tokens=np.full(count, 100.0),
        slo_ttft_s=None if share is None else np.where(urgent, urgent_s, np.nan),
        slo_class=None if share is None else np.where(urgent, 1.0, 2.0),
    )


def last_of(policy, share, urgent_s=0.1, rate=20.0, ticks=25):
    """The last decision after that many intervals, in which the fleet stays as it is."""
    pool = PoolState(desired=8, starting=0, ready=8, draining=0, running=5.0, waiting=0.0)
    seen = observed(
        interval_s=INTERVAL_S, isl_tokens=1000.0, osl_tokens=100.0, pools={PREFILL: pool, DECODE: pool}
    )
    came = [traffic(tick, rate, share, urgent_s) for tick in range(ticks)]
    return run(
        policy,
        [
            replace(seen, now_s=(tick + 1) * INTERVAL_S, requests=float(len(each.arrival_s)), traffic=each)
            for tick, each in enumerate(came)
        ],
    )[-1]


def prefill_of(decision):
    return decision.reasons["needs"]["prefill"]["replicas"]


def test_a_fleet_with_two_promises_lies_between_those_of_each():
    loose, tight = (last_of(planner(slo), None) for slo in (LOOSE, URGENT.slo))
    both = last_of(planner(classes=(URGENT, BATCH)), 0.2)
    assert prefill_of(loose) < prefill_of(both) <= prefill_of(tight)
    shares = both.reasons["needs"]["prefill"]["option"]["classes"]
    assert len(shares) == 3
    assert max(shares) <= 0.01
    assert "% of urgent" in why(both.reasons)
    assert both.reasons["settings"]["class_budgets"] == pytest.approx(
        {"": 0.01, "urgent": 0.01, "batch": 0.01}
    )


def test_an_slo_of_its_own_counts_without_a_class():
    policy = planner()
    assert prefill_of(last_of(policy, None)) < prefill_of(last_of(policy, 0.2))


def test_classes_that_nobody_names_change_nothing():
    plain, named = (last_of(planner(classes=classes), None) for classes in ((), (URGENT, BATCH)))
    assert plain.targets == named.targets


def test_a_class_may_be_promised_less():
    often, seldom = (
        last_of(planner(classes=(replace(URGENT, attainment=share), BATCH)), 0.2) for share in (0.999, 0.5)
    )
    assert prefill_of(often) > prefill_of(seldom)


def test_other_promises_begin_a_new_past():
    state = HindsightState().under(LOOSE, (URGENT,))
    assert state.under(LOOSE, (URGENT,)) is state
    assert len(state.pool(PREFILL).classes) == 2
    assert state.under(LOOSE, (URGENT, BATCH)).classes == (URGENT, BATCH)


def test_budgets_are_the_classes_own_or_else_the_deployment_s():
    own = settings(attainment=0.98, classes=(replace(URGENT, attainment=0.999), BATCH))
    assert class_budgets(own) == pytest.approx((0.02, 0.001, 0.02))
    chosen = replace(own, sections={"headway": HeadwaySettings(loss_budget=0.05)})
    assert class_budgets(chosen) == pytest.approx((0.05, 0.001, 0.05))
    assert class_budgets(settings()) == ()


COST = np.array([1.0, 2.0, 3.0])
FALLING = np.array([[9.0, 4.0, 0.0], [9.0, 2.0, 1.0]])
NEITHER, FIRST = np.array([False, False]), np.array([True, False])


def test_the_cheapest_pair_within_every_budget_is_found():
    assert cheapest([COST], [FALLING], np.array([4.0, 2.0]), NEITHER) == (1,)
    assert cheapest([COST], [FALLING], np.array([3.0, 2.0]), NEITHER) == (2,)
    assert cheapest([COST, 10.0 * COST], [FALLING, FALLING], np.array([4.0, 9.0]), NEITHER) == (2, 1)
    assert cheapest([10.0 * COST, COST], [FALLING, FALLING], np.array([4.0, 9.0]), NEITHER) == (1, 2)


def test_where_no_fleet_keeps_all_budgets_the_critical_ones_go_first():
    losses = np.array([[5.0, 0.0], [0.0, 9.0]])
    costs, allowed = np.array([1.0, 1.0]), np.array([1.0, 1.0])
    assert cheapest([costs], [losses], allowed, NEITHER) == (0,)
    assert cheapest([costs], [losses], allowed, FIRST) == (1,)


def history(needed, requests):
    past = PoolHistory()
    for _ in range(20):
        past = past.add(1.0, LossCurve(requests, np.append(np.full(needed, requests), 0)), 100)
    return past


@pytest.mark.parametrize(("critical", "expected"), [(False, (1, 4)), (True, (4, 1))])
def test_a_budget_that_binds_goes_to_what_is_critical(critical, expected):
    """Few critical requests lack prefill replicas, many others lack decode replicas."""
    few = {PREFILL: history(4, 10), DECODE: history(1, 10)}
    many = {PREFILL: history(1, 90), DECODE: history(4, 90)}
    total = {PREFILL: history(1, 100), DECODE: history(4, 100)}
    found = divide_budget(
        total,
        wished={PREFILL: 4, DECODE: 4},
        needed={PREFILL: 4, DECODE: 4},
        held={PREFILL: 1, DECODE: 1},
        limits={PREFILL: PoolLimits(), DECODE: PoolLimits()},
        budget=5,
        moving=0.3,
        half_life=10.0,
        classes=(
            ClassPast(histories=few, may_miss=0.01, critical=critical),
            ClassPast(histories=many, may_miss=0.01, critical=False),
        ),
    )
    assert found == dict(zip((PREFILL, DECODE), expected, strict=True))
