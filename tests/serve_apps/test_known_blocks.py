"""What replicas say of their prefix caches, on its way to the router."""

import asyncio
from collections.abc import Awaitable, Callable

from headway.config import Role
from headway.routing import Placement, ReplicaState, ReplicaUpdate
from headway.routing.types import KnownBlocks
from serve_apps.compat_serve import Lost
from serve_apps.engines.vllm.cached_blocks import CachedBlocks
from serve_apps.gateway.prompts import prefix_blocks
from serve_apps.routed.replicas import AT_ONCE, RETRY_S
from tests.actors.router_cases import asked
from tests.engines.virtual_loop import run
from tests.scenarios import scenarios
from tests.serve_apps.routed_cases import Gateway, Line

LOAD = {"running": 0, "waiting": 0, "kv_usage": 0.0}
PROMPT = [*range(1100)]
BLOCKS = prefix_blocks(PROMPT, 512)
SOON_S = 2.0


class Replicas:
    """Engines with caches, which can be asked by any gateway."""

    def __init__(self, *names: str) -> None:
        self.caches = {name: CachedBlocks(1000, 16) for name in names}
        self.asked: list[tuple[str, int | None]] = []
        self.failing = False
        self.unknown = False

    async def ask(self, role: Role, replica: str, since: int | None) -> KnownBlocks | None:
        assert role is Role.MIXED
        self.asked.append((replica, since))
        await asyncio.sleep(0.01)
        if self.failing:
            raise Lost("gone")
        return None if self.unknown else self.caches[replica].since(since)

    def compute(self, replica: str) -> None:
        self.caches[replica].stored([*range(68)], None, PROMPT[: 16 * 68], 16)
        self.caches[replica].tick()

    def evict(self, replica: str) -> None:
        self.caches[replica].removed([*range(67, 31, -1)])
        self.caches[replica].tick()

    def report(self, *gateways: Gateway) -> None:
        """What Serve brings every half second."""
        stats = {
            name: {**LOAD, "blocks_at": None if self.unknown else cache.sequence}
            for name, cache in self.caches.items()
        }
        for gateway in gateways:
            gateway.pool.update(stats.items())


def play(scenario: Callable[[Replicas, Line, Gateway, Gateway], Awaitable[None]], *names: str) -> None:
    """Two gateways of one router."""

    async def played() -> None:
        replicas, line = Replicas(*names), Line(**{"routing.profile": "prefix"})
        gateways = [Gateway(line, *names, ask_blocks=replicas.ask) for _ in range(2)]
        try:
            replicas.report(*gateways)
            await asyncio.sleep(SOON_S)
            await scenario(replicas, line, *gateways)
        finally:
            for gateway in gateways:
                await gateway.client.close()

    run(played())


in_world = scenarios(play)


async def placement(gateway: Gateway, name: str) -> Placement:
    request = asked(name, asyncio.get_running_loop().time(), input_tokens=1100, blocks=BLOCKS)
    routed = gateway.client.submit(request)
    try:
        return await routed.placed()
    finally:
        routed.close()
        await asyncio.sleep(SOON_S)


@in_world("a", "b")
async def test_the_router_knows_what_any_gateway_was_told_and_asks_for_differences(
    replicas: Replicas, line: Line, one: Gateway, other: Gateway, /
) -> None:
    assert sorted(replicas.asked) == [("a", None)] * 2 + [("b", None)] * 2
    replicas.compute("b")
    replicas.report(one)
    await asyncio.sleep(SOON_S)
    found = await placement(other, "r")
    assert (found.decode_replica, found.cached_tokens, found.cached_by) == ("b", 1024, "events")
    replicas.evict("b")
    replicas.report(one, other)
    await asyncio.sleep(SOON_S)
    assert (await placement(one, "s")).cached_tokens == 512
    assert sorted(replicas.asked[4:]) == [("b", 0), ("b", 0), ("b", 1)]
    # Without news nothing is asked.
    replicas.report(one, other)
    await asyncio.sleep(SOON_S)
    assert len(replicas.asked) == 7


@in_world("a")
async def test_a_router_that_began_anew_gets_all_of_it(
    replicas: Replicas, line: Line, one: Gateway, other: Gateway, /
) -> None:
    replicas.compute("a")
    replicas.report(one, other)
    await asyncio.sleep(SOON_S)
    line.come_back()
    await asyncio.sleep(SOON_S)
    found = await placement(other, "r")
    assert (found.cached_tokens, found.cached_by) == (1024, "events")
    assert replicas.asked.count(("a", None)) == 4


@in_world("a", "b")
async def test_a_router_that_cannot_use_the_news_of_one_replica_gets_all_of_that(
    replicas: Replicas, line: Line, one: Gateway, other: Gateway, /
) -> None:
    router = line.sessions.router
    for state in (ReplicaState.GONE, ReplicaState.READY):
        router.replica_changed(0.0, ReplicaUpdate(replica="b", role=Role.MIXED, state=state))
    replicas.asked.clear()
    replicas.compute("b")
    replicas.report(one, other)
    await asyncio.sleep(SOON_S)
    assert ("b", None) in replicas.asked
    assert ("a", None) not in replicas.asked
    found = await placement(one, "r")
    assert (found.decode_replica, found.cached_by) == ("b", "events")


@in_world("a")
async def test_a_replica_that_does_not_answer_is_asked_again_and_one_that_does_not_know_is_estimated(
    replicas: Replicas, line: Line, one: Gateway, other: Gateway, /
) -> None:
    replicas.compute("a")
    replicas.failing = True
    replicas.report(one, other)
    await asyncio.sleep(0.5)
    assert len(replicas.asked) == 4
    replicas.failing = False
    await asyncio.sleep(RETRY_S + SOON_S)
    assert (await placement(one, "r")).cached_by == "events"
    replicas.unknown = True
    replicas.report(one, other)
    await asyncio.sleep(SOON_S)
    found = await placement(one, "s")
    assert (found.cached_by, found.cached_tokens) == ("estimate", 1024)
    asked_for = len(replicas.asked)
    replicas.unknown = False
    replicas.report(one, other)
    await asyncio.sleep(SOON_S)
    assert replicas.asked[asked_for:] == [("a", None)] * 2
    assert (await placement(one, "t")).cached_by == "events"


def test_of_many_replicas_all_are_asked_some_at_once() -> None:
    names = [f"r{number:03}" for number in range(3 * AT_ONCE)]

    async def scenario(replicas: Replicas, line: Line, one: Gateway, other: Gateway) -> None:
        assert sorted(replicas.asked) == sorted([(name, None) for name in names] * 2)

    play(scenario, *names)
