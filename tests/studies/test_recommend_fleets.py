"""The least fixed fleet: as cheap as trying every one finds it, with few tries, and said where none does."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning import Role
from headway.planning.deciding import gpus
from headway.planning.types import PoolLimits
from headway_studies.recommend.fleets import least_fleet

PREFILL, DECODE, MIXED = Role.PREFILL, Role.DECODE, Role.MIXED
MOST = 12


def losing(need):
    """Attainment of fleets in which each pool loses a share that halves with every replica above its need."""

    def attain(fleet):
        return max(0.0, 1.0 - sum(0.01 * 2.0 ** (need[role] - count) for role, count in fleet.items()))

    return attain


@st.composite
def pools(draw):
    roles = draw(st.sampled_from([(MIXED,), (PREFILL, DECODE)]))
    limits = {
        role: PoolLimits(min_replicas=1, max_replicas=MOST, gpus_per_replica=draw(st.sampled_from([1, 2, 4])))
        for role in roles
    }
    need = {role: draw(st.floats(0.0, MOST - 3.0)) for role in roles}
    guess = {role: draw(st.integers(1, MOST)) for role in roles}
    return limits, need, guess


@given(pools(), st.sampled_from([0.9, 0.99, 0.999]))
def test_no_cheaper_fleet_attains(problem, target):
    limits, need, guess = problem
    attain = losing(need)
    every = (
        dict(zip(limits, counts, strict=True)) for counts in product(range(1, MOST + 1), repeat=len(limits))
    )
    costs = [gpus(fleet, limits) for fleet in every if attain(fleet) >= target]
    found = least_fleet(attain, guess, limits, target)
    if not costs:
        assert found.fleet is None
    else:
        assert attain(found.fleet) >= target
        assert gpus(found.fleet, limits) == min(costs)


def test_one_pool_takes_few_tries_however_far_the_guess():
    limits = {MIXED: PoolLimits(max_replicas=100_000)}
    for guess, most in ((1, 14), (37, 3), (60, 12), (600, 24)):
        found = least_fleet(losing({MIXED: 37.0}), {MIXED: guess}, limits, 0.99)
        assert found.fleet == {MIXED: 37}
        assert found.tried <= most


def test_no_fleet_is_tried_twice():
    tried = []
    attain = losing({PREFILL: 4.3, DECODE: 2.2})

    def counted(fleet):
        tried.append(tuple(fleet.values()))
        return attain(fleet)

    limits = {PREFILL: PoolLimits(), DECODE: PoolLimits()}
    found = least_fleet(counted, {PREFILL: 3, DECODE: 3}, limits, 0.99)
    assert len(tried) == len(set(tried)) == found.tried


def test_of_fleets_that_cost_the_same_the_one_that_attains_most():
    limits = {PREFILL: PoolLimits(), DECODE: PoolLimits()}
    need = {PREFILL: 2.0, DECODE: 2.0}

    def attain(fleet):
        bonus = 0.001 if fleet == {PREFILL: 2, DECODE: 3} else 0.0
        return min(1.0, losing(need)(fleet) + bonus)

    assert least_fleet(attain, {PREFILL: 2, DECODE: 2}, limits, 0.984).fleet == {PREFILL: 2, DECODE: 3}


def test_a_neighbour_that_the_premise_rules_out_is_tried_and_preferred():
    limits = {PREFILL: PoolLimits(), DECODE: PoolLimits()}

    def attain(fleet):
        # One decode replica is enough only where few prefill replicas even out what it gets.
        enough = fleet[DECODE] >= 2 or fleet[PREFILL] <= 4
        return 0.999 if fleet[PREFILL] >= 4 and enough else 0.9

    found = least_fleet(attain, {PREFILL: 4, DECODE: 2}, limits, 0.99)
    assert found.fleet == {PREFILL: 4, DECODE: 1}
    assert found.beside == [({PREFILL: 3, DECODE: 1}, 0.9), ({PREFILL: 3, DECODE: 2}, 0.9)]


@given(pools(), st.integers(0, 2**32))
def test_the_neighbours_of_whatever_is_found_were_tried_and_none_is_better(problem, seed):
    limits, need, guess = problem
    bumpy, tried = losing(need), {}

    def attain(fleet):
        # Not monotone: some fleets lose more than smaller ones.
        bump = 0.02 * (hash((seed, *fleet.values())) % 3 == 0)
        return tried.setdefault(tuple(fleet.values()), bumpy(fleet) - bump)

    found = least_fleet(attain, guess, limits, 0.99)
    if found.fleet is not None:
        cost = gpus(found.fleet, limits)
        assert tried[tuple(found.fleet.values())] >= 0.99
        beside = {tuple(fleet.values()): attained for fleet, attained in found.beside}
        for role, count in found.fleet.items():
            if count > 1:
                fewer = tuple({**found.fleet, role: count - 1}.values())
                assert beside[fewer] == tried[fewer] < 0.99
        for fleet, attained in found.beside:
            assert gpus(fleet, limits) < cost or attained <= tried[tuple(found.fleet.values())]
            assert gpus(fleet, limits) <= cost


def test_a_replica_is_traded_for_as_many_as_its_gpus_pay_for():
    limits = {PREFILL: PoolLimits(gpus_per_replica=4), DECODE: PoolLimits(gpus_per_replica=1)}

    def attain(fleet):
        return 1.0 if 4 * fleet[PREFILL] + fleet[DECODE] >= 12 else 0.0

    found = least_fleet(attain, {PREFILL: 2, DECODE: 4}, limits, 0.99)
    assert found.fleet == {PREFILL: 1, DECODE: 8}
    assert [fleet for fleet, _ in found.beside] == [{PREFILL: 2, DECODE: 4}, {PREFILL: 1, DECODE: 7}]


@pytest.mark.parametrize(("most", "largest"), [(5, 5), (100_000, 128)])
def test_where_no_fleet_attains_the_largest_that_was_tried_is_said(most, largest):
    limits = {MIXED: PoolLimits(max_replicas=most)}
    found = least_fleet(lambda fleet: 0.8, {MIXED: 2}, limits, 0.99)
    assert found.fleet is None
    assert found.largest == {MIXED: largest}
    assert found.attained == 0.8


def test_the_minimum_of_a_pool_is_kept():
    limits = {MIXED: PoolLimits(min_replicas=3, max_replicas=9)}
    assert least_fleet(lambda fleet: 1.0, {MIXED: 7}, limits, 0.99).fleet == {MIXED: 3}


def test_an_idle_pool_has_one_replica_in_a_fixed_fleet():
    limits = {MIXED: PoolLimits(min_replicas=0, max_replicas=9)}
    assert least_fleet(lambda fleet: 1.0, {MIXED: 1}, limits, 0.99).fleet == {MIXED: 1}
