"""One mixed vLLM engine of this process, behind a gateway, and vLLM's own server over the same engine."""

import asyncio
import os
import warnings
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from headway.config import HeadwayConfig, load_config
from headway.planning.types import Role
from serve_apps.compat_serve import translated
from serve_apps.engines import make_engine
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineError, EngineRequest, TokenChunk
from serve_apps.engines.vllm.answers import _application
from serve_apps.engines.vllm.arguments import engine_arguments
from serve_apps.gateway.backend import ChunkSink, Readiness, ReplicaLoad, Timeline
from tests.gateway.serving import Running, post, serving
from tests.vllm.served import NAME, STARTED_WITHIN_S, TINY, TOOL_CALLS

LONGEST = 4096
SETTINGS: Mapping[str, Any] = {
    **TINY,
    "pools": {"mixed": {}},
    "routing.profile": "prefix",
    "engine.max_model_tokens": LONGEST,
    # Of two adapters: they take turns.
    "engine.lora.at_once": 1,
    # 10,240 tokens: too few for all that tests send, so that some of it is evicted.
    "engine.vllm.args": {**TINY["engine.vllm.args"], "kv_cache_memory_bytes": 20 << 20},
}


class OneVllm:
    """A mixed vLLM engine, made on the gateway's loop at the first request."""

    def __init__(self, config: HeadwayConfig) -> None:
        self._config = config
        self.engine: Any = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._own: ASGIApp | None = None

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        if self.engine is None:
            self.loop = asyncio.get_running_loop()
            with warnings.catch_warnings(action="ignore"):
                self.engine = make_engine(self._config, Role.MIXED, "one")
        try:
            async with aclosing(self.engine.decode(request, None)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except EngineError as error:
            raise translated(error) from error

    async def own_server(self, scope: Scope, receive: Receive, send: Send) -> None:
        """vLLM's server over the same engine, with nothing of ours between."""
        if self._own is None:
            arguments = engine_arguments(self._config, Role.MIXED) | TOOL_CALLS
            self._own = await _application(arguments, self.engine._llm)
        scope = {**scope, "path": scope["path"].removeprefix("/own"), "root_path": ""}
        await self._own(scope, receive, send)

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        answer: AuxiliaryAnswer = await self.engine.auxiliary(question)
        return answer

    def ready(self) -> Readiness:
        return Readiness(ok=True)

    def replicas(self) -> Sequence[ReplicaLoad]:
        return ()


@dataclass(frozen=True)
class Mixed:
    """The gateway, and the engine, all calls of which belong to the gateway's loop."""

    config: HeadwayConfig
    gateway: Running
    backend: OneVllm

    @property
    def engine(self) -> Any:
        """A `VllmEngine`."""
        return self.backend.engine

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What becomes of it on that loop."""
        assert self.backend.loop is not None
        return asyncio.run_coroutine_threadsafe(work, self.backend.loop).result()


@contextmanager
def one_mixed(model: Path, adapters: Mapping[str, Path]) -> Iterator[Mixed]:
    """It is loaded, and has answered a chat."""
    named = {name: str(directory) for name, directory in adapters.items()}
    config = load_config(None, {**SETTINGS, "engine.vllm.model": str(model), "engine.vllm.adapters": named})
    backend = OneVllm(config)
    # The engine sets variables of vLLM's.
    with mock.patch.dict(os.environ):
        with serving(config, backend, [Mount("/own", app=backend.own_server)]) as running:
            chat = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            with warnings.catch_warnings(action="ignore"):
                answer = post(f"{running.url}/v1/chat/completions", json=chat, timeout=STARTED_WITHIN_S)
            assert answer.status_code == 200, answer.text
            yield Mixed(config, running, backend)
        backend.engine.close()
