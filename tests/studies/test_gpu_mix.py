"""The cheapest mix: equal to trying every one, within the limits, and in words where there is none."""

from dataclasses import replace
from math import isinf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mix_cases import need, problems, supply, tried

from headway.planning import PlanningError
from headway_studies.gpu_mix.mix import InfeasibleError, MixRules, Supply, cheapest, rounded_up
from headway_studies.gpu_mix.needs import PoolNeed, Share


def total(mix, needs, offers, rules):
    """Cost per hour with what is left of what ran."""
    left = sum(
        max(0, count - mix.replicas[pool].get(name, 0))
        * needs[pool].gpus_per_replica[name]
        * offers[name].price_per_gpu_hour
        for pool, counts in rules.running.items()
        for name, count in counts.items()
    )
    return mix.cost_per_hour + rules.switching * left


@settings(max_examples=150, deadline=None)
@given(problems())
def test_as_cheap_as_the_best_of_all(problem):
    best = tried(*problem)
    if isinf(best):
        with pytest.raises(InfeasibleError, match=r"not enough, \d+ would be"):
            cheapest(*problem)
    else:
        assert total(cheapest(*problem), *problem) == pytest.approx(best, rel=1e-5)


@settings(max_examples=60, deadline=None)
@given(problems(), st.floats(1.0, 3.0))
def test_more_load_never_costs_less_and_rounding_is_never_cheaper(problem, growth):
    needs, offers, rules = problem
    offers = {name: replace(offer, max_gpus=None) for name, offer in offers.items()}
    rules = MixRules(max_types=rules.max_types)
    cost = cheapest(needs, offers, rules).cost_per_hour
    more = {pool: grown(each, growth) for pool, each in needs.items()}
    assert cheapest(more, offers, rules).cost_per_hour >= cost - 1e-6
    assert rounded_up(needs, offers).cost_per_hour >= cheapest(needs, offers).cost_per_hour - 1e-6


def grown(each, growth):
    shares = tuple(
        replace(share, replicas={name: growth * n for name, n in share.replicas.items()})
        for share in each.shares
    )
    return replace(each, shares=shares)


def test_the_order_of_pools_and_types_does_not_matter():
    needs = {"prefill": need(a=3.5, b=1.2), "decode": need(a=2.3, b=0.9)}
    turned = {"decode": need(b=0.9, a=2.3), "prefill": need(b=1.2, a=3.5)}
    there = cheapest(needs, supply(a=1.0, b=2.4))
    back = cheapest(turned, supply(b=2.4, a=1.0))
    assert there == back


def test_a_small_replica_fills_what_whole_large_ones_leave():
    mix = cheapest({"p": need(large=2.3, small=9.2)}, supply(large=4.0, small=1.1))
    assert mix.replicas == {"p": {"large": 2, "small": 2}}
    assert mix.cost_per_hour == pytest.approx(10.2)
    assert cheapest({"p": need(large=2.3)}, supply(large=4.0)).cost_per_hour == pytest.approx(12.0)


def test_stock_is_shared_by_the_pools():
    needs = {"prefill": need(a=2.0, b=2.0), "decode": need(a=2.0, b=2.0)}
    offers = {"a": Supply(price_per_gpu_hour=1.0, max_gpus=3), "b": Supply(price_per_gpu_hour=2.0)}
    mix = cheapest(needs, offers)
    assert mix.gpus(needs) == {"a": 3, "b": 1}


def test_requests_that_one_type_alone_can_keep_get_it():
    mix = cheapest({"p": need(narrow=(0.05, ("b",)), a=2.0, b=2.0)}, supply(a=1.0, b=9.0))
    assert mix.replicas["p"] == {"a": 2, "b": 1}


def test_a_few_may_be_late_instead():
    late = Share(requests=10, replicas={"a": 0.1, "b": 0.1}, late=frozenset({"a"}))
    pool = PoolNeed(
        shares=(Share(requests=990, replicas={"a": 1.9, "b": 1.9}), late),
        gpus_per_replica={"a": 1, "b": 1},
        may_miss=10,
    )
    offers = supply(a=1.0, b=9.0)
    assert cheapest({"p": pool}, offers).replicas["p"] == {"a": 2}
    assert "b" in cheapest({"p": replace(pool, may_miss=9.0)}, offers).replicas["p"]
    with pytest.raises(InfeasibleError, match="slo: 9 requests of p may be late even when idle, 10 would"):
        cheapest({"p": replace(pool, may_miss=9.0).only("a")}, offers)


def test_what_runs_is_left_only_for_what_saves_more():
    needs, offers = {"p": need(a=2.0, b=2.0)}, supply(a=1.0, b=0.85)
    running = {"p": {"a": 2}}
    assert cheapest(needs, offers, MixRules(running=running)).replicas["p"] == {"b": 2}
    held = cheapest(needs, offers, MixRules(running=running, switching=0.2))
    assert held.replicas["p"] == {"a": 2}
    assert held.cost_per_hour == pytest.approx(2.0)
    less = {"p": need(a=1.0, b=1.0)}
    assert cheapest(less, offers, MixRules(running=running, switching=0.9)).replicas["p"] == {"a": 1}


def test_the_limits_of_a_pool():
    idle = PoolNeed(shares=(), gpus_per_replica={"a": 1, "b": 1}, min_replicas=2, max_replicas=3)
    assert cheapest({"p": idle}, supply(a=2.0, b=1.0)).replicas == {"p": {"b": 2}}
    busy = replace(need(a=4.5), max_replicas=3)
    with pytest.raises(InfeasibleError, match=r"pools\.p\.max_replicas: 3 are not enough, 5 would be"):
        cheapest({"p": busy}, supply(a=1.0))


def test_the_limit_in_the_way_is_named():
    needs = {"p": need(gpus=2, a=2.5)}
    with pytest.raises(InfeasibleError, match=r"gpu_types\.a\.max_gpus: 4 are not enough, 6 would be$"):
        cheapest(needs, {"a": Supply(price_per_gpu_hour=1.0, max_gpus=4)}, MixRules(max_gpus=6))
    with pytest.raises(InfeasibleError, match=r"planner\.max_gpu_budget: 5 are not enough, 6 would be$"):
        cheapest(needs, supply(a=1.0), MixRules(max_gpus=5))
    apart = PoolNeed(
        shares=(Share(requests=1, replicas={"a": 1.0}), Share(requests=1, replicas={"b": 1.0})),
        gpus_per_replica={"a": 1, "b": 1},
    )
    with pytest.raises(InfeasibleError, match="p: at most 1 GPU types are not enough, 2 would be"):
        cheapest({"p": apart}, supply(a=1.0, b=1.0), MixRules(max_types=1))
    with pytest.raises(InfeasibleError, match="no GPU type can serve 1 requests of p"):
        cheapest({"p": apart.only("a")}, supply(a=1.0, b=1.0))


def test_nothing_to_serve_costs_nothing():
    assert cheapest({}, {}).cost_per_hour == 0
    assert cheapest({"p": PoolNeed(shares=(), gpus_per_replica={"a": 1})}, supply(a=1.0)).replicas == {
        "p": {}
    }


@pytest.mark.parametrize("price", [0.0, -1.0, float("nan"), float("inf")])
def test_prices_are_positive(price):
    with pytest.raises(PlanningError, match="price"):
        Supply(price_per_gpu_hour=price)


@pytest.mark.parametrize("wrong", [{"max_types": 0}, {"switching": 1.0}, {"switching": -0.1}])
def test_rules_have_a_meaning(wrong):
    with pytest.raises(PlanningError):
        MixRules(**wrong)
