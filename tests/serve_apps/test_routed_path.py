"""Requests where the router puts them, over doubles of Serve's handles and a router in this process."""

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from actors.names import NamedActor
from actors.routing.messages import Completed
from headway.config import load_config
from headway.planning import Role
from headway.routing import Placement, RouteClass, RouteRequest
from serve_apps import calls
from serve_apps.engines.protocol import EngineFailed, EngineRequest, KvHandle, TokenChunk
from serve_apps.gateway.app import GatewayApp, make_app
from serve_apps.gateway.backend import NotReady, Timeline
from serve_apps.gateway.request_record import UNDER_WAY
from serve_apps.http_server import HttpServer
from serve_apps.serve_backend import ServeBackend
from tests.gateway.serving import asked
from tests.patience import PATIENCE_S
from tests.scenarios import scenarios
from tests.serve_apps.routed_cases import Line
from tests.serve_apps.serve_doubles import Engine, Handle

TOKENS = 3
SPLIT = {"pools": {"prefill": {}, "decode": {}}}
OFFLOAD = {
    "pools": {"mixed": {}},
    "routing.profile": "least_load",
    "routing.offload": {"mode": "always", "heavy_tokens": 2000},
}
NAMES = {Role.PREFILL: "Prefill", Role.DECODE: "Decode", Role.MIXED: "Mixed"}


class World:
    """A backend over two replicas of each role."""

    def __init__(self, settings: dict[str, Any]) -> None:
        # The first decisions wait for the compiler.
        patient = {"routing.call_timeout_ms": 1000 * PATIENCE_S, "routing.queue.max_wait_s": PATIENCE_S}
        config = load_config(None, {"routing.profile": "slo", **patient, **settings})
        app = uuid4().hex
        self.config = config
        self.line = Line(**{"routing.profile": "slo", **settings})
        self.handles = {Role(role): Handle(app, NAMES[Role(role)], 2) for role in config.pools}
        self.backend = ServeBackend(config, self.handles, self.line)  # type: ignore[arg-type] # doubles
        self.placements: list[Placement] = []

    def engines(self, role: Role) -> list[Engine]:
        return [replica.engine for replica in self.handles[role].replicas.values()]

    def request(self, input_tokens: int = 10, *, critical: bool = True) -> EngineRequest:
        name = uuid4().hex
        route = RouteRequest(
            request_id=name,
            arrival_s=asyncio.get_running_loop().time(),
            input_tokens=input_tokens,
            max_tokens=TOKENS,
            critical=critical,
        )
        return EngineRequest(
            request_id=name,
            model="m",
            prompt="x",
            input_tokens=input_tokens,
            max_tokens=TOKENS,
            route=route,
        )

    async def tokens(self, input_tokens: int = 10, *, critical: bool = True) -> int:
        timeline = Timeline()
        stream = self.backend.generate(self.request(input_tokens, critical=critical), timeline)
        count = sum([chunk.tokens async for chunk in stream])
        assert timeline.placement is not None
        self.placements.append(timeline.placement)
        return count

    async def quiet(self) -> None:
        """Once the router has no request left."""
        while self.line.sessions.router.running or self.line.sessions.router.queued:
            await asyncio.sleep(0.01)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], settings: dict[str, Any]) -> None:
    async def bounded() -> None:
        world = World(settings)
        try:
            await asyncio.wait_for(scenario(world), PATIENCE_S)
        finally:
            await world.backend.close()
            for handle in world.handles.values():
                await handle.close()

    asyncio.run(bounded())


in_world = scenarios(play)


@pytest.mark.parametrize("settings", [SPLIT, {"pools": {"mixed": {}}}])
def test_both_phases_run_where_they_were_placed(settings):
    async def scenario(world: World) -> None:
        assert await world.tokens() == TOKENS
        (placement,) = world.placements
        decoding = Role.MIXED if Role.MIXED in world.handles else Role.DECODE
        (decode_replica,) = [engine for engine in world.engines(decoding) if engine.decoded]
        assert decode_replica.replica == placement.decode_replica
        for prefill_replica in (
            [engine for engine in world.engines(Role.PREFILL) if engine.prefilled]
            if (Role.PREFILL in world.handles)
            else []
        ):
            assert prefill_replica.replica == placement.prefill_replica
        await world.quiet()
        assert world.backend.routing().placements.total() == 1

    play(scenario, settings)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
@in_world(SPLIT)
async def test_an_engine_that_failed_costs_attempts_but_no_request(world: World, /, role: Role):
    world.engines(role)[0].broken = True
    assert [await world.tokens() for _ in range(6)] == [TOKENS] * 6
    used = {getattr(placement, f"{role}_replica") for placement in world.placements}
    assert used == {world.engines(role)[1].replica}
    await world.quiet()


@in_world(SPLIT)
async def test_with_nothing_but_broken_engines_the_attempts_are_used_up(world: World, /):
    for engine in world.engines(Role.DECODE):
        engine.broken = True
    with pytest.raises(NotReady, match="attempts were lost"):
        await world.tokens()
    await world.quiet()


ASLEEP = {"pools": {"prefill": {"min_replicas": 0}, "decode": {"min_replicas": 0}}}


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_request_in_the_routers_queue_wakes_a_pool_that_becomes_empty(
    role: Role, monkeypatch: pytest.MonkeyPatch
):
    """It waited in the queue, of which the planner hears nothing, for as long as a request may."""
    heard = asyncio.Event()

    async def hear(planner: NamedActor, method: str, *_: Any, **__: Any) -> tuple[float | None, bool]:
        assert method == "held"
        heard.set()
        return None, False

    async def scenario(world: World) -> None:
        await world.tokens()
        pool, replicas = world.handles[role].pool, world.handles[role].replicas
        pool.update((name, {"waiting": 1000}) for name in replicas)
        task = asyncio.create_task(world.tokens(critical=False))
        while not world.line.sessions.router.queued:
            await asyncio.sleep(0.01)
        pool.update([])
        await heard.wait()
        gateway = make_app(world.config, world.backend)
        assert await gateway.empty() == "starting", "though the other pool has replicas"
        await world.quiet()
        pool.update((name, {}) for name in replicas)
        assert await task == TOKENS
        assert not await gateway.empty()
        await world.quiet()

    monkeypatch.setattr(NamedActor, "call", hear)
    play(scenario, ASLEEP)


@in_world(SPLIT)
async def test_a_client_that_leaves_is_forgotten(world: World, /):
    for engine in world.engines(Role.DECODE):
        engine.decode = _two_and_no_end  # type: ignore[method-assign]
    stream = world.backend.generate(world.request())
    await anext(stream)
    assert world.line.sessions.router.running == 1
    await stream.aclose()
    await world.quiet()
    assert world.line.sessions.router.metrics()["ended"] == {("failed",): 1}


async def _two_and_no_end(request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
    yield TokenChunk(" x", 1)
    yield TokenChunk(" x", 1)
    await asyncio.Event().wait()


async def _all_then_fails(request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
    yield TokenChunk(" done", request.max_tokens, "length")
    raise EngineFailed("after the last token")


@pytest.mark.parametrize(
    ("decode", "stop", "text", "tokens"),
    [(None, None, " x x x x x", 5), (_two_and_no_end, "x x", " ", 2), (_all_then_fails, None, " done", 5)],
)
@in_world(SPLIT)
async def test_an_output_that_the_client_has_whole_is_booked_as_completed(
    world: World, /, decode, stop, text, tokens
):
    """At max_tokens, at a stop string, and where the replica is lost once all tokens have come."""
    for engine in world.engines(Role.DECODE):
        engine.decode = decode or engine.decode  # type: ignore[method-assign]
    gateway = make_app(world.config, world.backend)
    body = {"model": world.config.model, "prompt": [1] * 10, "max_tokens": 5, "stop": stop}
    answer = await asked(gateway, body)
    assert json.loads(answer.body)["choices"][0]["text"] == text
    await world.quiet()
    assert world.line.sessions.router.metrics()["ended"] == {("completed",): 1}
    events = [event for batch in world.line.batches for event in batch.events]
    assert [event.output_tokens for event in events if isinstance(event, Completed)] == [tokens]


EVENTS, EVENT = 500, 4000


async def _more_than_sockets_hold(
    request: EngineRequest, kv: KvHandle | None
) -> AsyncGenerator[TokenChunk, None]:
    for left in reversed(range(EVENTS)):
        yield TokenChunk("x" * EVENT, 1, None if left else "length")
        await asyncio.sleep(0)


@asynccontextmanager
async def slow_reader(world: World) -> AsyncGenerator[tuple[GatewayApp, socket.socket], None]:
    """A gateway on a socket, and a client that has read nothing of the long output that it asked for."""
    for engine in world.engines(Role.MIXED):
        engine.decode = _more_than_sockets_hold  # type: ignore[method-assign]
    gateway, loop = make_app(world.config, world.backend), asyncio.get_running_loop()
    server = HttpServer(gateway, "127.0.0.1", 0)
    await server.start()
    asked = {"model": world.config.model, "prompt": [1] * 10, "max_tokens": EVENTS, "stream": True}
    body = json.dumps(asked).encode()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", server.port))
        head = f"POST /v1/completions HTTP/1.1\r\nx-request-id: slow\r\ncontent-length: {len(body)}\r\n\r\n"
        await loop.sock_sendall(client, head.encode() + body)
        await loop.sock_recv(client, 1)
        yield gateway, client
    await server.stop()


async def rest_of(client: socket.socket) -> bytes:
    read = bytearray()
    while b"data: [DONE]" not in read[-64:]:
        read += await asyncio.get_running_loop().sock_recv(client, 2**16)
    return bytes(read)


@in_world({"pools": {"mixed": {}}})
async def test_a_request_ends_when_its_engine_has_done_it_not_when_its_client_has_read_it(world: World, /):
    """A client that read at a tenth of the speed made engines look ten times slower: others were shed."""
    async with slow_reader(world) as (gateway, client):
        await world.quiet()
        assert world.line.sessions.router.metrics()["ended"] == {("completed",): 1}
        assert [member.load for handle in world.handles.values() for member in handle.pool.members] == [0, 0]
        assert gateway.state.metrics.output_tokens == EVENTS
        (record,) = gateway.state.records.find("slow")
        assert record["outcome"] == UNDER_WAY
        assert record["steps"][-1]["took_s"] is not None
        assert (await rest_of(client)).count(b"x" * EVENT) == EVENTS


@in_world({"pools": {"mixed": {}}})
async def test_what_waits_for_a_client_is_bounded(world: World, /, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(calls, "MOST_PACKED_BYTES", 1000)
    async with slow_reader(world) as (_, client):
        await world.quiet()
        assert world.line.sessions.router.metrics()["ended"] == {("failed",): 1}
        read = await rest_of(client)
        assert b"reads too slowly" in read
        assert read.count(b"x" * EVENT) < EVENTS


@in_world(SPLIT)
async def test_a_request_cancelled_before_its_first_token_is_forgotten(world: World, /):
    for engine in world.engines(Role.PREFILL):
        engine.hangs = True
    task = asyncio.create_task(world.tokens())
    while not world.line.sessions.router.running:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait([task])
    await world.quiet()
    loads = [member.load for handle in world.handles.values() for member in handle.pool.members]
    assert loads == [0] * 4


@in_world(OFFLOAD)
async def test_an_offloaded_prefill_is_computed_by_another_replica(world: World, /):
    assert await world.tokens(4000) == TOKENS
    (placement,) = world.placements
    assert placement.route_class is RouteClass.HEAVY_P2P
    assert {
        engine.replica: (len(engine.prefilled), len(engine.decoded)) for engine in world.engines(Role.MIXED)
    } == {placement.prefill_replica: (1, 0), placement.decode_replica: (0, 1)}
    await world.quiet()


@in_world(OFFLOAD)
async def test_an_offloaded_prefill_that_hangs_is_colocated_at_its_deadline(world: World, /):
    for engine in world.engines(Role.MIXED):
        engine.hangs = True
    task = asyncio.create_task(world.tokens(4000))
    while not any(engine.prefilled for engine in world.engines(Role.MIXED)):
        await asyncio.sleep(0.01)
    world.line.sessions.expire(world.line.sessions.router.next_due_s)
    world.line.deliver()
    assert await task == TOKENS
    (placement,) = world.placements
    assert placement.route_class is RouteClass.HEAVY_COLO
    assert placement.attempt == 2
    assert not placement.split
    await world.quiet()


def test_an_offloaded_prefill_that_fails_is_colocated():
    async def scenario(world: World) -> None:
        for engine in world.engines(Role.MIXED):
            engine.prefill = _fail  # type: ignore[method-assign]
        assert await world.tokens(4000) == TOKENS
        (placement,) = world.placements
        assert not placement.split
        await world.quiet()

    async def _fail(request: EngineRequest) -> None:
        raise EngineFailed("failed")

    play(scenario, OFFLOAD)
