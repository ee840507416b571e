"""`planner.max_step`: no decision of any policy changes a pool by more, but for limits and budget."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import load_config
from headway.planning import Decision, PoolLimits, PoolState, Role
from headway.planning.deciding import Bounds, check_decision, in_steps
from headway_cli.job import Job, execute
from tests.actors.planner_cases import Deployment, settings
from tests.engines.virtual_loop import run as in_virtual_time

PREFILL, DECODE = Role.PREFILL, Role.DECODE
LIMITS = {PREFILL: PoolLimits(max_replicas=20), DECODE: PoolLimits(max_replicas=20)}
Counts = tuple[int, int]


def stepped(
    desired: Counts, wished: Counts, step: int | None, budget: int | None = None, **more: Any
) -> Decision:
    limits = more.pop("limits", LIMITS)
    pools = {
        role: PoolState(desired=count, starting=0, ready=count, draining=0)
        for role, count in zip(LIMITS, desired, strict=True)
    }
    given: dict[str, Any] = {"reasons": {}, **more}
    decision = Decision(targets=dict(zip(LIMITS, wished, strict=True)), next_state=None, **given)
    return in_steps(decision, pools, Bounds(limits=limits, max_gpu_budget=budget, max_step=step))


def counts(decision: Decision) -> tuple[int, ...]:
    return tuple(decision.targets.values())


def test_up_and_down() -> None:
    assert counts(stepped((4, 9), (10, 1), 2)) == (6, 7)
    assert counts(stepped((4, 9), (5, 8), 2)) == (5, 8)


def test_without_a_step_and_within_one_the_decision_is_the_same() -> None:
    free = stepped((4, 9), (20, 1), None, reasons={"summary": "more."})
    assert (counts(free), free.reasons) == ((20, 1), {"summary": "more."})
    assert stepped((4, 9), (6, 7), 2, reasons={"summary": "more."}).reasons == {"summary": "more."}


def test_the_reasons_say_where_it_cut_and_what_was_wished() -> None:
    reasons = stepped((4, 9), (10, 9), 2, reasons={"summary": "Load.", "limits": ["gpu_budget"]}).reasons
    assert reasons["summary"] == "Load; in steps of 2: prefill 4 → 6."
    assert reasons["limits"] == ["gpu_budget", "prefill: max_step"]
    assert reasons["targets"] == {"prefill": 6, "decode": 9}
    assert reasons["wished"] == {"prefill": 10, "decode": 9}
    assert stepped((4, 9), (10, 9), 2).reasons["summary"] == "in steps of 2: prefill 4 → 6."


def test_what_falls_by_steps_leaves_less_of_the_budget_to_what_rises() -> None:
    limits = {PREFILL: PoolLimits(), DECODE: PoolLimits(gpus_per_replica=4)}
    assert counts(stepped((12, 1), (4, 3), 2, budget=16, limits=limits)) == (10, 1)
    assert counts(stepped((12, 1), (4, 3), 4, budget=16, limits=limits)) == (8, 2)


def test_a_budget_and_limits_that_fell_come_before_steps() -> None:
    assert counts(stepped((9, 9), (3, 4), 1, budget=7)) == (3, 4)
    low = {PREFILL: PoolLimits(max_replicas=3), DECODE: PoolLimits(min_replicas=12)}
    assert counts(stepped((9, 9), (3, 12), 1, limits=low)) == (3, 12)


@given(*[st.tuples(st.integers(0, 20), st.integers(0, 20))] * 2, st.integers(1, 5), st.integers(0, 60))
def test_a_cut_decision_can_be_carried_out_and_lies_between(
    desired: Counts, wished: Counts, step: int, spare: int
) -> None:
    limits = {
        role: PoolLimits(min_replicas=0, max_replicas=20, gpus_per_replica=gpus)
        for role, gpus in ((PREFILL, 1), (DECODE, 3))
    }
    budget = wished[0] + 3 * wished[1] + spare
    decision = stepped(desired, wished, step, budget, limits=limits)
    check_decision("any", decision, limits, budget)
    for before, target, found in zip(desired, wished, counts(decision), strict=True):
        assert min(before, target) <= found <= max(before, target)
        assert found - before <= step
    if desired[0] + 3 * desired[1] <= budget:
        assert all(before - found <= step for before, found in zip(desired, counts(decision), strict=True))


SUDDEN = "steady:rate_rps=60,duration_s=300,input_tokens=2000,seed=4"
NINE = {"planner.static.prefill": 9, "planner.static.decode": 9}


@pytest.mark.parametrize("policy", ["headway", "threshold", "static"])
def test_every_policy_is_held_to_it_in_a_simulation(policy: str) -> None:
    start = {"prefill": 1, "decode": 1}
    pace = {"planner.adjustment_interval_s": 30, "planner.threshold.interval_s": 15}
    keys = {"planner.policy": policy, "simulation.initial": start, **pace, **NINE}
    free, held = (
        [
            interval.targets
            for interval in execute(Job(trace=SUDDEN, config=load_config(None, {**keys, **more}))).intervals
            if interval.targets
        ]
        for more in ({}, {"planner.max_step": 2})
    )

    def most(targets: list[Any]) -> int:
        steps = pairwise([start, *targets])
        return max(abs(later[role] - earlier[role]) for earlier, later in steps for role in later)

    assert most(free) > 2
    assert most(held) == 2
    assert policy != "static" or held[-1] == {"prefill": 9, "decode": 9}


def test_the_live_planner_goes_in_steps_and_takes_another_one_while_running() -> None:
    deployment = Deployment(config=settings(planner__policy="static", planner__max_step=2, **NINE))

    async def story() -> None:
        async with deployment.running():
            await asyncio.sleep(25.0)
            deployment.loop.update_settings({"planner.max_step": None})
            await asyncio.sleep(10.0)

    in_virtual_time(story())
    assert [record["targets"]["decode"] for record in deployment.records()] == [3, 5, 9]
    assert deployment.records()[0]["summary"].endswith("; in steps of 2: prefill 1 → 3, decode 1 → 3.")
