"""A small OpenAI-like server over real HTTP, in a thread of its own, that does as the tests tell it."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.http_thread import served

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """What it was asked, and how it answers completions."""

    handler: Handler
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    disconnected: threading.Event = field(default_factory=threading.Event)
    models: tuple[str, ...] = ("test-model",)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        try:
            return await self.handler(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.disconnected.set()
            raise

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})


@contextmanager
def serving(handler: Handler, extra: tuple[web.RouteDef, ...] = ()) -> Iterator[Server]:
    server = Server(handler=handler)
    app = web.Application()
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_get("/v1/models", server.list_models)
    app.router.add_routes(extra)
    with served(app, handler_cancellation=True) as (server.url, _):
        yield server


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(words: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": words, "finish_reason": finish}]}


def stream(
    *, first_s: float = 0.0, gap_s: float = 0.0, tokens_per_chunk: int = 1, limit: int | None = None
) -> Handler:
    """Streams max_tokens tokens (or `limit`), then usage and [DONE]."""

    async def handler(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        count = min(body["max_tokens"], limit or body["max_tokens"])
        response = await begin(request)
        await asyncio.sleep(first_s)
        for sent in range(0, count, tokens_per_chunk):
            if sent:
                await asyncio.sleep(gap_s)
            await response.write(event(**text("word " * min(tokens_per_chunk, count - sent))))
        await response.write(event(**text("", "length")))
        await response.write(event(choices=[], usage=usage(body, count)))
        await response.write(b"data: [DONE]\n\n")
        return response

    return handler


def usage(body: dict[str, Any], output_tokens: int) -> dict[str, int]:
    prompt = body["prompt"]
    length = len(prompt) if isinstance(prompt, list) else len(prompt.split())
    return {"prompt_tokens": length, "completion_tokens": output_tokens}


def script(*pieces: bytes, status: int = 200) -> Handler:
    """Sends these bytes, then ends."""

    async def handler(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if status != 200:
            return web.Response(status=status, body=b"".join(pieces))
        response = await begin(request)
        for piece in pieces:
            await response.write(piece)
        return response

    return handler


async def begin(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def never(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Answers the headers and nothing more."""
    response = await begin(request)
    await asyncio.sleep(3600)
    return response
