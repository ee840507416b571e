"""An engine of any kind whose own latencies are observed on the way out (`profiling.observed_latency`)."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from actors import names
from actors.names import CallError, NamedActor
from headway.profiling.observed_latency import LatencyObserver
from serve_apps.engines.protocol import Engine, EngineRequest, KvHandle, TokenChunk


class MeasuredEngine:
    """The two calls that take time; all others belong to the engine itself. `used` hears of each call."""

    def __init__(self, engine: Engine, meter: LatencyObserver, used: Callable[[], None]) -> None:
        self._engine, self._meter, self._used = engine, meter, used

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """As the engine's."""
        self._used()
        now_s, meter, cached = asyncio.get_running_loop().time, self._meter, self._cached_tokens()
        part = meter.begin(now_s(), max(1, request.input_tokens), computes=True)
        try:
            kv = await self._engine.prefill(request)
            meter.computed(part, now_s(), reused=self._cached_tokens() > cached)
            return kv
        finally:
            meter.end(part, now_s())

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """As the engine's."""
        self._used()
        now_s, meter, cached = asyncio.get_running_loop().time, self._meter, self._cached_tokens()
        part = meter.begin(now_s(), max(1, request.input_tokens), computes=kv is None)
        try:
            stream = cast("AsyncGenerator[TokenChunk, None]", self._engine.decode(request, kv))
            async with aclosing(stream):
                async for chunk in stream:
                    if part.last_s is None and kv is None:
                        meter.computed(part, now_s(), reused=self._cached_tokens() > cached)
                    meter.produced(part, now_s(), chunk.tokens)
                    yield chunk
        finally:
            meter.end(part, now_s())

    def _cached_tokens(self) -> int:
        """Found in the prefix cache so far; engines count them before the prompt's first token is out."""
        return self._engine.stats().cached_tokens


TIMEOUT_S = 5.0
logger = logging.getLogger(__name__)


class LatencyReporter:
    """Sends a meter's reports from the first request on; without requests there is nothing to say."""

    def __init__(self, meter: LatencyObserver, period_s: float, actor: NamedActor | None = None) -> None:
        self._meter, self._period_s = meter, period_s
        self._actor = actor or NamedActor(names.INTERPOLATOR)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun; on the event loop of the engine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            if seen := self._meter.take():
                await self._send(seen)

    async def _send(self, seen: tuple[object, ...]) -> None:
        try:
            await self._actor.call("learn", seen, timeout_s=TIMEOUT_S)
        except CallError as error:
            logger.debug("a report is lost: %s", error)
        except Exception:
            logger.exception("the Interpolator failed on a report")
