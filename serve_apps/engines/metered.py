"""An engine whose own latencies are metered on the way out (`headway.profiling.metering`): of any kind."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from headway.profiling.metering import LatencyMeter
from serve_apps.engines.protocol import Engine, EngineRequest, KvHandle, TokenChunk


class MeteredEngine:
    """The two calls that take time; all others belong to the engine itself. `used` hears of each call."""

    def __init__(self, engine: Engine, meter: LatencyMeter, used: Callable[[], None]) -> None:
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
