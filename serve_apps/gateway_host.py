"""Serve deployment `Gateway`: the OpenAI app on its own HTTP server in the replica, and as Serve's ingress.

The own server takes the client's request straight into the process that holds the handles: one hop less
than through Serve's proxy, which costs most of the CPU of a stream. Where there is a proxy all the same
(`serve run` starts one), it reaches the very same app through Serve's ingress. A port that is taken, most
often by that proxy, is no reason to fail: the next free one is used, and said so. Where it listens stands
in the store, for the actors.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from ray.util import get_node_ip_address
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.collector.addresses import GATEWAY_ADDRESS
from actors.slo_watch import follow_slo
from actors.store import InternalKvStore
from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.actor_control_plane import control_plane_routes
from serve_apps.gateway.app import make_app
from serve_apps.http_server import HttpServer
from serve_apps.routed.metrics import RoutingMetrics
from serve_apps.serve_backend import ServeBackend

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
        store.put(GATEWAY_ADDRESS, self._reachable().encode())
        self._slo = asyncio.create_task(follow_slo(store, self._serving.state.set_slo))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return WithoutLifespan(self._serving)

    async def addresses(self) -> Sequence[str]:
        """Where the own server listens, as the settings name the host."""
        return (self._server.address,)

    async def __del__(self) -> None:
        self._slo.cancel()
        await self._server.stop()
        await self._backend.close()

    def _reachable(self) -> str:
        if self._server.host not in WILDCARDS:
            return self._server.address
        node: str = get_node_ip_address()  # type: ignore[no-untyped-call]
        return f"http://{node}:{self._server.port}"


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
