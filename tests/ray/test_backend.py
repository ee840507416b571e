"""Requests over Serve on real replicas: what deaths, stalls and departures do; nothing is left behind.

The backend runs here, in the test's own event loop; engines are simulated and slow: some 150 ms a token.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ray import serve
from ray.serve.handle import DeploymentHandle

from headway.config import HeadwayConfig, load_config
from headway.planning import Role
from serve_apps.compat_serve import Lost, ask, lean
from serve_apps.engines.protocol import EngineRequest, EngineStats, TokenChunk
from serve_apps.gateway.backend import NotReady, ReplicaLost, TimedOut
from serve_apps.membership import membership
from serve_apps.serve_backend import ServeBackend
from tests.patience import PATIENCE_S
from tests.ray.clusters import POLL_S, application_details, replicas, running_replicas, scale, wait_until

APP = "backend"
NAMES = {Role.PREFILL: "Prefill", Role.DECODE: "Decode"}
SLOW = {
    "engine.time_scale": 0.05,
    "engine.kv_transfer.latency_ms": 1500,
    "gateway.port": 0,
    "gateway.request_timeout_s": 120,
    "pools.decode.min_replicas": 2,
    "pools.prefill.min_replicas": 2,
    "routing.queue.max_wait_s": 5,
}


class World:
    """The deployed pools, and one event loop with a backend over them.

    All share one handle of each pool: see `serve_apps.compat_serve.lean`.
    """

    def __init__(self, config: HeadwayConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.config = config
        self._loop = loop
        self.handles = {name: DeploymentHandle(name, APP) for name in NAMES.values()}
        self.backend = self.do(self._backend(config))
        self.do(self.until(lambda: self.backend.ready().ok))
        self._requests = 0

    async def _backend(self, config: HeadwayConfig) -> ServeBackend:
        return ServeBackend(config, {role: self.handles[name] for role, name in NAMES.items()})

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(work, PATIENCE_S)

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    def with_timeout(self, timeout_s: float) -> ServeBackend:
        gateway = self.config.gateway.model_copy(update={"request_timeout_s": timeout_s})
        return self.do(self._backend(self.config.model_copy(update={"gateway": gateway})))

    def request(self, input_tokens: int = 10, max_tokens: int = 5) -> EngineRequest:
        self._requests += 1
        return EngineRequest(
            request_id=f"r{self._requests}",
            model=self.config.model,
            prompt="x",
            input_tokens=input_tokens,
            max_tokens=max_tokens,
        )

    async def until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            await asyncio.sleep(POLL_S)

    async def members(self, role: Role, count: int) -> None:
        await self.until(lambda: sum(load.role is role for load in self.backend.replicas()) == count)


@pytest.fixture(scope="module")
def world(ray_cluster: str) -> Iterator[World]:
    from serve_apps.builders import application

    config = load_config(None, SLOW)
    serve.run(application(config, control_plane=False), name=APP, external_scaler_enabled=True)
    with running_loop() as loop:
        yield World(config, loop)
    serve.delete(APP)


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Handles need a loop that never rests: Serve tells them through it who runs."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(end_tasks(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def end_tasks() -> None:
    """Routers have some that report metrics for ever."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(autouse=True)
def whole(world: World) -> Iterator[None]:
    """Each test finds two replicas of each role, and leaves nothing running on them."""
    for role, name in NAMES.items():
        scale(APP, name, 2)
        wait_until(lambda: running_replicas(APP, name) == 2)  # noqa: B023
        world.do(world.members(role, 2))
    yield
    for name in NAMES.values():
        assert world.do(idle(world, name))


async def idle(world: World, name: str) -> bool:
    """Once no running replica has anything to do; TimeoutError tells what they had. The engines are asked."""
    stats: list[EngineStats | None] = []
    try:
        async with asyncio.timeout(0.9 * PATIENCE_S):
            while True:
                stats = [await stats_of(world, name, one["replica_id"]) for one in replicas(APP, name)]
                if all(one is not None and one.running == one.waiting == 0 for one in stats):
                    return True
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        raise TimeoutError(f"{name} is not idle: {stats}") from error


async def stats_of(world: World, name: str, replica: str) -> EngineStats | None:
    """None while a replica that died is still counted."""
    try:
        found: EngineStats = await ask(lean(world.handles[name], "stats").options(session_id=replica))
    except Lost:
        return None
    return found


async def inject(world: World, name: str, replica: str, fault: str) -> None:
    await ask(lean(world.handles[name], "inject").options(session_id=replica), fault)


async def collect(backend: ServeBackend, request: EngineRequest, begun: list[str]) -> list[TokenChunk]:
    chunks = []
    async for chunk in backend.generate(request):
        begun.append(request.request_id)
        chunks.append(chunk)
    return chunks


def tokens(chunks: list[TokenChunk]) -> int:
    return sum(chunk.tokens for chunk in chunks)


def kill_one(name: str) -> str:
    victim = replicas(APP, name)[0]
    os.kill(victim["pid"], signal.SIGKILL)
    return str(victim["replica_id"])


async def busy(world: World, role: Role) -> None:
    """Once every replica of the role has a request, and reports it; reports may be late for short ones."""

    def given() -> bool:
        return all(member.requests for member in membership(APP, NAMES[role]).members)

    def reported() -> bool:
        loads = [load for load in world.backend.replicas() if load.role is role]
        return all(load.running + load.waiting for load in loads)

    await world.until(given)
    await world.until(lambda: reported() or not given())


@pytest.mark.parametrize("wait_s", [0.0, 0.02, 0.5, 2.0])
def test_a_cancelled_request_frees_the_engine_in_whatever_phase_it_is(world: World, wait_s: float) -> None:
    async def scenario() -> None:
        request = world.request(input_tokens=2_000, max_tokens=5_000)
        task = asyncio.create_task(collect(world.backend, request, []))
        await asyncio.sleep(wait_s)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    world.do(scenario())


def test_a_prefill_replica_that_dies_costs_no_request(world: World) -> None:
    async def scenario() -> list[list[TokenChunk]]:
        begun: list[str] = []
        tasks = [
            asyncio.create_task(collect(world.backend, world.request(2_000, 3), begun)) for _ in range(6)
        ]
        await busy(world, Role.PREFILL)
        kill_one("Prefill")
        return await asyncio.gather(*tasks)

    assert [tokens(chunks) for chunks in world.do(scenario())] == [3] * 6


def test_a_decode_replica_that_dies_before_the_first_token_costs_no_request(world: World) -> None:
    async def scenario() -> tuple[int, list[list[TokenChunk]]]:
        begun: list[str] = []
        tasks = [asyncio.create_task(collect(world.backend, world.request(10, 3), begun)) for _ in range(6)]
        # Their KV is on the way for 1.5 s; meanwhile they are known there and have no token.
        await world.until(lambda: outstanding(world, Role.DECODE) == 6)
        kill_one("Decode")
        return len(begun), await asyncio.gather(*tasks)

    begun, outputs = world.do(scenario())
    assert begun == 0
    assert [tokens(chunks) for chunks in outputs] == [3] * 6


def outstanding(world: World, role: Role) -> int:
    return sum(len(member.requests) for member in membership(APP, NAMES[role]).members)


def test_a_decode_replica_that_dies_later_ends_its_streams_clearly_and_no_others(world: World) -> None:
    async def scenario() -> list[Any]:
        begun: list[str] = []
        tasks = [asyncio.create_task(collect(world.backend, world.request(10, 40), begun)) for _ in range(6)]
        await world.until(lambda: len(set(begun)) == 6)
        kill_one("Decode")
        return await asyncio.gather(*tasks, return_exceptions=True)

    ended = world.do(scenario())
    lost = [result for result in ended if isinstance(result, ReplicaLost)]
    whole = [result for result in ended if isinstance(result, list)]
    # Least load has put half of them on each replica.
    assert (len(lost), len(whole)) == (3, 3)
    assert [tokens(chunks) for chunks in whole] == [40] * 3


def test_streams_survive_a_scale_down(world: World) -> None:
    async def scenario() -> list[list[TokenChunk]]:
        begun: list[str] = []
        tasks = [asyncio.create_task(collect(world.backend, world.request(10, 40), begun)) for _ in range(4)]
        await world.until(lambda: len(set(begun)) == 4)
        await asyncio.to_thread(scale, APP, "Decode", 1)
        await world.members(Role.DECODE, 1)
        return await asyncio.gather(*tasks)

    assert [tokens(chunks) for chunks in world.do(scenario())] == [40] * 4
    # The drained replica is gone for good: our line to it did not hold it.
    wait_until(lambda: len(draining("Decode")) == 0)


def draining(name: str) -> list[str]:
    details = application_details(APP)
    assert details is not None
    return [
        one["replica_id"] for one in details["deployments"][name]["replicas"] if one["state"] != "RUNNING"
    ]


def test_without_replicas_requests_are_refused_before_their_time_is_over(world: World) -> None:
    scale(APP, "Decode", 0)
    world.do(world.members(Role.DECODE, 0))
    assert not world.backend.ready().ok
    assert "decode" in world.backend.ready().reason
    with pytest.raises(NotReady):
        world.do(collect(world.backend, world.request(), []))


@pytest.mark.parametrize("name", ["Prefill", "Decode"])
def test_a_stalled_engine_costs_a_request_its_time_and_not_more(world: World, name: str) -> None:
    async def inject_all(fault: str) -> None:
        for one in replicas(APP, name):
            await inject(world, name, one["replica_id"], fault)

    backend = world.with_timeout(2.0)
    world.do(inject_all("stall"))
    try:
        with pytest.raises(TimedOut):
            world.do(collect(backend, world.request(), []))
    finally:
        world.do(inject_all("clear"))


def test_serve_replaces_an_engine_that_failed(world: World) -> None:
    before = {one["replica_id"] for one in replicas(APP, "Decode")}
    broken = min(before)

    world.do(inject(world, "Decode", broken, "fail"))
    wait_until(lambda: broken not in {one["replica_id"] for one in replicas(APP, "Decode")})
    assert tokens(world.do(collect(world.backend, world.request(), []))) == 5
