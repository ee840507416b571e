"""An engine that makes text and knows nothing of HTTP, as one that answers what clients send."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from serve_apps.engines.answering.answers import answer, check, plain
from serve_apps.engines.protocol import (
    Aside,
    AsideAnswer,
    Engine,
    EngineRequest,
    KvHandle,
    TokenChunk,
    error_body,
)


class AnsweringEngine:
    """`engine`, of that kind, which answers calls with the text that it makes. All else is the engine's."""

    def __init__(self, engine: Engine, kind: str) -> None:
        self._engine, self._kind = engine, kind

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the engine has
        return getattr(self._engine, name)

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """The engine's `prefill`, of what can be answered. Refused."""
        if request.call is not None:
            check(request, plain)
        return await self._engine.prefill(request)

    async def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncGenerator[TokenChunk, None]:
        """The engine's `decode`, as an answer where a call asks for one. Refused."""

        def run(part: EngineRequest, _computed: bool) -> AsyncGenerator[TokenChunk, None]:
            return self._engine.decode(part, kv)  # type: ignore[return-value] # all engines' are generators

        chunks = run(request, False) if request.call is None else answer(request, run, plain, self._kind)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def aside(self, question: Aside) -> AsideAnswer:
        """404: an engine that makes only text has no answer to anything else."""
        text = f"{question.method} {question.path}: an engine of kind {self._kind!r} makes only text"
        return AsideAnswer(404, error_body(text, "invalid_request_error", None, "not_found"))
