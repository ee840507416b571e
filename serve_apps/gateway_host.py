"""Serve deployment `Gateway`: the OpenAI app on its own HTTP server in the replica, and as Serve's ingress.

The own server takes the client's request straight into the process that holds the handles: one hop less
than through Serve's proxy, which costs most of the CPU of a stream. Where there is a proxy all the same
(`serve run` starts one), it reaches the very same app through Serve's ingress. A port that is taken, most
often by that proxy, is no reason to fail: the next free one is used, and logged.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
import uvicorn
from prometheus_client import generate_latest
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.collector.exposition import encode
from actors.planning.settings import follow_slo
from actors.store import InternalKvStore
from headway.config import HeadwayConfig, TlsSettings
from headway.planning import Role
from serve_apps.control_plane import control_plane_routes, the_control_plane
from serve_apps.gateway.app import make_app
from serve_apps.listener import Listener, open_listener
from serve_apps.routed.metrics import RoutingMetrics
from serve_apps.serve_backend import ServeBackend
from serve_apps.timed_protocol import timed
from serve_apps.tls import Certificate

logger = logging.getLogger("ray.serve")
POLL_S = 0.01
LAST_REQUESTS_S = 0.5
HANDED_OVER_WITHIN_S = 60.0
"""How long a gateway that holds the port may take to hand it over, or to end."""


class HttpServer:
    """Serves `app` from `start` until `stop`, which lets requests in flight finish.

    With a `place`, the next one there serves at the same address, see `listener`.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        place: str | None = None,
        tls: TlsSettings | None = None,
        headers_within_s: float = 20.0,
    ) -> None:
        self.host = host
        self.port = port
        self._place = place
        self._listener: Listener | None = None
        self._certificate = None if tls is None else Certificate(tls)
        settings = uvicorn.Config(
            app,
            http=timed(headers_within_s),
            # No route speaks WebSocket, and an upgrade that nobody makes would leave its request unanswered.
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        settings.load()
        settings.ssl = None if self._certificate is None else self._certificate.context
        self._server = uvicorn.Server(settings)
        self._task: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Scheme, host and the port that it came to be."""
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        """Return when it answers. OSError when the host is none of ours, or every port is taken."""
        listener = await open_listener(self.host, self.port, self._place, HANDED_OVER_WITHIN_S)
        self._listener, wished = listener, self.port
        self.port = listener.clients.getsockname()[1]
        if wished not in (0, self.port):
            logger.warning("gateway: port %d is taken, listening on %s instead", wished, self.address)
        else:
            logger.info("gateway: listening on %s", self.address)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener.clients]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the server on {self.address} ended at once")
            await asyncio.sleep(POLL_S)
        if self._certificate is not None:
            self._renewing = asyncio.create_task(self._certificate.follow())

    async def stop(self) -> None:
        """Accept nothing new, and return when what is in flight has ended."""
        if self._renewing is not None:
            self._renewing.cancel()
        if self._listener is not None:
            await self._listener.close()
        if self._task is not None:
            for server in self._server.servers:
                server.close()
            # Who has just connected sends its request; uvicorn would hang up on it.
            await asyncio.sleep(LAST_REQUESTS_S)
            self._server.should_exit = True
            await self._task


def _place() -> str:
    """The application and the node of this replica."""
    return f"{serve.get_replica_context().app_name} {ray.get_runtime_context().get_node_id()}"


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
        plane = the_control_plane(config)
        routes = control_plane_routes(config, plane)
        self._serving = make_app(
            config, self._backend, routes, plane=plane, routing=lambda: self._backend.routing().seen()
        )
        self._serving.state.registry.register(RoutingMetrics(config.model, self._backend.routing))
        gateway = config.gateway
        # While Serve replaces a gateway, both serve; as two of one node do.
        self._server = HttpServer(
            self._serving,
            gateway.host,
            gateway.port,
            place=_place(),
            tls=gateway.tls,
            headers_within_s=gateway.headers_within_s,
        )
        await self._server.start()
        self._slo = asyncio.create_task(follow_slo(InternalKvStore(), self._serving.state.set_slo))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # The own server runs the app's lifespan; through Serve's ingress it would begin a second time.
        return WithoutLifespan(self._serving)

    async def addresses(self) -> Sequence[str]:
        """Where the own server listens, as the settings name the host."""
        return (self._server.address,)

    async def scraped(self) -> tuple[str, str]:
        """This replica's id, and the metrics as Prometheus' text."""
        state = self._serving.state
        return serve.get_replica_context().replica_id.unique_id, generate_latest(state.registry).decode()

    async def recent(self, seconds: float) -> str:
        """The requests of the last `seconds`, one by one (`actors.collector.exposition.encode`)."""
        return encode(self._serving.state.metrics.log.recent(seconds)).decode()

    async def __del__(self) -> None:
        self._slo.cancel()
        if self._serving.live is not None:
            self._serving.live.end()
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
