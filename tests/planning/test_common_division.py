"""One budget of deployments that decide one by one: never above it, and in the end as if divided at once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning.common_budget import Claim, divide
from headway.planning.sharing import GpuLosses, Standing, share
from tests.planning.planning_cases import steady

NAMES = "abcd"
BUDGET = 12


def losses(minimum, *lost):
    return GpuLosses(minimum_gpus=minimum, lost_rps=np.array(lost, np.float64))


def claim(name, holds, stated=None, minimum=0, **standing):
    """Without `stated` losses it has a minimum only."""
    own = Standing(**standing)
    minimum = minimum if stated is None else stated.minimum_gpus
    return Claim(name=name, standing=own, holds=holds, minimum_gpus=minimum, losses=stated)


@st.composite
def stated(draw):
    """Losses with a minimum that four of them fit into; some are idle, and of others requests wait."""
    lost = sorted(draw(st.lists(st.integers(0, 12), min_size=1, max_size=9)), reverse=True)
    waiting, idle = draw(st.sampled_from([(0.0, False), (0.0, True), (3.0, False)]))
    return replace(losses(draw(st.integers(0, 2)), *lost), waiting=waiting, idle=idle)


@st.composite
def fleets(draw):
    """Deployments with what they hold: no more than there is, and no less than their minimums."""
    found, left = {}, BUDGET - 8
    for name in NAMES[: draw(st.integers(2, 4))]:
        own = draw(stated())
        holds = own.minimum_gpus + draw(st.integers(0, left))
        left -= holds - own.minimum_gpus
        standing = Standing(
            priority=draw(st.integers(0, 2)),
            floor_gpus=draw(st.integers(0, 3)),
            lend=draw(st.sampled_from([0.0, 1.0])),
        )
        losses_now = own if draw(st.booleans()) else None
        found[name] = Claim(
            name=name, standing=standing, holds=holds, minimum_gpus=own.minimum_gpus, losses=losses_now
        )
    return found


def held(fleet):
    return sum(each.holds for each in fleet.values())


def decided(fleet, name, own, gpus=BUDGET):
    """The fleet after a deployment has stated its losses and taken all that it may."""
    asking = {**fleet, name: replace(fleet[name], losses=own, minimum_gpus=own.minimum_gpus)}
    grant = divide(asking.values(), gpus).grant(name)
    if grant.gpus < own.minimum_gpus:
        return asking
    return {**asking, name: replace(asking[name], holds=grant.gpus)}


@steady
@given(fleets(), st.lists(st.tuples(st.sampled_from(NAMES), stated()), max_size=20))
def test_the_sum_never_rises_above_the_budget_whoever_decides_when(fleet, turns):
    for name, own in turns:
        if name in fleet:
            fleet = decided(fleet, name, own)
            assert held(fleet) <= BUDGET


@steady
@given(fleets(), st.integers(8, BUDGET - 1))
def test_a_lower_budget_is_kept_as_soon_as_all_have_decided(fleet, lower):
    fleet = {name: replace(each, standing=Standing()) for name, each in fleet.items()}
    for name, each in fleet.items():
        before = held(fleet)
        fleet = decided(fleet, name, each.demand.losses, lower)
        assert held(fleet) <= max(lower, before)
    assert held(fleet) <= lower


@steady
@given(fleets(), st.randoms(use_true_random=False))
def test_those_that_go_on_wanting_the_same_come_to_hold_what_is_due_to_them(fleet, random):
    wants = {name: each.demand.losses for name, each in fleet.items()}
    for _ in range(4):
        for name in random.sample(sorted(fleet), len(fleet)):
            fleet = decided(fleet, name, wants[name])
    division = divide(fleet.values(), BUDGET)
    assert not division.over
    assert {name: each.holds for name, each in fleet.items()} == {
        name: grant.gpus for name, grant in share((each.demand for each in fleet.values()), BUDGET).items()
    }


def test_a_higher_priority_waits_for_the_holder_and_says_so():
    batch = claim("batch", 8, losses(1, *range(9, -1, -1)))
    chat = claim("chat", 2, losses(1, *range(7, -1, -1)), priority=1)
    division = divide([batch, chat], 10)
    grant = division.grant("chat")
    assert (grant.gpus, division.waits("chat"), division.over) == (2, 6, {"batch": 6})
    assert grant.words == "holds 2 of 8 GPUs wanted; 6 still held by batch"
    fleet = decided({"batch": batch, "chat": chat}, "batch", batch.losses, 10)
    assert fleet["batch"].holds == 2
    assert decided(fleet, "chat", chat.losses, 10)["chat"].holds == 8


@pytest.mark.parametrize("priority", [0, 1])
def test_an_idle_deployment_yields_to_requests_that_wait_and_takes_nothing_back(priority):
    quiet = replace(losses(0, 3.0, 0.0), idle=True)
    idle = claim("idle", 1, quiet, priority=priority)
    asleep = claim("asleep", 0, replace(losses(0, 0.1, 0.0), waiting=1.0))
    division = divide([idle, asleep], 1)
    assert division.over == {"idle": 1}
    assert division.grant("asleep").words == "holds 0 of 1 GPUs wanted; 1 still held by idle"
    fleet = decided({"idle": idle, "asleep": asleep}, "idle", quiet, 1)
    fleet = decided(fleet, "asleep", asleep.losses, 1)
    assert {name: each.holds for name, each in fleet.items()} == {"idle": 0, "asleep": 1}
    # Served, and idle as well by now.
    fleet["asleep"] = replace(fleet["asleep"], losses=replace(losses(0, 0.1, 0.0), idle=True))
    grant = divide(fleet.values(), 1).grant("idle")
    where = f"asleep ({'in use' if priority else 'priority 0'})"
    assert (grant.gpus, grant.wanted, grant.ahead) == (0, 1, {where: 1})
    assert divide(fleet.values(), 2).grant("idle").gpus == 1
    busy = claim("idle", 0, losses(0, 3.0, 0.0), priority=priority)
    assert divide([busy, fleet["asleep"]], 1).due["idle"].gpus == 1


@pytest.mark.parametrize(("floor", "given"), [(0, 2), (1, 0)])
def test_all_that_wait_for_a_replica_get_what_idle_ones_hold_above_their_floor(floor, given):
    idle = [claim(name, 1, replace(losses(0, 5.0, 0.0), idle=True), floor_gpus=floor) for name in "ab"]
    division = divide([*idle, claim("c", 0, replace(losses(0, 0.1, 0.0, 0.0), waiting=9.0))], 2)
    assert division.due["c"].gpus == given
    assert sum(each.gpus for each in division.due.values()) == 2


def test_while_one_yields_no_other_has_to():
    idle = replace(losses(0, 1.0, 0.0), idle=True)
    yields = replace(claim("z", 1, idle), keeps=0)
    asleep = claim("asleep", 0, replace(losses(0, 0.1, 0.0), waiting=1.0))
    assert divide([claim("a", 1, idle), yields, asleep], 2).over == {"z": 1}


def test_what_makes_no_whole_replica_is_not_given():
    wide = GpuLosses(minimum_gpus=0, lost_rps=np.array([1.0, 1.0, 0.0]), unit_gpus=2, waiting=9.0)
    one = claim("one", 1, replace(losses(0, 5.0, 0.0), idle=True))
    assert divide([one, claim("wide", 0, wide)], 1).due["one"].gpus == 1
    two = claim("two", 1, replace(losses(0, 5.0, 0.0), idle=True))
    assert divide([one, two, claim("wide", 0, wide)], 2).due["wide"].gpus == 2


def test_what_idle_ones_give_up_one_by_one_is_kept_for_whom_it_makes_whole():
    idle = replace(losses(0, 5.0, 0.0), idle=True)
    wide = GpuLosses(minimum_gpus=0, lost_rps=np.array([1.0, 1.0, 0.0]), first_gpus=2, waiting=9.0)
    fleet = {"a": claim("a", 1, idle), "b": claim("b", 1, idle), "wide": claim("wide", 0, wide)}
    for name in ("a", "wide", "a", "b", "wide"):
        fleet = decided(fleet, name, fleet[name].losses, 2)
    assert {name: each.holds for name, each in fleet.items()} == {"a": 0, "b": 0, "wide": 2}


def test_what_has_stated_nothing_keeps_what_it_holds_from_its_equals():
    silent, busy = claim("silent", 6, minimum=1), claim("busy", 2, losses(1, *range(20, 0, -1)))
    division = divide([silent, busy], 10)
    assert division.grant("busy").gpus == 4
    assert not division.over
    assert division.waits("busy") == 0


def test_a_floor_that_is_not_lent_and_a_minimum_are_nobody_elses():
    quiet = claim("quiet", 0, losses(0, 0.0), floor_gpus=3, lend=0.0)
    new, busy = claim("new", 0, minimum=2), claim("busy", 1, losses(1, *range(20, 0, -1)))
    grant = divide([quiet, new, busy], 10).grant("busy")
    assert grant.gpus == 5
    assert grant.kept_free == {"quiet": 3}


def test_less_than_a_minimum_is_granted_where_no_more_is_free():
    batch, new = claim("batch", 9, losses(1, *range(8, -1, -1))), claim("new", 0, losses(4, 3.0, 0.0))
    assert divide([batch, new], 10).grant("new").gpus == 1


def test_what_cannot_be_divided_is_kept_and_the_grant_says_why():
    one, two = claim("one", 4, losses(1, *range(9, -1, -1)), floor_gpus=6), claim("two", 5, minimum=5)
    grant = divide([one, two], 10).grant("one")
    assert grant.gpus == 4
    assert "10 GPUs do not hold the floors of all deployments (one 6, two 5)" in grant.words


@pytest.mark.parametrize("unit", [2, 4])
def test_grants_are_whole_replicas(unit):
    own = GpuLosses(minimum_gpus=unit, lost_rps=np.array([5.0] * unit + [4.0] * unit + [0.0]), unit_gpus=unit)
    assert (
        divide([claim("one", unit, own), claim("two", 2 * unit - 1, minimum=1)], 4 * unit).grant("one").gpus
        == 2 * unit
    )
