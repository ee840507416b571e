"""Deployments in lockstep on one budget: alone when it is ample, by priority when it is not."""

from dataclasses import replace
from datetime import UTC

import numpy as np
import pytest

from headway.config.engine import PoolSettings
from headway.engine import EngineRules
from headway.planning import PlanningError, PolicySettings, PoolLimits, Role
from headway.planning.hindsight.policy import make_headway
from headway.planning.schedule import Schedule as Windows
from headway.planning.sharing import Standing
from headway.planning.sleeping import Engine
from headway.simulation.deployments import SimulatedDeployment, _SharedRuns, simulate_fleet
from headway.simulation.scenario import Scenario, StartUp
from headway.simulation.simulate import simulate
from tests.simulation.worlds import SLO, ArrayTrace, Schedule, roofline_profile

PROFILE = roofline_profile()
POOLS = {role: PoolLimits(max_replicas=20) for role in (Role.PREFILL, Role.DECODE)}
RULES = EngineRules()


def deployment(
    name,
    priority=0,
    *,
    rate=30.0,
    duration_s=900.0,
    seed=1,
    interval_s=30.0,
    initial=2,
    arrival_s=None,
    pools=POOLS,
):
    rng = np.random.default_rng(seed)
    if arrival_s is None:
        arrival_s = np.sort(rng.uniform(0.0, duration_s, round(rate * duration_s)))
    trace = ArrayTrace(
        arrival_s=arrival_s,
        input_tokens=np.full(len(arrival_s), 2000),
        output_tokens=np.full(len(arrival_s), 60),
    )
    settings = PolicySettings(slo=SLO, limits=pools, interval_s=interval_s, engine=RULES)
    scenario = Scenario(
        profile=PROFILE,
        slo=SLO,
        pools=pools,
        initial=dict.fromkeys(pools, initial),
        engine=RULES,
        start_up=StartUp(delay_s=30.0),
    )
    policy = make_headway(settings, PROFILE)
    return SimulatedDeployment(
        name=name, scenario=scenario, trace=trace, policy=policy, standing=Standing(priority=priority)
    )


def asked(results):
    """GPUs that all targets together ask for, decision by decision."""
    rows = [[sum(one.targets.values()) for one in result.intervals] for result in results.values()]
    longest = max(map(len, rows))
    return np.sum([np.pad(row, (0, longest - len(row))) for row in rows], axis=0)


@pytest.fixture(scope="module")
def tight():
    """Two alike that want five to nine GPUs each, on ten; the one that comes first ends first."""
    first = deployment("first", priority=2, duration_s=600.0, initial=4)
    return simulate_fleet([first, deployment("second", priority=1, seed=2, initial=4)], 10)


def test_with_an_ample_budget_each_is_as_if_alone():
    one, other = deployment("one", duration_s=300.0), deployment("other", duration_s=300.0, seed=2, rate=10.0)
    results = simulate_fleet([one, other], 100)
    for each in (one, other):
        alone = simulate(each.scenario, each.trace, each.policy)
        shared = results[each.name]
        assert [row.targets for row in shared.intervals] == [row.targets for row in alone.intervals]
        assert shared.attainment == alone.attainment
        assert shared.gpu_hours == alone.gpu_hours


def test_the_budget_holds_at_every_decision(tight):
    assert asked(tight).max() == 10


def test_the_higher_priority_is_served(tight):
    assert tight["first"].attainment > 0.95
    assert tight["second"].attainment < 0.9


def test_what_one_does_not_need_any_more_goes_to_the_other(tight):
    second = tight["second"].intervals
    during = [sum(row.targets.values()) for row in second if 300.0 < row.end_s <= 600.0]
    after = [sum(row.targets.values()) for row in second if row.end_s > 700.0 and row.targets]
    assert max(during) < min(after)
    assert any("went to first (priority 2)" in row.reasons["summary"] for row in second if row.targets)


def test_the_order_of_deployments_does_not_matter(tight):
    again = simulate_fleet(
        [
            deployment("second", priority=1, seed=2, initial=4),
            deployment("first", priority=2, duration_s=600.0, initial=4),
        ],
        10,
    )
    assert {name: again[name].report().document() for name in tight} == {
        n: one.report().document() for n, one in tight.items()
    }


def test_first_fleets_are_cut_to_the_budget_in_proportion():
    crowd = [deployment("large", initial=9, duration_s=60.0), deployment("small", initial=3, duration_s=60.0)]
    results = simulate_fleet(crowd, 12)
    assert [sum(pool.desired[0] for pool in results[one.name].replicas.values()) for one in crowd] == [9, 3]


def test_minimums_beyond_the_budget_are_refused():
    with pytest.raises(PlanningError, match=r"3 GPUs do not hold .* \(one 2, other 2\)"):
        simulate_fleet([deployment("one", duration_s=60.0), deployment("other", duration_s=60.0)], 3)


@pytest.mark.parametrize(("higher", "ceiling", "kept"), [("one", None, 6), ("other", None, 6), ("one", 4, 4)])
def test_minimums_by_schedule_are_kept_by_priority_as_far_as_budget_and_ceiling_go(higher, ceiling, kept):
    window = {"from": "00:00", "to": "24:00", "min_replicas": 6}
    pool = PoolSettings(min_replicas=1, max_replicas=20, schedule=[window])
    limits = {Role.MIXED: PoolLimits(min_replicas=1, max_replicas=20)}
    both = [
        deployment(name, name == higher, rate=1.0, duration_s=200.0, pools=limits)
        for name in ("one", "other")
    ]
    by_time = Windows(pools={Role.MIXED: (pool, limits[Role.MIXED])}, zone=UTC, interval_s=30.0, start_s=30.0)
    results = simulate_fleet(
        [
            replace(
                each,
                scenario=replace(each.scenario, schedule=by_time),
                standing=replace(each.standing, ceiling_gpus=ceiling if each.name == higher else None),
            )
            for each in both
        ],
        8,
    )
    for name in ("one", "other"):
        _, *later = (row for row in results[name].intervals if row.targets)
        assert {row.targets["mixed"] for row in later} == {kept if name == higher else 8 - kept}
    assert asked(results).max() == 8


def test_intervals_that_differ_are_refused():
    slower = replace(deployment("slower", duration_s=60.0, interval_s=60.0), standing=Standing(priority=1))
    with pytest.raises(PlanningError, match="need the same"):
        simulate_fleet([deployment("one", duration_s=60.0), slower], 20)


MAY_SLEEP = {Role.MIXED: PoolLimits(min_replicas=0, max_replicas=4)}


def sleeper(*arrivals_s, priority=0):
    return deployment("rare", priority, arrival_s=np.array(arrivals_s), pools=MAY_SLEEP, initial=0)


def targets_of(result):
    return [(row.end_s, row.targets["mixed"]) for row in result.intervals if row.targets]


@pytest.mark.parametrize("budget", [None, 20])
def test_a_request_wakes_a_deployment_before_the_next_tick(budget):
    busy = deployment("busy", duration_s=300.0, rate=5.0)
    result = simulate_fleet([sleeper(100.0), busy], budget)
    assert [count for end_s, count in targets_of(result["rare"]) if end_s <= 90.0] == [0, 0, 0]
    assert (100.0, 1) in targets_of(result["rare"])
    assert result["rare"].tally.requests == 1
    if budget is not None:
        assert [row.end_s for row in result["busy"].intervals[:4]] == [30.0, 60.0, 90.0, 120.0]
        assert (120.0, 1) in targets_of(result["rare"])


def test_a_wake_takes_what_is_free_and_a_higher_priority_the_rest_at_the_tick():
    busy = deployment("busy", duration_s=300.0, rate=60.0, initial=4)
    result = simulate_fleet([sleeper(100.0, priority=1), busy], 8)
    assert sum(result["busy"].intervals[2].targets.values()) == 8
    assert (100.0, 0) in targets_of(result["rare"])
    assert (120.0, 1) in targets_of(result["rare"])


def on_shared_gpus(gpus, part):
    """Two of so many GPUs, one of which sleeps while the other is asked; and what it kept for sleep."""
    pools = {Role.MIXED: PoolLimits(min_replicas=0, max_replicas=1, gpus_per_replica=gpus, sleepers=1)}
    both = []
    for name, arrivals_s in (("a", (100.0, 700.0)), ("b", (400.0, 1000.0))):
        one = deployment(name, arrival_s=np.array(arrivals_s), pools=pools, initial=0)
        settings = replace(one.policy.settings, sleeping={Role.MIXED: Engine(gpus * part, 0.0)})
        both.append(replace(one, policy=replace(one.policy, settings=settings)))
    results = simulate_fleet(both, gpus)
    return results, {
        name: {row.reasons["grant"]["sleepers"]["mixed"] for row in each.intervals if row.targets}
        for name, each in results.items()
    }


@pytest.mark.parametrize("gpus", [2, 4])
def test_engines_of_several_gpus_sleep_on_those_of_each_other(gpus):
    results, kept = on_shared_gpus(gpus, 0.5)
    assert kept == {"a": {1}, "b": {1}}
    assert [each.tally.completed for each in results.values()] == [2, 2]
    # With all of the GPUs for each that sleeps, there is one of the two.
    _, kept = on_shared_gpus(gpus, 1.0)
    assert all(0 in counts for counts in kept.values())


def test_only_headway_shares_a_budget():
    other = replace(
        deployment("other", duration_s=60.0), policy=Schedule([dict.fromkeys(POOLS, 1)], interval_s=30.0)
    )
    with pytest.raises(PlanningError, match="only headway shares a budget, and other has another"):
        simulate_fleet([other], 20)


def on_nodes(gpus_per_node, step=1):
    """Groups of 4 GPUs that come first, and replicas of one; more is wanted of both than there is."""
    groups = {Role.MIXED: PoolLimits(max_replicas=5, gpus_per_replica=4)}
    ones = {Role.MIXED: PoolLimits(max_replicas=20)}
    both = [
        deployment("groups", priority=1, rate=16.0, duration_s=300.0, initial=1, pools=groups),
        deployment("ones", rate=60.0, duration_s=300.0, initial=4, seed=2, pools=ones),
    ]
    sized = [replace(one, scenario=replace(one.scenario, gpus_per_node=gpus_per_node)) for one in both]
    return simulate_fleet(sized[::step], 21)


def most_and_words(results, name):
    rows = [row for row in results[name].intervals if row.targets and row.end_s <= 300.0]
    return max(row.targets[Role.MIXED] for row in rows), " ".join(row.reasons["summary"] for row in rows)


def test_a_group_that_has_room_on_no_node_is_not_granted():
    whole, fives = on_nodes(21), on_nodes(5)
    assert most_and_words(whole, "groups")[0] == 5
    most, words = most_and_words(fives, "groups")
    # The others have what it cannot use.
    assert most < 5
    assert "4 GPUs on one node needed, most free is" in words
    assert most_and_words(fives, "ones")[0] > most_and_words(whole, "ones")[0]
    assert fives["groups"].attainment < whole["groups"].attainment
    assert max(asked(whole).max(), asked(fives).max()) <= 21


def test_nodes_that_hold_no_replica_are_refused():
    with pytest.raises(PlanningError, match="nodes of 3 GPUs hold no replica of groups, which needs 4"):
        on_nodes(3)


def test_nodes_are_filled_alike_whatever_the_order_of_deployments():
    first, again = on_nodes(8), on_nodes(8, step=-1)
    assert {name: again[name].report().document() for name in first} == {
        name: one.report().document() for name, one in first.items()
    }


@pytest.mark.parametrize(("at_once", "ready_after_s"), [(None, [30.0] * 4), (2, [30.0, 30.0, 60.0, 60.0])])
def test_models_that_load_together_share_the_bandwidth(at_once, ready_after_s):
    one = deployment("one", rate=1.0, duration_s=300.0, initial=1)
    grown = Schedule([dict.fromkeys(POOLS, 1), dict.fromkeys(POOLS, 3)], interval_s=30.0)
    scenario = replace(one.scenario, start_up=StartUp(delay_s=30.0, at_once=at_once))
    replicas = simulate(scenario, one.trace, grown).replicas.values()
    ready_s = sorted(
        at_s
        for each in replicas
        for at_s, before, now in zip(each.time_s[1:], each.ready, each.ready[1:], strict=False)
        for _ in range(now - before)
    )
    ordered_s = min(
        at_s for each in replicas for at_s, starts in zip(each.time_s, each.starting, strict=True) if starts
    )
    assert [at_s - ordered_s for at_s in ready_s] == ready_after_s


def test_all_deployments_of_a_budget_load_by_one_bandwidth():
    both = [
        replace(one, scenario=replace(one.scenario, start_up=StartUp(delay_s=30.0, at_once=at_once)))
        for one, at_once in ((deployment("one"), 4), (deployment("other"), 2))
    ]
    first, second = (run.fleet.loads for run in _SharedRuns(both, 10, np.inf).runs.values())
    assert first is second
    assert [first.ready_s(0.0, 10.0) for _ in range(3)] == [10.0, 10.0, 20.0]
