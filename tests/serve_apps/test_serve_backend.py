"""Which replicas an attempt goes to. The double is Serve's handle: calls reach engines in this process."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from actors.routing.messages import Batch, BatchAnswer, Messages
from headway.config import HeadwayConfig, load_config
from headway.planning import Role
from serve_apps.engines.protocol import EngineRequest
from serve_apps.gateway.backend import NotReady, Overloaded, ReplicaLost
from serve_apps.serve_backend import ATTEMPTS, ServeBackend
from tests.patience import PATIENCE_S, with_longer_limits
from tests.scenarios import scenarios
from tests.serve_apps.serve_doubles import Handle

DEPLOYMENTS = {Role.PREFILL: "Prefill", Role.DECODE: "Decode"}
OUTPUT_TOKENS = 3


class World:
    """A backend over as many replicas of each role."""

    def __init__(self, replicas: int, wait_s: float) -> None:
        alone = {"routing.profile": "least_load", "routing.queue.max_wait_s": wait_s}
        config: HeadwayConfig = load_config(None, alone)
        app = uuid4().hex
        self.handles = {role: Handle(app, name, replicas) for role, name in DEPLOYMENTS.items()}
        self.backend = ServeBackend(config, self.handles)  # type: ignore[arg-type] # doubles

    def break_one(self, role: Role) -> None:
        """One that the choice begins with: it has the least load from now on."""
        handle = self.handles[role]
        broken, *others = handle.replicas
        handle.replicas[broken].engine.broken = True
        for other in others:
            handle.pool.sent(other, "some other request")

    async def tokens(self) -> int:
        request = EngineRequest(
            request_id=uuid4().hex, model="m", prompt="x", input_tokens=1, max_tokens=OUTPUT_TOKENS
        )
        return sum([chunk.tokens async for chunk in self.backend.generate(request)])


def run(
    scenario: Callable[[World], Coroutine[Any, Any, None]], replicas: int = 2, wait_s: float = PATIENCE_S
) -> None:
    async def bounded() -> None:
        world = World(replicas, wait_s)
        try:
            await asyncio.wait_for(scenario(world), PATIENCE_S)
        finally:
            await world.backend.close()
            for handle in world.handles.values():
                await handle.close()

    asyncio.run(bounded())


in_world = scenarios(run)


@pytest.mark.parametrize("role", DEPLOYMENTS)
@in_world()
async def test_an_engine_that_failed_costs_attempts_but_no_request(world: World, /, role: Role):
    world.break_one(role)
    assert [await world.tokens() for _ in range(5)] == [OUTPUT_TOKENS] * 5


@pytest.mark.parametrize("role", DEPLOYMENTS)
@in_world(replicas=1)
async def test_without_another_replica_the_attempts_are_used_up(world: World, /, role: Role):
    world.break_one(role)
    with pytest.raises(NotReady, match=f"{ATTEMPTS} attempts"):
        await world.tokens()


@in_world()
async def test_nothing_is_counted_on_a_replica_once_its_call_has_ended(world: World, /):
    await world.tokens()
    loads = [member.load for handle in world.handles.values() for member in handle.pool.members]
    assert loads == [0] * 4


@pytest.mark.parametrize("role", DEPLOYMENTS)
@in_world(replicas=ATTEMPTS + 1)
async def test_replicas_that_left_all_at_once_cost_no_attempts(world: World, /, role: Role):
    left, *gone = (handle := world.handles[role]).replicas
    handle.pool.sent(left, "some other request")
    for replica in gone:
        del handle.replicas[replica]
    assert len(gone) >= ATTEMPTS
    assert await world.tokens() == OUTPUT_TOKENS


@in_world()
async def test_an_engine_that_fails_in_mid_stream_is_said_to_have_failed(world: World, /):
    for replica in world.handles[Role.DECODE].replicas.values():
        replica.engine.breaks_at = 1
    failed = "^after the first token the engine failed: RuntimeError: out of memory$"
    with pytest.raises(ReplicaLost, match=failed):
        await world.tokens()


@pytest.mark.parametrize("role", DEPLOYMENTS)
@in_world(replicas=1)
async def test_requests_wait_for_a_replica_that_is_started_anew(world: World, /, role: Role):
    pool = world.handles[role].pool
    (replica,) = world.handles[role].replicas
    pool.update([])
    waiting = [asyncio.create_task(world.tokens()) for _ in range(3)]
    await asyncio.sleep(0.05)
    pool.update([])
    assert not any(task.done() for task in waiting)
    pool.update([(replica, {})])
    assert await asyncio.gather(*waiting) == [OUTPUT_TOKENS] * 3


@pytest.mark.parametrize("role", DEPLOYMENTS)
def test_where_all_are_saturated_requests_wait_and_are_turned_away(role: Role):
    async def scenario(world: World) -> None:
        handle = world.handles[role]
        handle.pool.update((replica, {"waiting": 1000}) for replica in handle.replicas)
        with pytest.raises(Overloaded, match=f"saturated: every {role.value} replica"):
            await world.tokens()
        waiting = asyncio.create_task(world.tokens())
        await asyncio.sleep(0)
        handle.pool.update((replica, {"waiting": 0}) for replica in handle.replicas)
        assert await waiting == OUTPUT_TOKENS

    with_longer_limits(lambda wait_s: run(scenario, wait_s=wait_s), 0.2, 2.0, 20.0)


@pytest.mark.parametrize("role", DEPLOYMENTS)
@in_world(replicas=1, wait_s=0.2)
async def test_where_none_comes_requests_end_though_reports_keep_coming(world: World, /, role: Role):
    pool = world.handles[role].pool
    pool.update([])
    waiting = asyncio.create_task(world.tokens())
    while not waiting.done():
        await asyncio.sleep(0.05)
        pool.update([])
    with pytest.raises(NotReady, match=f"^no {role.value} replica has been running for 0.2 s$"):
        await waiting


class LateRouter:
    """A router that answers when it is told to."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()

    async def exchange(self, gateway: str, batch: Batch) -> BatchAnswer:
        await self.answers.wait()
        return BatchAnswer(known=True)

    async def collect(self) -> Messages:
        await asyncio.Event().wait()
        raise AssertionError

    def close(self) -> None:
        pass


def test_a_gateway_is_ready_once_its_router_has_answered_or_was_waited_for():
    async def scenario() -> None:
        for wait_s, answers in ((PATIENCE_S, True), (0.2, False)):
            config = load_config(None, {"routing.queue.max_wait_s": wait_s, "routing.profile": "slo"})
            app, link = uuid4().hex, LateRouter()
            handles = {role: Handle(app, name, 1) for role, name in DEPLOYMENTS.items()}
            backend = ServeBackend(config, handles, link)  # type: ignore[arg-type] # doubles
            if answers:
                assert backend.ready().reason == "the router has not answered yet"
                link.answers.set()
            while not backend.ready().ok:
                await asyncio.sleep(0.01)
            await backend.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
