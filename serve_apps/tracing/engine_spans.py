"""The spans of a replica, made of the times that its engine reports (`EngineTimes`).

    prefill            SERVER      the gateway's call, as it was here
    decode             SERVER
      kv_transfer      INTERNAL    until the prompt's KV was here (vLLM: and its turn had come)
      prefill          INTERNAL    the prompt, where it was computed here as well

What an engine exports by itself, as vLLM does its `llm_request`, hangs below the SERVER span.
"""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, Protocol, cast

from headway.config import Role, TracingSettings
from serve_apps.engines.protocol import EngineRequest, EngineTimes, KvHandle, TokenChunk
from serve_apps.tracing.spans import Span, SpanExport, TraceContext, read


class Calls(Protocol):
    """The two calls of an engine that take time."""

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute a prompt."""

    def decode(self, request: EngineRequest, kv: KvHandle | None) -> Any:  # noqa: ANN401 - an async generator
        """Stream an output."""


class TracedEngine:
    """An engine whose calls make spans, where they are part of a trace that is sampled."""

    def __init__(self, engine: Calls, export: SpanExport) -> None:
        self._engine, self._export = engine, export

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """The engine's `prefill`."""
        if (place := _place(request)) is None:
            return await self._engine.prefill(request)
        with self._recorded(_Call("prefill", place, request)) as call:
            kv = await self._engine.prefill(call.request)
            call.times = kv.times
            return kv

    def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """The engine's `decode`."""
        if (place := _place(request)) is None:
            return cast("AsyncGenerator[TokenChunk, None]", self._engine.decode(request, kv))
        return self._decode(_Call("decode", place, request), kv)

    async def _decode(self, call: "_Call", kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        with self._recorded(call):
            async with aclosing(self._engine.decode(call.request, kv)) as chunks:
                async for chunk in chunks:
                    call.tokens += chunk.tokens
                    call.times = chunk.times
                    yield chunk

    @contextmanager
    def _recorded(self, call: "_Call") -> Iterator["_Call"]:
        """The call's spans are exported at its end, with the error that ended it."""
        try:
            yield call
        except GeneratorExit:
            raise
        except BaseException as error:
            call.error = type(error).__name__
            raise
        finally:
            self._export.put(list(call.spans()))

    def close(self) -> None:
        """Send the spans that wait; blocks."""
        self._export.close()


def traced(engine: Calls, settings: TracingSettings, role: Role, replica: str) -> Calls:
    """The engine, whose calls make spans where requests are traced. ConfigError."""
    if settings.endpoint is None:
        return engine
    return TracedEngine(engine, SpanExport(settings, f"headway-{role}", replica))


def _place(request: EngineRequest) -> TraceContext | None:
    """The place of this replica's span; None where nothing is sampled."""
    above = None if request.call is None else read(request.call.trace)
    return above.child() if above is not None and above.sampled else None


class _Call:
    """One call of the engine, and what is known of it."""

    def __init__(self, name: str, place: TraceContext, request: EngineRequest) -> None:
        assert request.call is not None, "the place comes with the call"
        self._name, self._place, self._began_at = name, place, time.time()
        self.request = replace(request, call=request.call._replace(trace=place.headers()))
        self.tokens, self.error = 0, ""
        self.times: EngineTimes | None = None

    def spans(self) -> Iterator[Span]:
        """Its own, which ends now, and those of its parts."""
        times, begun_s = self.times or EngineTimes(), self._began_at
        transferred_s, first_s = times.transferred_s, times.first_token_s
        waited_s = None if times.begun_s is None else times.begun_s - (transferred_s or 0.0)
        attributes = {
            "gen_ai.usage.input_tokens": self.request.input_tokens,
            "gen_ai.usage.output_tokens": self.tokens if self._name == "decode" else None,
            "gen_ai.latency.time_in_queue": waited_s,
            "gen_ai.latency.time_to_first_token": first_s,
            "headway.engine.request.id": self.request.request_id,
            "error.type": self.error or None,
        }
        yield Span(self._name, "SERVER", self._place, begun_s, time.time(), attributes, self.error)
        if transferred_s is not None:
            tokens = {"gen_ai.usage.input_tokens": self.request.input_tokens}
            place = self._place.child()
            yield Span("kv_transfer", "INTERNAL", place, begun_s, begun_s + transferred_s, tokens)
        elif self._name == "decode" and times.begun_s is not None and first_s is not None:
            place = self._place.child()
            yield Span("prefill", "INTERNAL", place, begun_s + times.begun_s, begun_s + first_s)
