"""Sharing a budget: the same as trying everything, strict priorities, minimums first, nothing left unused."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning import PlanningError
from headway.planning.sharing import Demand, GpuLosses, share
from tests.planning.planning_cases import steady

NAMES = "abcd"


def losses(minimum, *lost):
    return GpuLosses(minimum_gpus=minimum, lost_rps=np.array(lost, np.float64))


def demand(name, minimum, *lost, priority=0, weight=1.0):
    return Demand(name=name, losses=losses(minimum, *lost), priority=priority, weight=weight)


@st.composite
def demands(draw):
    """Whole losses and weights, so that sums are exact."""
    found = []
    for name in NAMES[: draw(st.integers(1, 4))]:
        lost = sorted(draw(st.lists(st.integers(0, 12), min_size=1, max_size=6)), reverse=True)
        priority, weight = draw(st.integers(0, 2)), draw(st.integers(1, 3))
        found.append(demand(name, draw(st.integers(0, 3)), *lost, priority=priority, weight=weight))
    return found


budgets = st.integers(0, 12)


def least(of):
    return sum(one.losses.minimum_gpus for one in of)


def lost(one, gpus):
    return one.weight * one.losses.lost_rps[gpus - one.losses.minimum_gpus]


def by_tier(of, granted):
    """Each tier's loss, and how far it is from having all the GPUs that it wants; highest first."""
    tiers = sorted({one.priority for one in of}, reverse=True)
    members = [[one for one in of if one.priority == tier] for tier in tiers]
    return [
        (
            sum(lost(one, granted[one.name]) for one in tier),
            sum(one.losses.wanted_gpus - granted[one.name] for one in tier),
        )
        for tier in members
    ]


def best_by_trying(of, budget):
    ranges = [range(one.losses.minimum_gpus, one.losses.wanted_gpus + 1) for one in of]
    names = [one.name for one in of]
    possible = (dict(zip(names, counts, strict=True)) for counts in product(*ranges) if sum(counts) <= budget)
    return min(by_tier(of, granted) for granted in possible)


def gpus(grants):
    return {name: grant.gpus for name, grant in grants.items()}


@steady
@given(demands(), budgets)
def test_no_other_way_loses_less(of, spare):
    budget = least(of) + spare
    assert by_tier(of, gpus(share(of, budget))) == best_by_trying(of, budget)


@steady
@given(demands(), budgets)
def test_budget_minimums_and_wishes_hold_and_nothing_wanted_stays_unused(of, spare):
    budget = least(of) + spare
    granted = gpus(share(of, budget))
    assert all(one.losses.minimum_gpus <= granted[one.name] <= one.losses.wanted_gpus for one in of)
    assert sum(granted.values()) == min(budget, sum(one.losses.wanted_gpus for one in of))


@steady
@given(demands(), budgets, st.randoms(use_true_random=False))
def test_the_order_of_deployments_does_not_matter(of, spare, random):
    shuffled = list(of)
    random.shuffle(shuffled)
    assert share(shuffled, least(of) + spare) == share(of, least(of) + spare)


@steady
@given(demands(), budgets)
def test_a_larger_budget_never_costs_the_highest_tiers(of, spare):
    budget = least(of) + spare
    assert by_tier(of, gpus(share(of, budget + 1))) <= by_tier(of, gpus(share(of, budget)))


@steady
@given(demands(), budgets)
def test_a_grant_accounts_for_what_it_lacks(of, spare):
    for grant in share(of, least(of) + spare).values():
        assert sum(grant.ahead.values()) <= grant.wanted - grant.gpus
        assert bool(grant.words) == (grant.gpus < grant.wanted)


def test_a_steep_loss_is_met_whole_or_not_at_all():
    """The steepest first step is not the best way to spend three GPUs."""
    steep = demand("steep", 0, 10, 6, 6, 6)
    cliff = demand("cliff", 0, 12, 12, 12, 0)
    assert gpus(share([steep, cliff], 3)) == {"steep": 0, "cliff": 3}


def test_a_higher_priority_comes_first_whatever_the_others_lose():
    chat = demand("chat", 1, 0.2, 0.1, 0.0, priority=2)
    batch = demand("batch", 1, 50, 40, 30, 0, priority=1)
    grants = share([batch, chat], 5)
    assert gpus(grants) == {"chat": 3, "batch": 2}
    assert grants["batch"].words == "holds 2 of 4 GPUs wanted; 2 went to chat (priority 2)"
    assert grants["chat"].words == ""


def test_weights_decide_inside_a_tier():
    of = [demand("large", 0, 5, 0, weight=3.0), demand("small", 0, 10, 0)]
    assert gpus(share(of, 1)) == {"large": 1, "small": 0}


def test_what_no_loss_asks_for_yields_to_a_need_in_its_tier():
    holding, needy = demand("holding", 1, 2, 0, 0, 0), demand("needy", 1, 9, 0)
    assert gpus(share([holding, needy], 4)) == {"holding": 2, "needy": 2}
    assert gpus(share([holding, needy], 6)) == {"holding": 4, "needy": 2}


def test_what_is_held_above_yields_only_by_its_own_release():
    holding, needy = demand("holding", 1, 2, 0, 0, 0, priority=1), demand("needy", 1, 9, 0)
    assert gpus(share([holding, needy], 5)) == {"holding": 4, "needy": 1}


def test_what_makes_no_whole_replica_goes_to_those_below():
    lost = np.zeros(5)
    large = Demand(name="large", losses=GpuLosses(minimum_gpus=4, lost_rps=lost, unit_gpus=4), priority=1)
    small = demand("small", 1, 9, 5, 0)
    assert gpus(share([large, small], 7)) == {"large": 4, "small": 3}
    assert gpus(share([large, small], 10)) == {"large": 8, "small": 2}


def test_minimums_that_do_not_fit_are_one_clear_error():
    with pytest.raises(PlanningError, match=r"^gpus: 3 GPUs do not hold the minimums .* \(a 2, b 2\)$"):
        share([demand("b", 2, 0), demand("a", 2, 0)], 3)


def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(PlanningError, match="a is there twice"):
        share([demand("a", 0, 1), demand("a", 0, 1)], 3)


@pytest.mark.parametrize("lost_rps", [[], [1.0, 2.0], [float("nan")], [float("inf"), 0.0]])
def test_losses_that_cannot_be_are_refused(lost_rps):
    with pytest.raises(PlanningError, match="demand"):
        losses(0, *lost_rps)
