"""Serve deployment `Gateway`: the OpenAI app on its own HTTP server in the replica, and as Serve's ingress.

The own server takes the client's request straight into the process that holds the handles: one hop less
than through Serve's proxy, which costs most of the CPU of a stream. Where there is a proxy all the same
(`serve run` starts one), it reaches the very same app through Serve's ingress. A port that is taken, most
often by that proxy, is no reason to fail: the next free one is used, and logged.
"""

import asyncio
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, cast

import ray
import uvicorn
from prometheus_client import generate_latest
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.collector.exposition import encode
from actors.collector.pages import Page, ServePages
from actors.planning.settings import follow_slo
from actors.store import InternalKvStore
from headway.config import GatewaySettings, HeadwayConfig, TlsSettings
from headway.planning import Role
from serve_apps.control_plane import control_plane_routes, the_control_plane
from serve_apps.gateway.app import make_app
from serve_apps.listener import Listener, open_listener
from serve_apps.routed.metrics import RoutingMetrics
from serve_apps.serve_backend import ServeBackend
from serve_apps.timed_protocol import Limits, TimedProtocol, let_stalled_go, timed
from serve_apps.tls import Certificate

logger = logging.getLogger("ray.serve")
POLL_S = 0.01
LAST_REQUESTS_S = 0.5
ANSWER_WITHIN_S = 2.0
"""How long a page waits for other gateways."""
PASS_S, TURNS_OF_ONE = 0.001, 8
"""How long others of the node have for the next client; turns of one until turns grow by one."""
MOST_UNSENT_BYTES = 128 * 2**10
"""Of a connection in the kernel; what was sent and not yet acknowledged is not bounded by it."""
HANDED_OVER_WITHIN_S = 60.0
"""How long a gateway that holds the port may take to hand it over, or to end."""
KEPT_ALIVE_S = 75
"""An idle connection stays open for longer than clients reuse theirs (5 s in httpx, 15 s in aiohttp): where
both end it at 5 s, a busy client sends its request into one that is closing."""


class HttpServer:
    """Serves `app` from `start` until `stop`, which lets requests in flight finish.

    With a `place`, the next one there serves at the same address, see `listener`. With `among` others that
    accept there too it takes turns: one that took all clients that wait would leave the others idle, for as
    long as connections are kept. Turns grow while clients go on waiting.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        place: str | None = None,
        tls: TlsSettings | None = None,
        limits: GatewaySettings | None = None,
        among: int = 1,
    ) -> None:
        self.host = host
        self.port = port
        self._among = among
        self._accepting: set[asyncio.Task[None]] = set()
        self._next_turn: asyncio.TimerHandle | None = None
        self._full_turns = 0
        self._place = place
        self._listener: Listener | None = None
        self._certificate = None if tls is None else Certificate(tls)
        given = limits or GatewaySettings()
        self._limits = Limits(
            headers_within_s=given.headers_within_s,
            taken_within_s=given.taken_within_s,
            most=given.max_connections,
        )
        settings = uvicorn.Config(
            app,
            http=timed(self._limits),
            # No route speaks WebSocket, and an upgrade that nobody makes would leave its request unanswered.
            ws="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEPT_ALIVE_S,
        )
        settings.load()
        settings.ssl = None if self._certificate is None else self._certificate.context
        self._server = uvicorn.Server(settings)
        self._task: asyncio.Task[None] | None = None
        self._beside: list[asyncio.Task[None]] = []

    @property
    def address(self) -> str:
        """Scheme, host and the port that it came to be."""
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def start(self) -> None:
        """Return when it answers. OSError when the host is none of ours, or every port is taken."""
        listener = await open_listener(self.host, self.port, self._place, HANDED_OVER_WITHIN_S)
        self._listener, wished = listener, self.port
        # Connections inherit it. What a client does not take waits here, where it is seen, not in the kernel.
        listener.clients.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MOST_UNSENT_BYTES)
        self.port = listener.clients.getsockname()[1]
        if wished not in (0, self.port):
            logger.warning("gateway: port %d is taken, listening on %s instead", wished, self.address)
        else:
            logger.info("gateway: listening on %s", self.address)
        sockets = [] if self._among > 1 else [listener.clients]
        self._task = asyncio.create_task(self._server.serve(sockets=sockets))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise OSError(f"the server on {self.address} ended at once")
            await asyncio.sleep(POLL_S)
        if self._among > 1:
            self._look(listener.clients)
        connections = cast("set[TimedProtocol]", self._server.server_state.connections)
        stalled = let_stalled_go(connections, self._limits.taken_within_s)
        self._beside.append(asyncio.create_task(stalled))
        if self._certificate is not None:
            self._beside.append(asyncio.create_task(self._certificate.follow()))

    async def stop(self) -> None:
        """Accept nothing new, and return when what is in flight has ended."""
        if self._listener is not None:
            await self._listener.close()
        if self._task is not None:
            if self._listener is not None and self._among > 1:
                if self._next_turn is not None:
                    self._next_turn.cancel()
                asyncio.get_running_loop().remove_reader(self._listener.clients)
                self._listener.clients.close()
            for server in self._server.servers:
                server.close()
            # Who has just connected sends its request; uvicorn would hang up on it.
            await asyncio.sleep(LAST_REQUESTS_S)
            self._server.should_exit = True
            await self._task
        for task in self._beside:
            task.cancel()

    def _accept(self, clients: socket.socket) -> None:
        """Take as many clients as it is our turn for, then leave the next ones to others for a while."""
        loop = asyncio.get_running_loop()
        for _ in range(1 + self._full_turns // TURNS_OF_ONE):
            try:
                connection, _ = clients.accept()
            except OSError:
                # None is left, or there are too many files: they wait.
                self._full_turns = 0
                break
            task = loop.create_task(self._connect(connection))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
        else:
            self._full_turns += 1
        loop.remove_reader(clients)
        self._next_turn = loop.call_later(PASS_S, self._look, clients)

    def _look(self, clients: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(clients, self._accept, clients)

    async def _connect(self, connection: socket.socket) -> None:
        settings: Any = self._server.config
        protocol = partial(
            settings.http_protocol_class,
            config=settings,
            server_state=self._server.server_state,
            app_state=self._server.lifespan.state,
        )
        loop = asyncio.get_running_loop()
        with suppress(OSError):
            await loop.connect_accepted_socket(protocol, connection, ssl=settings.ssl)


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
        self._join(gateway.replicas)
        # While Serve replaces a gateway, both serve; as two of one node do.
        self._server = HttpServer(
            self._serving,
            gateway.host,
            gateway.port,
            place=_place(),
            tls=gateway.tls,
            among=gateway.replicas,
            limits=gateway,
        )
        await self._server.start()
        self._slo = asyncio.create_task(follow_slo(InternalKvStore(), self._serving.state.set_slo))

    def _join(self, replicas: int) -> None:
        """Show what all of `replicas` gateways count, where they are several."""
        context = serve.get_replica_context()
        if context.world_size > replicas:
            text = (
                "%d gateways run, and gateway.replicas is %d: /metrics and limits of keys are those of each"
            )
            logger.warning(text, context.world_size, replicas)
        if replicas > 1:
            node, pages = (
                ray.get_runtime_context().get_node_id(),
                ServePages(context.app_name, ANSWER_WITHIN_S),
            )
            self._serving.state.fleet.join(context.replica_id.unique_id, node, pages.ask)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # The own server runs the app's lifespan; through Serve's ingress it would begin a second time.
        return WithoutLifespan(self._serving)

    async def addresses(self) -> Sequence[str]:
        """Where the own server listens, as the settings name the host."""
        return (self._server.address,)

    async def scraped(self) -> Page:
        """The metrics as Prometheus' text."""
        return _page(generate_latest(self._serving.state.registry))

    async def counted(self, accept: str) -> Page:
        """The metrics for a page of another gateway, in the form that is accepted."""
        return _page(self._serving.state.fleet.counted(accept))

    async def figures(self) -> Page:
        """What the live page shows of this gateway, for another's."""
        return _page(self._serving.state.fleet.figures(self._backend.routing().seen()))

    async def kept(self, request_id: str) -> Page:
        """The records of a request that this gateway has."""
        return _page(self._serving.state.fleet.kept(request_id))

    async def recent(self, seconds: float) -> Page:
        """The requests of the last `seconds`, one by one (`actors.collector.exposition.encode`)."""
        return _page(encode(self._serving.state.metrics.log.recent(seconds)))

    async def __del__(self) -> None:
        self._slo.cancel()
        if self._serving.live is not None:
            self._serving.live.end()
        await self._server.stop()
        await self._backend.close()
        if (tracing := self._serving.state.tracing) is not None:
            await asyncio.to_thread(tracing.export.close)


def _page(text: bytes) -> Page:
    """What this replica says."""
    replica = serve.get_replica_context().replica_id.unique_id
    return Page(replica, ray.get_runtime_context().get_node_id(), text.decode())


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
