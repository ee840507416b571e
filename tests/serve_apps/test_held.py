"""Requests that wait for the first replica of a pool: how long, and what the planner hears. Virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.names import TooSlow
from headway.planning import Role
from serve_apps.gateway.backend import NotReady
from serve_apps.held import AT_LEAST_S, TOLD_EVERY_S, HeldRequests
from serve_apps.membership import Membership
from tests.engines.virtual_loop import run

SERVES_IN_S, LONGEST_S, START_WAIT_S = 40.0, 5.0, 30.0


class Planner:
    """Hears of requests; `told` has when and of how many."""

    def __init__(self, answer: float | Exception | None = SERVES_IN_S, *, lacks_gpus: bool = False) -> None:
        self.told: list[tuple[float, int]] = []
        self._answer, self.lacks_gpus = answer, lacks_gpus

    async def hear(self, requests: int) -> tuple[float | None, bool]:
        self.told.append((asyncio.get_running_loop().time(), requests))
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer, self.lacks_gpus


def gateway(planner: Planner, start_wait_s: float = START_WAIT_S) -> tuple[Membership, HeldRequests]:
    """A gateway with a pool that may be empty, and is."""
    pools = {Role.MIXED: Membership()}
    return pools[Role.MIXED], HeldRequests(pools, LONGEST_S, [Role.MIXED], start_wait_s, planner.hear)


def on_virtual_time(scenario: Callable[[], Awaitable[Any]]) -> Any:
    return run(scenario())


def test_the_planner_hears_of_requests_at_once_and_every_second_until_a_replica_is_there():
    planner = Planner()

    async def scenario() -> None:
        pool, held = gateway(planner)
        await asyncio.sleep(0.3)
        waiting = [asyncio.create_task(held.staffed(Role.MIXED)) for _ in range(3)]
        await asyncio.sleep(2.5)
        pool.update([("first", {})])
        await asyncio.gather(*waiting)
        await asyncio.sleep(5.0)
        pool.update([])
        later = asyncio.create_task(held.staffed(Role.MIXED))
        await asyncio.sleep(0.1)
        later.cancel()
        held.close()

    on_virtual_time(scenario)
    begun, later = planner.told[:-1], planner.told[-1]
    assert [requests for _, requests in begun] == [3] * 3
    assert [at_s for at_s, _ in begun] == pytest.approx([0.3 + count * TOLD_EVERY_S for count in range(3)])
    assert later == (pytest.approx(7.8), 1)


@pytest.mark.parametrize("start_wait_s", [0.0, START_WAIT_S])
def test_who_has_waited_as_long_as_it_may_is_told_when_a_replica_should_serve(start_wait_s: float):
    planner = Planner()

    async def scenario() -> float:
        _, held = gateway(planner, start_wait_s)
        with pytest.raises(NotReady, match=r"one is starting$") as refused:
            await held.staffed(Role.MIXED)
        held.close()
        waited_s = asyncio.get_running_loop().time()
        assert waited_s == pytest.approx(max(start_wait_s, AT_LEAST_S))
        # What the planner says each second is when it says it.
        told_s = planner.told[-1][0]
        assert refused.value.retry_after_s == pytest.approx(told_s + SERVES_IN_S - waited_s)
        return waited_s

    on_virtual_time(scenario)


def test_the_state_says_whether_a_replica_starts_or_lacks_gpus_that_others_hold():
    planner = Planner(lacks_gpus=True)

    async def scenario() -> None:
        pool, held = gateway(planner)
        assert held.state == "asleep"
        waiting = asyncio.create_task(held.staffed(Role.MIXED))
        await asyncio.sleep(0.1)
        assert held.state == "waiting"
        planner.lacks_gpus = False
        await asyncio.sleep(TOLD_EVERY_S)
        assert held.state == "starting"
        pool.update([("first", {})])
        await waiting
        assert held.state == "asleep"
        pool.update([])
        planner.lacks_gpus = True
        with pytest.raises(NotReady, match=r"it waits for GPUs that other models hold$"):
            await held.staffed(Role.MIXED)
        held.close()

    on_virtual_time(scenario)


def test_a_replica_starts_on_for_who_was_told_to_come_again():
    async def scenario() -> None:
        _, held = gateway(Planner(), 0.0)
        with pytest.raises(NotReady):
            await held.staffed(Role.MIXED)
        assert held.state == "starting"
        await asyncio.sleep(SERVES_IN_S)
        assert held.state == "asleep"
        held.close()

    on_virtual_time(scenario)


@pytest.mark.parametrize("answer", [None, TooSlow("Planner.held did not answer")])
def test_a_planner_that_does_not_know_or_answer_costs_the_request_nothing(answer: Exception | None):
    async def scenario() -> None:
        pool, held = gateway(Planner(answer))
        waiting = asyncio.create_task(held.staffed(Role.MIXED))
        await asyncio.sleep(START_WAIT_S - 1.0)
        pool.update([("first", {})])
        await waiting
        pool.update([])
        with pytest.raises(NotReady) as refused:
            await held.staffed(Role.MIXED)
        assert refused.value.retry_after_s == 1.0
        held.close()

    on_virtual_time(scenario)


def test_of_a_pool_that_keeps_a_replica_the_planner_hears_nothing():
    planner = Planner()

    async def scenario() -> None:
        held = HeldRequests({Role.MIXED: Membership()}, LONGEST_S, [], START_WAIT_S, planner.hear)
        with pytest.raises(NotReady, match=f"has been running for {LONGEST_S:g} s$"):
            await held.staffed(Role.MIXED)
        assert asyncio.get_running_loop().time() == pytest.approx(LONGEST_S)

    on_virtual_time(scenario)
    assert planner.told == []


def test_who_waits_for_a_deployment_that_is_removed_is_told_at_once():
    async def scenario() -> None:
        _, held = gateway(Planner())
        waiting = asyncio.create_task(held.staffed(Role.MIXED))
        await asyncio.sleep(3.0)
        held.end("rare is no longer served here")
        with pytest.raises(NotReady, match=r"^rare is no longer served here$"):
            await waiting
        assert asyncio.get_running_loop().time() == pytest.approx(3.0)
        held.close()

    on_virtual_time(scenario)


def test_a_pool_that_empties_while_another_is_waited_for_is_waited_for_again():
    async def scenario() -> None:
        pools = {Role.PREFILL: Membership(), Role.DECODE: Membership()}
        held = HeldRequests(pools, LONGEST_S, pools, START_WAIT_S, Planner().hear)
        waiting = asyncio.create_task(held.staffed(*pools))
        for first, second in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            pools[second].update([])
            pools[first].update([("one", {})])
            await asyncio.sleep(1.0)
            assert not waiting.done()
        pools[Role.PREFILL].update([("one", {})])
        await waiting
        held.close()

    on_virtual_time(scenario)
