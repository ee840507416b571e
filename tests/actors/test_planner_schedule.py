"""Pools whose bounds follow a schedule, live: in virtual time, which begins on Monday, 13:46:40 UTC."""

import asyncio
from collections.abc import Mapping

import pytest

from headway.config import ConfigError
from headway.planning import Role
from headway.planning.status_text import facts
from tests.actors.planner_cases import EPOCH, INTERVAL_S, Deployment, ScriptedPools, clock, settings
from tests.engines.virtual_loop import run

START_S = 40.0
OPENS_S, CLOSES_S = 200.0, 500.0
WINDOW = {"days": ["mon"], "from": "14:50", "to": "14:55", "min_replicas": 4, "max_replicas": 8}
"""By the clocks of Berlin, of 1970."""


def deployment(window: Mapping[str, object] = WINDOW, policy: str = "reference") -> Deployment:
    config = settings(
        planner__policy=policy,
        planner__headway__lead_s=START_S,
        planner__time_zone="Europe/Berlin",
        planner__static__prefill=1,
        planner__static__decode=1,
        pools={"decode": {"max_replicas": 3, "schedule": [window]}},
    )
    return Deployment(config=config, pools=ScriptedPools(start_s=START_S))


async def until(at_s: float) -> None:
    await asyncio.sleep(EPOCH + at_s - clock())


async def ready(planner: Deployment) -> int:
    return (await planner.pools.state())[Role.DECODE].ready


@pytest.mark.parametrize("policy", ["reference", "headway", "static"])
def test_replicas_serve_when_their_window_begins_and_no_earlier_than_they_have_to(policy: str) -> None:
    async def scenario() -> None:
        planner = deployment(policy=policy)
        async with planner.running():
            await until(OPENS_S - START_S - INTERVAL_S - 1.0)
            assert planner.pools.counts[Role.DECODE] < 4
            await until(OPENS_S)
            assert await ready(planner) == 4
            last = planner.log.records[-1]
            assert last.summary.endswith("decode min 4 by schedule, from 14:50.")
            assert last.reasons["schedule"] == {"decode": "min 4 by schedule, from 14:50"}
            await until(CLOSES_S - 1.0)
            assert await ready(planner) == 4
            await until(CLOSES_S + INTERVAL_S)
            # The pool's own maximum.
            assert planner.pools.counts[Role.DECODE] <= 3

    run(scenario())


def test_the_status_shows_the_pools_own_bounds_and_those_of_the_window() -> None:
    async def scenario() -> None:
        planner = deployment()
        async with planner.running():
            await until(OPENS_S + 1.0)
            planner.loop.update_settings({"pools.decode.min_replicas": 2})
            await until(OPENS_S + 3 * INTERVAL_S)
            status = planner.loop.status()
            assert await ready(planner) == 4
            pool = status.pools[Role.DECODE]
            assert (pool.min_replicas, pool.max_replicas) == (2, 3)
            assert pool.schedule == "min 4 and max 8 by schedule, from 14:50"
            (limits,) = [fact.text for fact in facts(status, clock()) if fact.name == "Limits"]
            assert f"decode 2 to 3 replicas of 1 GPU ({pool.schedule})" in limits
            await until(CLOSES_S + 3 * INTERVAL_S)
            assert planner.loop.status().pools[Role.DECODE].schedule == ""
            assert planner.pools.counts[Role.DECODE] in (2, 3)

    run(scenario())


def test_own_bounds_that_leave_a_window_no_count_are_refused() -> None:
    async def scenario() -> None:
        planner = deployment({"max_replicas": 2})
        async with planner.running():
            await until(1.0)
            with pytest.raises(
                ConfigError, match=r"pools.decode: schedule.0: min_replicas 3 is above max_rep"
            ):
                planner.loop.update_settings({"pools.decode.min_replicas": 3})

    run(scenario())


def test_a_planner_that_comes_back_in_a_window_asserts_its_counts() -> None:
    async def scenario() -> None:
        planner = deployment()
        await planner.run_for(OPENS_S + 5.0)
        calls = len(planner.pools.calls)
        again = planner.again()
        await again.run_for(2.0)
        assert [targets[Role.DECODE] for _, targets in again.pools.calls[calls:]] == [4]

    run(scenario())
