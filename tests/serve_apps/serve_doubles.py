"""Serve's handles over engines in this process. Faults can't be had at will from real replicas."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from serve_apps.call_server import CallServer
from serve_apps.deployments import Decode
from serve_apps.engines.answering.answers import AnsweringEngine
from serve_apps.engines.protocol import (
    EngineFailed,
    EngineRequest,
    EngineStats,
    KvHandle,
    TokenChunk,
)
from serve_apps.membership import ReplicaGone, membership


class Engine:
    """Answers at once; broken, it answers with EngineFailed as fast."""

    def __init__(self, replica: str) -> None:
        self.replica, self.broken, self.hangs, self.breaks_at = replica, False, False, -1
        self.prefilled: list[str] = []
        self.decoded: list[str] = []

    async def prefill(self, request: EngineRequest) -> KvHandle:
        self._require_whole()
        self.prefilled.append(request.request_id)
        if self.hangs:
            await asyncio.Event().wait()
        return KvHandle(
            request_id=request.request_id, engine_id=self.replica, input_tokens=request.input_tokens
        )

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        self._require_whole()
        self.decoded.append(request.request_id)
        for left in reversed(range(request.max_tokens)):
            if left == self.breaks_at:
                await asyncio.sleep(0.01)
                raise RuntimeError("out of memory")
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
        self.engine = Engine(replica)
        self._engine = self._serving = AnsweringEngine(self.engine, "double")
        self._calls = CallServer(lambda: "127.0.0.1", {"prefill": self.prefill, "decode": self.answer})

    async def prefill(self, request: EngineRequest) -> KvHandle:
        return await self.engine.prefill(request)

    async def close(self) -> None:
        await self._calls.close()


class Result:
    """What a replica does for one call: to be awaited."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def __await__(self) -> Any:
        return self._work.__await__()

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

    async def close(self) -> None:
        """End the replicas."""
        for replica in self.replicas.values():
            await replica.close()


class BoundHandle:
    def __init__(self, handle: Handle, options: dict[str, Any]) -> None:
        self._handle, self._options = handle, options

    def options(self, **options: Any) -> "BoundHandle":
        return BoundHandle(self._handle, self._options | options)

    def remote(self, *arguments: Any) -> Result:
        named = self._options.get("session_id") or self._handle.pool.pick("least_load", 0.0)
        if named not in self._handle.replicas:
            return Result(self._gone(named))
        return Result(getattr(self._handle.replicas[named], self._options["method_name"])(*arguments))

    async def _gone(self, named: str) -> None:
        raise ReplicaGone(named)
