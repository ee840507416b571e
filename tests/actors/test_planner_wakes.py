"""Pools without replicas: requests that wait for one make a tick due at once. In virtual time."""

import asyncio

import pytest

from actors.collector.interval import Measured
from actors.planning.context import ActorFailure
from actors.planning.wake_watch import LOOK_S, WakeWatch
from headway.planning import Role
from tests.actors.planner_cases import (
    INTERVAL_S,
    Deployment,
    Script,
    ScriptedActors,
    ScriptedPools,
    busy,
    clock,
    settings,
)
from tests.engines.virtual_loop import run

SLEEPS_UNTIL_S = 200.0
WAKE = {
    "connector__kind": "virtual",
    "metrics__source": "prometheus",
    "metrics__url": "http://p",
    "metrics__wake": "sum(waiting)",
}
LEAD_S, START_S = 40.0, 120.0


def idle() -> Measured:
    return busy(requests=0.0, completed=0.0, isl_tokens=float("nan"), load={})


def deployment(**changes: object) -> Deployment:
    """Mixed replicas that may all go, without a request, ready at once."""
    config = settings(
        planner__policy="headway",
        planner__headway__hold_s=0.0,
        planner__headway__lead_s=LEAD_S,
        pools={"mixed": {"min_replicas": 0}},
        **changes,
    )
    pools = ScriptedPools(counts={Role.MIXED: 1}, start_s=START_S)
    return Deployment(config=config, actors=ScriptedActors(collecting=Script(idle)), pools=pools)


def test_a_pool_without_requests_goes_to_none_and_the_first_that_waits_brings_a_replica_at_once():
    async def scenario() -> None:
        planner = deployment()
        async with planner.running():
            await asyncio.sleep(SLEEPS_UNTIL_S + 3.0)
            assert planner.pools.counts == {Role.MIXED: 0}
            asked_s = clock()
            assert planner.loop.held("one", 1) == (pytest.approx(LEAD_S), False)
            await asyncio.sleep(0.1)
            assert planner.pools.counts == {Role.MIXED: 1}
            last = planner.log.records[-1]
            assert last.created_at == pytest.approx(asked_s, abs=0.1)
            await asyncio.sleep(2.0)
            assert planner.status()["pools"]["mixed"]["waiting"] == 1
            # Ordered: what is left of its start.
            assert planner.loop.held("one", 2) == (pytest.approx(LEAD_S - 2.0, abs=0.2), False)
            ticks = len(planner.log.records)
            await asyncio.sleep(INTERVAL_S - 3.0)
            assert len(planner.log.records) == ticks

    run(scenario())


def test_requests_that_wait_keep_the_replica_that_starts_for_them_and_then_it_may_go():
    async def scenario() -> None:
        planner = deployment()
        async with planner.running():
            await asyncio.sleep(SLEEPS_UNTIL_S)
            for _ in range(100):
                planner.loop.held("one", 1)
                await asyncio.sleep(1.0)
                assert planner.pools.counts == {Role.MIXED: 1}, clock()
            await asyncio.sleep(SLEEPS_UNTIL_S)
            assert planner.pools.counts == {Role.MIXED: 0}

    run(scenario())


def test_what_two_gateways_hold_counts_together():
    async def scenario() -> None:
        planner = deployment()
        async with planner.running():
            await asyncio.sleep(SLEEPS_UNTIL_S)
            planner.loop.held("one", 3)
            planner.loop.held("another", 4)
            planner.loop.held("one", 2)
            assert planner.state.held_now(clock()) == 6
            await asyncio.sleep(5.0)
            assert planner.state.held_now(clock()) == 0

    run(scenario())


async def watched(planner: Deployment, seconds: float) -> None:
    """So long with a look at what waits in front of engines of others."""
    watch = asyncio.create_task(WakeWatch(planner.actors, planner.loop).run())
    await asyncio.sleep(seconds)
    watch.cancel()


def test_engines_of_others_are_woken_by_what_waits_at_their_router_between_two_ticks():
    async def scenario() -> None:
        planner = deployment(**WAKE)
        async with planner.running():
            await watched(planner, SLEEPS_UNTIL_S + 3.0)
            assert planner.pools.counts == {Role.MIXED: 0}
            # No look fails it: the router may restart.
            planner.actors.wake.answers += [ActorFailure("no answer"), 0.0]
            planner.actors.wake.usual = 3.0
            asked_s = clock()
            await watched(planner, 3 * LOOK_S + 0.1)
            assert planner.pools.counts[Role.MIXED] > 0
            assert planner.log.records[-1].created_at == pytest.approx(asked_s + 3 * LOOK_S, abs=0.2)
            assert any("3 requests held" in note for note in planner.log.records[-1].notes)

    run(scenario())


def test_nobody_looks_while_every_pool_has_a_replica():
    async def scenario() -> None:
        planner = deployment(**WAKE)
        planner.pools.start_s = 0.0
        async with planner.running():
            await watched(planner, 5 * LOOK_S)
            assert planner.actors.wake.calls == []

    run(scenario())


def test_a_planner_that_comes_back_while_the_engines_sleep_plans_though_their_metrics_are_gone():
    async def scenario() -> None:
        planner = deployment(**WAKE)
        planner.pools.counts[Role.MIXED] = 0
        planner.pools.born.clear()
        planner.actors.readiness.usual = "Prometheus has no series"
        async with planner.running():
            await asyncio.sleep(2 * INTERVAL_S)
            assert planner.status()["planner"]["state"] == "running"
            assert planner.pools.counts == {Role.MIXED: 0}

    run(scenario())
