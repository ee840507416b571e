"""A gateway on a real uvicorn, in a thread of this process, on a free port of loopback."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import uvicorn
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.config import HeadwayConfig
from serve_apps.gateway.app import GatewayApp, make_app
from serve_apps.gateway.backend import Backend
from tests.engines.virtual_loop import run
from tests.patience import PATIENCE_S, until

get, post = partial(httpx.get, timeout=PATIENCE_S), partial(httpx.post, timeout=PATIENCE_S)


@dataclass
class Leaving:
    """An application, and its requests whose clients may have the whole answer while they still end."""

    served: GatewayApp
    requests: set[int] = field(default_factory=set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self.requests.add(id(scope))
            await send(message)

        try:
            await self.served(scope, receive, sent)
        finally:
            self.requests.discard(id(scope))


@dataclass(frozen=True)
class Running:
    """A gateway that answers.

    Looking at it, and asking it again, waits until it has counted all that it has answered.
    """

    leaving: Leaving
    listens_at: int

    @property
    def app(self) -> GatewayApp:
        until(lambda: not self.leaving.requests)
        return self.leaving.served

    @property
    def port(self) -> int:
        until(lambda: not self.leaving.requests)
        return self.listens_at

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(config: HeadwayConfig, backend: Backend, routes: Sequence[BaseRoute] = ()) -> Iterator[Running]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = Leaving(make_app(config, backend, routes))
    # A connection waits for its next request as long as the test lets it.
    limits = {"timeout_keep_alive": int(PATIENCE_S), "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, **limits))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield Running(app, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listener.close()


def ask_in_no_time(
    config: HeadwayConfig, backend: Backend, path: str, fields: Mapping[str, Any]
) -> tuple[httpx.Response, GatewayApp]:
    """What a new gateway answers, without a socket, on a clock that jumps: a pause takes no time."""

    async def ask() -> tuple[httpx.Response, GatewayApp]:
        app = make_app(config, backend, clock=asyncio.get_running_loop().time)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g") as client:
            return await client.post(path, json=fields), app

    answer: tuple[httpx.Response, GatewayApp] = run(ask())
    return answer


class Answer:
    """What a request over ASGI came to."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message["body"]


async def asked(app: ASGIApp, fields: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Answer:
    """The answer to a completion, asked without a socket, on the clock of this event loop."""
    messages = [{"type": "http.request", "body": json.dumps(fields).encode(), "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else await asyncio.Future()

    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": raw, "root_path": ""}
    answer = Answer()
    await app(scope, receive, answer.send)
    return answer
