"""A backend that is one vLLM engine in this process, and vLLM's own server over the same engine."""

import warnings
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from headway.config import HeadwayConfig
from headway.planning.types import Role
from serve_apps.calls import _translated
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import Aside, AsideAnswer, Engine, EngineError, EngineRequest, TokenChunk
from serve_apps.engines.vllm.answers import _application
from serve_apps.engines.vllm.arguments import engine_arguments
from serve_apps.gateway.backend import Readiness, ReplicaLoad, TakeChunk
from serve_apps.gateway.timeline import Timeline
from tests.vllm.served import TOOL_CALLS


class OneVllm:
    """A mixed vLLM engine, made on the gateway's loop at the first request."""

    def __init__(self, config: HeadwayConfig) -> None:
        self._config = config
        self.engine: Engine | None = None
        self._own: ASGIApp | None = None

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, taker: TakeChunk | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        if self.engine is None:
            with warnings.catch_warnings(action="ignore"):
                self.engine = make_engine(self._config, Role.MIXED, "one")
        try:
            async with aclosing(self.engine.decode(request, None)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except EngineError as error:
            raise _translated(error) from error

    async def own_server(self, scope: Scope, receive: Receive, send: Send) -> None:
        """vLLM's server over the same engine, with nothing of ours between."""
        if self._own is None:
            engine: Any = self.engine
            self._own = await _application(
                engine_arguments(self._config, Role.MIXED) | TOOL_CALLS, engine._llm
            )
        scope = {**scope, "path": scope["path"].removeprefix("/own"), "root_path": ""}
        await self._own(scope, receive, send)

    async def aside(self, question: Aside) -> AsideAnswer:
        answer: AsideAnswer = await self.engine.aside(question)  # type: ignore[union-attr]
        return answer

    def complete(self, request_id: str) -> None:
        """Nobody keeps books."""

    def ready(self) -> Readiness:
        return Readiness(ok=True)

    def replicas(self) -> Sequence[ReplicaLoad]:
        return ()
