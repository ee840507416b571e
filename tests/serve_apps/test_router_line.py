"""A gateway's line to the router and the router's lines to gateways, over real sockets of loopback."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from actors.router import GatewayConnections
from actors.routing.messages import BatchAnswer, Submit
from actors.wire import Address
from headway.planning import Role
from serve_apps.membership import Membership
from serve_apps.routed.client import RouterClient, RouterConnection, Unreachable
from serve_apps.routed.table import WaitLimits
from tests.actors.router_cases import asked, batch, hello, ready, sessions
from tests.patience import PATIENCE_S, eventually
from tests.scenarios import scenarios


class World:
    """A router, and the links and clients of gateways to it."""

    def __init__(self) -> None:
        self.clock = asyncio.get_running_loop().time
        self.closing: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.restart()

    def restart(self) -> None:
        self.sessions, self.handled = sessions(), 0
        self.lines = GatewayConnections(self.sessions, lambda: "127.0.0.1", self.clock, self._handle)
        self.closing.append(self.lines.close)

    def _handle(self) -> None:
        self.handled += 1

    def link(self) -> RouterConnection:
        return RouterConnection(self.address)

    async def address(self) -> Address:
        return await self.lines.address()

    def client(self, *replicas: str) -> RouterClient:
        pool = Membership()
        pool.update((replica, {}) for replica in replicas)

        limits = WaitLimits(call_timeout_s=PATIENCE_S)
        made = RouterClient(self.link(), {Role.MIXED: pool}, lambda _: None, limits)
        self.closing.append(made.close)
        return made


def play(scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def played() -> None:
        world = World()
        try:
            await asyncio.wait_for(scenario(world), PATIENCE_S)
        finally:
            for close in reversed(world.closing):
                await close()
            await asyncio.sleep(0.05)

    asyncio.run(played())


in_world = scenarios(play)()


@in_world
async def test_a_request_is_placed_and_one_that_is_held_hears_of_its_place_later(world: World, /) -> None:
    client = world.client("a")
    await eventually(lambda: client.met)
    first = await client.submit(asked("r0", world.clock())).placed()
    assert (first.decode_replica, first.profile) == ("a", "slo")
    held = world.link()
    await held.exchange("other", hello(sent_s=world.clock()))
    later = asyncio.create_task(held.collect())
    world.sessions.gateways.own("r1", "other")
    world.sessions.gateways.deliver(world.sessions.router.submit(world.clock(), asked("r1", world.clock())))
    world.lines.deliver()
    (placement,) = (await later).placements
    assert placement.request_id == "r1"
    assert world.handled >= 3
    held.close()


@in_world
async def test_a_router_that_began_anew_elsewhere_is_met_there_and_learns_what_runs(world: World, /) -> None:
    client = world.client("a")
    await eventually(lambda: client.met)
    await client.submit(asked("r0", world.clock())).placed()
    old = world.lines
    world.restart()
    await old.close()
    await eventually(lambda: client.counts.sessions == 2)
    assert world.sessions.router.running == 1
    placed = await client.submit(asked("r1", world.clock())).placed()
    assert placed.decode_replica == "a"
    assert not client.counts.fallbacks


@in_world
async def test_a_gateway_that_goes_leaves_the_books_at_once(world: World, /) -> None:
    link = world.link()
    await link.exchange("g", hello(ready("a"), Submit(0.0, asked("r"))))
    assert world.sessions.router.running == 1
    link.close()
    await eventually(lambda: not world.sessions.router.running and not len(world.sessions.gateways))
    with pytest.raises(Unreachable):
        await link.collect()


@in_world
async def test_without_a_router_there_is_no_way_there(world: World, /) -> None:
    address = await world.address()
    await world.lines.close()

    async def stale() -> Address:
        return address

    with pytest.raises(Unreachable, match="cannot be connected to"):
        await RouterConnection(stale).exchange("g", hello())
    with pytest.raises(Unreachable):
        await RouterConnection(stale).collect()


@in_world
async def test_a_call_that_is_given_up_leaves_no_answer_for_the_next(world: World, /) -> None:
    link, exchange = world.link(), world.sessions.exchange
    await link.exchange("g", hello(ready("a")))

    def fails(*_: object) -> BatchAnswer:
        raise ArithmeticError

    world.sessions.exchange = fails  # type: ignore[method-assign]
    # What the router cannot handle at all ends the line.
    with pytest.raises(Unreachable):
        await link.exchange("g", batch(Submit(0.0, asked("r"))))
    world.sessions.exchange = lambda *_: BatchAnswer(known=False)  # type: ignore[method-assign]
    given_up = asyncio.create_task(link.exchange("g", batch()))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    world.sessions.exchange = exchange  # type: ignore[method-assign]
    answer = await link.exchange("g", hello(ready("a"), Submit(0.0, asked("r")), session=2))
    assert [one.request_id for one in answer.messages.placements] == ["r"]
    link.close()
