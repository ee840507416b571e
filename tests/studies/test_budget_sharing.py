"""Sharing a budget: the same as trying everything, floors before strict priorities, nothing left unused."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning import PlanningError
from headway.planning.sharing import Demand, GpuLosses, Standing, share
from tests.planning.planning_cases import steady

NAMES = "abcd"


def losses(minimum, *lost, held=0, moving=0.0):
    lost_rps = np.array(lost, np.float64)
    return GpuLosses(minimum_gpus=minimum, lost_rps=lost_rps, held_gpus=held, moving=moving)


def demand(name, minimum, *lost, held=0, moving=0.0, **standing):
    return Demand(
        name=name, losses=losses(minimum, *lost, held=held, moving=moving), standing=Standing(**standing)
    )


NONE, ALL, UNBOUNDED = st.just(0), st.just(1.0), st.none()


@st.composite
def demands(draw, floors=NONE, ceilings=UNBOUNDED, lend=ALL):
    """Whole losses and weights, so that sums are exact; a ceiling is so far above what it must hold."""
    found = []
    for name in NAMES[: draw(st.integers(1, 4))]:
        lost = sorted(draw(st.lists(st.integers(0, 12), min_size=1, max_size=6)), reverse=True)
        minimum, floor, above = draw(st.integers(0, 3)), draw(floors), draw(ceilings)
        standing = Standing(
            priority=draw(st.integers(0, 2)),
            weight=draw(st.integers(1, 3)),
            floor_gpus=floor,
            ceiling_gpus=None if above is None else max(minimum, floor) + above,
            lend=draw(lend),
        )
        found.append(Demand(name=name, losses=losses(minimum, *lost), standing=standing))
    return found


settled = demands(
    floors=st.integers(0, 6),
    ceilings=st.none() | st.integers(0, 4),
    lend=st.sampled_from([0.0, 0.5, 1.0]),
)
budgets = st.integers(0, 12)


def least(of):
    return sum(max(one.losses.minimum_gpus, one.standing.floor_gpus) for one in of)


def lost(one, gpus):
    return one.standing.weight * one.losses.lost_rps[gpus - one.losses.minimum_gpus]


def by_tier(of, granted):
    """Each tier's loss, and how far it is from having all the GPUs that it wants; highest first."""
    tiers = sorted({one.standing.priority for one in of}, reverse=True)
    members = [[one for one in of if one.standing.priority == tier] for tier in tiers]
    return [
        (
            sum(lost(one, granted[one.name]) for one in tier),
            sum(one.losses.wanted_gpus - granted[one.name] for one in tier),
        )
        for tier in members
    ]


def bounds(one):
    """The least and the most that it may have, as an operator would say it."""
    wanted, ceiling = one.losses.wanted_gpus, one.standing.ceiling_gpus
    most = wanted if ceiling is None else min(wanted, ceiling)
    return max(one.losses.minimum_gpus, min(most, one.standing.floor_gpus)), most


def taken(one, gpus):
    """GPUs that others can't have: those that it holds, or of its floor the part that is not lent."""
    return max(gpus, one.standing.floor_gpus - int(one.standing.lend * one.standing.floor_gpus))


def best_by_trying(of, budget):
    ranges = [range(low, high + 1) for low, high in map(bounds, of)]
    names = [one.name for one in of]
    possible = (
        dict(zip(names, counts, strict=True))
        for counts in product(*ranges)
        if sum(map(taken, of, counts)) <= budget
    )
    return min(by_tier(of, granted) for granted in possible)


def gpus(grants):
    return {name: grant.gpus for name, grant in grants.items()}


@steady
@given(demands(), budgets)
def test_no_other_way_loses_less(of, spare):
    budget = least(of) + spare
    assert by_tier(of, gpus(share(of, budget))) == best_by_trying(of, budget)


@steady
@given(settled, budgets)
def test_no_other_way_that_keeps_floors_and_ceilings_loses_less(of, spare):
    budget = least(of) + spare
    assert by_tier(of, gpus(share(of, budget))) == best_by_trying(of, budget)


@steady
@given(settled, budgets)
def test_budget_bounds_and_wishes_hold_and_nothing_wanted_stays_unused(of, spare):
    budget = least(of) + spare
    granted = gpus(share(of, budget))
    assert all(bounds(one)[0] <= granted[one.name] <= bounds(one)[1] for one in of)
    assert sum(taken(one, granted[one.name]) for one in of) == min(
        budget, sum(taken(one, bounds(one)[1]) for one in of)
    )


@steady
@given(settled, budgets, st.randoms(use_true_random=False))
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
@given(settled, budgets)
def test_a_grant_accounts_for_what_it_lacks(of, spare):
    for grant in share(of, least(of) + spare).values():
        known = sum(grant.ahead.values()) + sum(grant.kept_free.values()) + grant.above_ceiling
        assert known <= grant.wanted - grant.gpus
        assert bool(grant.words) == (grant.gpus < grant.wanted)


@st.composite
def held(draw):
    """One tier on a budget that holds what each has."""
    of = [replace(one, standing=Standing()) for one in draw(demands())]
    have = [draw(st.integers(0, one.losses.wanted_gpus)) for one in of]
    return [
        replace(one, losses=replace(one.losses, held_gpus=gpus, moving=0.25))
        for one, gpus in zip(of, have, strict=True)
    ]


@steady
@given(held(), budgets)
def test_what_is_held_stays_or_those_that_change_lose_enough_less(of, spare):
    budget = sum(max(one.losses.minimum_gpus, one.losses.held_gpus) for one in of) + spare
    granted = gpus(share(of, budget))
    kept = [
        replace(one, losses=one.losses.between(one.losses.held_gpus, one.losses.wanted_gpus)) for one in of
    ]
    stays = all(granted[one.name] >= one.losses.held_gpus for one in of)
    assert by_tier(of, granted) == best_by_trying(kept if stays else of, budget)
    if not stays:
        stay = gpus(share(kept, budget))
        changed = [one for one in of if granted[one.name] != stay[one.name]]
        before, after = (sum(lost(one, found[one.name]) for one in changed) for found in (stay, granted))
        assert after < 0.75 * before


def test_a_gpu_moves_where_those_that_it_concerns_win_more_than_the_move_costs():
    """Whatever a third one loses at the same time."""
    third = demand("third", 0, 90, 80, held=1)
    for gain, moved in ((1, False), (5, True)):
        has = demand("has", 0, 4, 1, held=1, moving=0.25)
        lacks = demand("lacks", 0, gain + 4, 1, held=0, moving=0.25)
        assert gpus(share([has, lacks, third], 2))["lacks"] == int(moved)


def test_what_is_held_below_is_not_held_against_a_higher_priority():
    below = demand("below", 0, 9, 0, held=1, moving=0.9)
    assert gpus(share([below, demand("above", 0, 1, 0, moving=0.9, priority=1)], 1)) == {
        "above": 1,
        "below": 0,
    }


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
    units = GpuLosses(minimum_gpus=4, lost_rps=lost, unit_gpus=4)
    large = Demand(name="large", losses=units, standing=Standing(priority=1))
    small = demand("small", 1, 9, 5, 0)
    assert gpus(share([large, small], 7)) == {"large": 4, "small": 3}
    assert gpus(share([large, small], 10)) == {"large": 8, "small": 2}


def test_minimums_that_do_not_fit_are_one_clear_error():
    with pytest.raises(PlanningError, match=r"^fleet.gpus: 3 GPUs do not hold the minimums .* \(a 2, b 2\)$"):
        share([demand("b", 2, 0), demand("a", 2, 0)], 3)


def test_a_floor_comes_before_any_priority():
    chat = demand("chat", 1, 9, 9, 9, 9, 0, priority=2)
    batch = demand("batch", 1, 3, 2, 1, 0, floor_gpus=3)
    grants = share([chat, batch], 6)
    assert gpus(grants) == {"chat": 3, "batch": 3}
    assert grants["chat"].words == "holds 3 of 5 GPUs wanted; 2 went to batch (floor)"
    assert grants["batch"].words == "holds 3 of 4 GPUs wanted; 1 went to chat (priority 2)"


@pytest.mark.parametrize(("lend", "others"), [(1.0, 9), (0.5, 7), (0.0, 4)])
def test_of_a_floor_that_is_not_wanted_others_hold_what_is_lent(lend, others):
    quiet = demand("quiet", 1, 0, floor_gpus=6, lend=lend, priority=1)
    grants = share([quiet, demand("busy", 1, *range(12, 0, -1))], 10)
    assert gpus(grants) == {"quiet": 1, "busy": others}
    assert grants["busy"].kept_free == ({} if lend == 1.0 else {"quiet": 9 - others})


def test_what_is_kept_free_and_a_ceiling_are_said():
    quiet = demand("quiet", 1, 0, floor_gpus=3, lend=0.0)
    busy = demand("busy", 1, *range(9, -1, -1), ceiling_gpus=8)
    assert share([quiet, busy], 9)["busy"].words == (
        "holds 6 of 10 GPUs wanted; 2 kept free for quiet, 2 above its ceiling"
    )


def test_floors_and_ceilings_go_by_whole_replicas():
    units = GpuLosses(minimum_gpus=2, lost_rps=np.zeros(9), unit_gpus=2)
    large = Demand(name="large", losses=units, standing=Standing(floor_gpus=5, ceiling_gpus=7, lend=0.0))
    assert gpus(share([large, demand("small", 1, 9, 5, 0, priority=1)], 8)) == {"large": 4, "small": 3}
    assert gpus(share([large, demand("small", 1, 9, priority=1)], 20)) == {"large": 6, "small": 1}


def test_floors_that_do_not_fit_are_one_clear_error():
    of = [demand("b", 2, 0, floor_gpus=1), demand("a", 1, 0, floor_gpus=3)]
    with pytest.raises(PlanningError, match=r"^fleet.gpus: 4 GPUs do not hold the floors .* \(a 3, b 2\)$"):
        share(of, 4)


def test_a_ceiling_below_the_minimum_is_refused():
    with pytest.raises(PlanningError, match=r"^share.ceiling_gpus: a may hold 1, its minimum is 2$"):
        share([demand("a", 2, 0, ceiling_gpus=1)], 4)


@pytest.mark.parametrize("wrong", [{"lend": 1.1}, {"lend": -0.1}, {"floor_gpus": 3, "ceiling_gpus": 2}])
def test_a_standing_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(PlanningError, match=r"^(lend|ceiling_gpus): "):
        Standing(**wrong)


def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(PlanningError, match="a is there twice"):
        share([demand("a", 0, 1), demand("a", 0, 1)], 3)


@pytest.mark.parametrize("lost_rps", [[], [1.0, 2.0], [float("nan")], [float("inf"), 0.0]])
def test_losses_that_cannot_be_are_refused(lost_rps):
    with pytest.raises(PlanningError, match="demand"):
        losses(0, *lost_rps)


def test_what_does_not_serve_is_no_ones():
    """Prefill without decode serves nobody: a deployment gets a replica of each, or none."""
    pair = Demand(
        name="pair",
        losses=GpuLosses(minimum_gpus=0, lost_rps=np.array([9.0, 9.0, 1.0, 0.0]), first_gpus=2),
    )
    other = demand("other", 0, 3, 2)
    assert [pair.losses.whole(gpus) for gpus in range(5)] == [0, 0, 2, 3, 4]
    for gpus, mine, theirs in ((1, 0, 1), (2, 2, 0), (3, 2, 1), (4, 3, 1)):
        grants = share([pair, other], gpus)
        assert (grants["pair"].gpus, grants["other"].gpus) == (mine, theirs)
    (alone,) = share([pair], 1).values()
    assert (alone.gpus, alone.wanted) == (0, 3)
