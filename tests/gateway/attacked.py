"""A gateway as a process, to be attacked: its app on its HTTP server, over engines that cost nothing.

`python -m tests.gateway.attacked SECONDS` (the time that slow clients get) prints its port; GET /probe says
what it holds.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import uvloop
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headway.config import HeadwayConfig
from serve_apps.engines.answering.answers import answer, plain
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, Refused, TokenChunk
from serve_apps.gateway.app import GatewayApp, make_app
from serve_apps.gateway.backend import ChunkSink, Readiness, RefusedByEngine, ReplicaLoad, Timeline
from serve_apps.http_server import HttpServer
from serve_apps.timed_protocol import Limits

FIRST_S, NEXT_S = 0.05, 0.01
"""Of every output: time to the first token and between chunks."""
LONG_TOKENS, AT_ONCE = 1000, 500
"""Outputs of more than so many tokens come in chunks of so many: what fills buffers soon."""


class PacedBackend:
    """Answers at the same pace whatever is asked; `open` outputs are being made."""

    def __init__(self) -> None:
        self.open = 0

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """An answer of `max_tokens` words, made here as a replica would make it."""
        del timeline, sink
        try:
            async with aclosing(answer(request, self._words, plain, "paced")) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Refused as refused:
            raise RefusedByEngine(refused.status, refused.body) from refused

    async def _words(self, request: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
        left, each = request.max_tokens, AT_ONCE if request.max_tokens > LONG_TOKENS else 1
        wait_s = FIRST_S
        self.open += 1
        try:
            while left > 0:
                await asyncio.sleep(wait_s)
                wait_s, count = NEXT_S, min(each, left)
                left -= count
                yield TokenChunk(" token" * count, count, None if left else "length")
        finally:
            self.open -= 1

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """Nothing of use."""
        return AuxiliaryAnswer(200, b"{}")

    def ready(self) -> Readiness:
        return Readiness(ok=True)

    def replicas(self) -> Sequence[ReplicaLoad]:
        return ()


def held(app: GatewayApp, backend: PacedBackend) -> Mapping[str, int]:
    """What the process holds."""
    return {
        "requests": app.state.traffic.requests,
        "outputs": backend.open,
        "body_bytes": app.state.bodies.held,
        "tasks": len(asyncio.all_tasks()),
        "fds": len(os.listdir("/proc/self/fd")),
    }


async def serve(config: HeadwayConfig, limit_s: float) -> None:
    """Until the process is ended; clients that keep it waiting have `limit_s`."""
    backend = PacedBackend()

    async def probe(_: Request) -> Response:
        return JSONResponse(held(app, backend))

    app = make_app(config, backend, [Route("/probe", probe)])
    app.state.bodies.within_s = limit_s
    limits = Limits(headers_within_s=limit_s, taken_within_s=limit_s)
    server = HttpServer(app, "127.0.0.1", 0, limits=limits)
    await server.start()
    # As Serve does with its replicas (`builders.LEAN_REPLICA`): a full collection takes 0.2 s otherwise.
    gc.collect()
    gc.freeze()
    sys.stdout.write(json.dumps({"port": server.port}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(HeadwayConfig(model="m"), float(sys.argv[1])))
