"""Limits and the GPU budget: the published proportional rule, and that nothing ever exceeds either."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import limits

from headway.planning import PlanningError, PoolLimits, Role
from headway.planning.deciding import check_budget, fit, gpus

PREFILL, DECODE, MIXED = Role.PREFILL, Role.DECODE, Role.MIXED


def published(prefill, decode, gpus_prefill, gpus_decode, budget):
    """The documented rule for two pools with minimums of 1."""
    scale = budget / (prefill * gpus_prefill + decode * gpus_decode)
    scaled = max(1, int(prefill * scale))
    return scaled, max(1, (budget - scaled * gpus_prefill) // gpus_decode)


@pytest.mark.parametrize(
    ("wished", "size", "budget", "result"),
    [
        ((10, 10), (1, 1), 10, (5, 5)),
        ((7, 13), (1, 1), 8, (2, 6)),
        ((6, 9), (2, 4), 24, (3, 4)),
        ((3, 5), (1, 2), 13, (3, 5)),
    ],
)
def test_both_pools_scale_down_in_proportion(wished, size, budget, result):
    pools = limits(prefill=PoolLimits(gpus_per_replica=size[0]), decode=PoolLimits(gpus_per_replica=size[1]))
    fitted = fit({PREFILL: wished[0], DECODE: wished[1]}, pools, budget)
    assert (fitted.targets[PREFILL], fitted.targets[DECODE]) == result == published(*wished, *size, budget)
    assert fitted.limits == (() if result == wished else ("gpu_budget",))


def test_a_minimum_that_binds_is_paid_by_the_other_pool():
    """The bare rule gives prefill 3 and decode 1 here: 7 GPUs of a budget of 5."""
    assert published(10, 1, 1, 4, 5) == (3, 1)
    fitted = fit(
        {PREFILL: 10, DECODE: 1}, limits(prefill=PoolLimits(), decode=PoolLimits(gpus_per_replica=4)), 5
    )
    assert fitted.targets == {PREFILL: 1, DECODE: 1}


def test_no_pool_gets_more_than_it_wished():
    """The bare rule rounds prefill down to 0 of 8 GPUs each and hands what is left to decode."""
    assert published(2, 3, 8, 1, 18) == (1, 10)
    fitted = fit(
        {PREFILL: 2, DECODE: 3}, limits(prefill=PoolLimits(gpus_per_replica=8), decode=PoolLimits()), 18
    )
    assert fitted.targets == {PREFILL: 1, DECODE: 3}


def test_one_mixed_pool_takes_what_fits():
    fitted = fit({MIXED: 9}, limits(mixed=PoolLimits(gpus_per_replica=2, max_replicas=8)), 11)
    assert fitted.targets == {MIXED: 5}
    assert fitted.limits == ("mixed: max_replicas", "gpu_budget")


def test_minimums_beyond_the_budget_are_an_error():
    pools = limits(prefill=PoolLimits(min_replicas=2, gpus_per_replica=4), decode=PoolLimits())
    check_budget(pools, 9)
    check_budget(pools, None)
    with pytest.raises(PlanningError, match=r"planner\.max_gpu_budget: 8 GPUs .* \(9 GPUs\)"):
        check_budget(pools, 8)


@pytest.mark.parametrize(
    "wrong", [{"min_replicas": 3, "max_replicas": 2}, {"min_replicas": -1}, {"gpus_per_replica": 0}]
)
def test_limits_are_valid_once_constructed(wrong):
    with pytest.raises(PlanningError, match="pools: "):
        PoolLimits(**wrong)


@st.composite
def pools_and_wishes(draw):
    roles = draw(st.sampled_from([(PREFILL, DECODE), (MIXED,), (PREFILL, DECODE, MIXED)]))
    bounds = {}
    for role in roles:
        low = draw(st.integers(0, 5))
        high = low + draw(st.integers(0, 50))
        bounds[role] = PoolLimits(
            min_replicas=low, max_replicas=high, gpus_per_replica=draw(st.integers(1, 8))
        )
    wished = {role: draw(st.integers(0, 100)) for role in roles}
    minimum = gpus({role: pool.min_replicas for role, pool in bounds.items()}, bounds)
    return bounds, wished, draw(st.none() | st.integers(max(1, minimum), minimum + 200))


@given(pools_and_wishes())
def test_the_fit_respects_limits_budget_and_wishes(case):
    bounds, wished, budget = case
    targets = fit(wished, bounds, budget).targets
    for role, pool in bounds.items():
        assert pool.min_replicas <= targets[role] <= pool.max_replicas
        assert targets[role] <= max(pool.min_replicas, wished[role])
    assert budget is None or gpus(targets, bounds) <= budget
    assert fit(targets, bounds, budget).targets == targets


@given(pools_and_wishes())
def test_the_order_of_the_pools_does_not_matter(case):
    bounds, wished, budget = case
    turned = fit(dict(reversed(wished.items())), dict(reversed(bounds.items())), budget)
    assert turned == fit(wished, bounds, budget)
    assert list(turned.targets) == [role for role in Role if role in bounds]
