"""Serve deployment `Gateway`: the OpenAI app on its own HTTP server in the replica, and as Serve's ingress.

The own server takes the client's request straight into the process that holds the handles: one hop less
than through Serve's proxy, which costs most of the CPU of a stream. Where there is a proxy all the same
(`serve run` starts one), it reaches the very same app through Serve's ingress. A port that is taken, most
often by that proxy, is no reason to fail: the next free one is used, and logged. The address is in the store,
for the actors.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import uvicorn
from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.names import GATEWAY_ADDRESS
from actors.planning.settings import follow_slo
from actors.store import InternalKvStore
from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.control_plane import control_plane_routes
from serve_apps.gateway.app import make_app
from serve_apps.routed.metrics import RoutingMetrics
from serve_apps.serve_backend import ServeBackend

logger = logging.getLogger("ray.serve")
PORTS_TRIED = 100
BACKLOG = 2048
POLL_S = 0.01


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on `host`, on `port` or the first free one after it. OSError if there is none."""
    family, kind, protocol, _, _ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    for candidate in range(port, min(port + PORTS_TRIED, 65_536)):
        listener = socket.socket(family, kind, protocol)
        # Past connections may linger on the port; a listener of now may not.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return listener
    raise OSError(errno.EADDRINUSE, f"no port of {host} from {port} on is free")


class HttpServer:
    """Serves `app` from `start` until `stop`, which lets requests in flight finish."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        self.host = host
        self.port = port
        settings = uvicorn.Config(
            app,
            http="httptools",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._server = uvicorn.Server(settings)
        self._task: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Scheme, host and the port that it came to be."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        """Return when it answers. OSError when the host is none of ours, or every port is taken."""
        listener = listening_socket(self.host, self.port)
        wished, self.port = self.port, listener.getsockname()[1]
        if wished not in (0, self.port):
            logger.warning("gateway: port %d is taken, listening on %s instead", wished, self.address)
        else:
            logger.info("gateway: listening on %s", self.address)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the server on {self.address} ended at once")
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """Accept nothing new, and return when what is in flight has ended."""
        if self._task is not None:
            self._server.should_exit = True
            await self._task


WILDCARDS = {"0.0.0.0", "::"}


@serve.ingress()
class Gateway:
    """The front door. `others` are deployments that only live and die with the application."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        config: HeadwayConfig,
        engines: Mapping[str, DeploymentHandle[Any]],
        others: Sequence[DeploymentHandle[Any]] = (),
    ) -> None:
        self._others = others
        self._backend = ServeBackend(config, {Role(role): handle for role, handle in engines.items()})
        self._serving = make_app(config, self._backend, control_plane_routes(config))
        self._serving.state.registry.register(RoutingMetrics(config.model, self._backend.routing))
        self._server = HttpServer(self._serving, config.gateway.host, config.gateway.port)
        await self._server.start()
        store = InternalKvStore()
        address = self._server.address
        if self._server.host in WILDCARDS:
            node: str = get_node_ip_address()  # type: ignore[no-untyped-call]
            address = f"http://{node}:{self._server.port}"
        store.put(GATEWAY_ADDRESS, address.encode())
        self._slo = asyncio.create_task(follow_slo(store, self._serving.state.set_slo))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # The own server runs the app's lifespan; through Serve's ingress it would begin a second time.
        return WithoutLifespan(self._serving)

    async def addresses(self) -> Sequence[str]:
        """Where the own server listens, as the settings name the host."""
        return (self._server.address,)

    async def __del__(self) -> None:
        self._slo.cancel()
        await self._server.stop()
        await self._backend.close()


class WithoutLifespan:
    """An app whose start and end belong to another server."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass requests on; answer the lifespan protocol without the app."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
