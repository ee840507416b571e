"""Which replicas an attempt goes to. The double is Serve's handle: calls reach engines in this process."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any
from uuid import uuid4

import pytest

from headway.config import HeadwayConfig, load_config
from headway.planning import Role
from serve_apps.deployments import Decode
from serve_apps.engines.protocol import EngineFailed, EngineRequest, EngineStats, KvHandle, TokenChunk
from serve_apps.feed import Outlet
from serve_apps.gateway.backend import NotReady
from serve_apps.membership import ReplicaGone, membership
from serve_apps.serve_backend import ATTEMPTS, ServeBackend

DEPLOYMENTS = {Role.PREFILL: "Prefill", Role.DECODE: "Decode"}
OUTPUT_TOKENS = 3


class Engine:
    """Answers at once; broken, it answers with EngineFailed as fast."""

    def __init__(self, replica: str) -> None:
        self.replica, self.broken = replica, False

    async def prefill(self, request: EngineRequest) -> KvHandle:
        self._require_whole()
        return KvHandle(
            request_id=request.request_id, engine_id=self.replica, input_tokens=request.input_tokens
        )

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        self._require_whole()
        for left in reversed(range(request.max_tokens)):
            yield TokenChunk(" x", 1, None if left else "length")

    async def abort(self, request_id: str) -> None:
        """Nothing is kept."""

    def stats(self) -> EngineStats:
        return EngineStats(engine="double", running=0, waiting=0, kv_usage=0.0)

    def _require_whole(self) -> None:
        if self.broken:
            raise EngineFailed(f"{self.replica}: failed")


class Replica(Decode):
    """The real deployment over such an engine, less Serve's context; prefills too."""

    def __init__(self, replica: str) -> None:
        self._engine = self.engine = Engine(replica)
        self._outlets = defaultdict(Outlet)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        return await self.engine.prefill(request)


class Result:
    """What a replica does for one call: to be awaited, or iterated over."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __await__(self) -> Any:
        return self._work.__await__()

    def __aiter__(self) -> Any:
        return self._work

    def cancel(self) -> None:
        """Whoever waits is cancelled here, and the work with it."""

    @property
    def _replica_result_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()


class Handle:
    """A handle of Serve with its router: the named replica, or the one of least load."""

    is_initialized = True

    def __init__(self, app_name: str, deployment_name: str, count: int) -> None:
        self.app_name, self.deployment_name = app_name, deployment_name
        names = [f"{deployment_name}-{number}" for number in range(count)]
        self.replicas = {name: Replica(name) for name in names}
        self.pool = membership(app_name, deployment_name)
        self.pool.update((name, {}) for name in names)

    def options(self, **options: Any) -> "BoundHandle":
        return BoundHandle(self, options)


class BoundHandle:
    def __init__(self, handle: Handle, options: dict[str, Any]) -> None:
        self._handle, self._options = handle, options

    def options(self, **options: Any) -> "BoundHandle":
        return BoundHandle(self._handle, self._options | options)

    def remote(self, *arguments: Any) -> Result:
        named = self._options.get("session_id") or self._handle.pool.pick("least_load", 0.0)
        if named not in self._handle.replicas:
            return Result(self._gone_stream(named) if self._options["stream"] else self._gone(named))
        return Result(getattr(self._handle.replicas[named], self._options["method_name"])(*arguments))

    async def _gone(self, named: str) -> None:
        raise ReplicaGone(named)

    async def _gone_stream(self, named: str) -> AsyncGenerator[None, None]:
        raise ReplicaGone(named)
        yield


class World:
    """A backend over as many replicas of each role."""

    def __init__(self, replicas: int) -> None:
        config: HeadwayConfig = load_config(None, {})
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


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], replicas: int = 2) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(World(replicas)), 10)

    asyncio.run(bounded())


@pytest.mark.parametrize("role", DEPLOYMENTS)
def test_an_engine_that_failed_costs_attempts_but_no_request(role: Role):
    async def scenario(world: World) -> None:
        world.break_one(role)
        assert [await world.tokens() for _ in range(5)] == [OUTPUT_TOKENS] * 5

    run(scenario)


@pytest.mark.parametrize("role", DEPLOYMENTS)
def test_without_another_replica_the_attempts_are_used_up(role: Role):
    async def scenario(world: World) -> None:
        world.break_one(role)
        with pytest.raises(NotReady, match=f"{ATTEMPTS} attempts"):
            await world.tokens()

    run(scenario, replicas=1)


def test_nothing_is_counted_on_a_replica_once_its_call_has_ended():
    async def scenario(world: World) -> None:
        await world.tokens()
        loads = [member.load for handle in world.handles.values() for member in handle.pool.members]
        assert loads == [0] * 4

    run(scenario)


@pytest.mark.parametrize("role", DEPLOYMENTS)
def test_replicas_that_left_all_at_once_cost_no_attempts(role: Role):
    async def scenario(world: World) -> None:
        left, *gone = (handle := world.handles[role]).replicas
        handle.pool.sent(left, "some other request")
        for replica in gone:
            del handle.replicas[replica]
        assert len(gone) >= ATTEMPTS
        assert await world.tokens() == OUTPUT_TOKENS

    run(scenario, replicas=ATTEMPTS + 1)
