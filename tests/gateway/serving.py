"""A gateway on a real uvicorn, in a thread of this process, on a free port of loopback."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import httpx
import uvicorn
from starlette.routing import BaseRoute

from headway.config import HeadwayConfig
from serve_apps.gateway.app import GatewayApp, make_app
from serve_apps.gateway.backend import Backend

DEADLINE_S = 20.0

post = partial(httpx.post, timeout=60.0)
"""A busy machine is no reason to fail."""


@dataclass(frozen=True)
class Running:
    """A gateway that answers."""

    app: GatewayApp
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextlib.contextmanager
def serving(config: HeadwayConfig, backend: Backend, routes: Sequence[BaseRoute] = ()) -> Iterator[Running]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = make_app(config, backend, routes)
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        until(lambda: server.started)
        yield Running(app, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        listener.close()


def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds; an assertion fails when it does not in time."""
    end_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)
