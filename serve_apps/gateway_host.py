"""Serve deployment `Gateway`: the OpenAI app on its own HTTP server in the replica, and as Serve's ingress.

The own server takes requests straight into the process that holds the handles: one hop less than through
Serve's proxy, which costs most of the CPU of a stream. Where there is a proxy all the same (`serve run`
starts one), it reaches the same app through Serve's ingress.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from prometheus_client import generate_latest
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from actors.applications import ApplicationStore
from actors.collector.pages import Page, ServePages
from actors.collector.request_list import encode
from actors.garbage import collect_when_quiet
from actors.planning.settings import follow_slo
from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.control_api import control_routes, scaling_routes
from serve_apps.control_plane import the_control_plane, the_scaling
from serve_apps.gateway.app import make_app
from serve_apps.http_server import HttpServer, WithoutLifespan
from serve_apps.routed.metrics import RoutingMetrics
from serve_apps.serve_backend import ServeBackend

logger = logging.getLogger("ray.serve")
ANSWER_WITHIN_S = 2.0
"""How long a page waits for other gateways."""


def _place() -> str:
    """The application and the node of this replica."""
    return f"{serve.get_replica_context().app_name} {ray.get_runtime_context().get_node_id()}"


@serve.ingress()
class Gateway:
    """The front door. `others` are deployments that only live and die with the application."""

    _started = False

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        config: HeadwayConfig,
        engines: Mapping[str, DeploymentHandle[Any]],
        others: Sequence[DeploymentHandle[Any]] = (),
    ) -> None:
        self._others = others
        self._backend = ServeBackend(config, {Role(role): handle for role, handle in engines.items()})
        application = serve.get_replica_context().app_name
        plane = the_control_plane(config, application)
        routes = [*control_routes(plane), *scaling_routes(the_scaling(config, application))]
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
        )
        await self._server.start()
        self._slo = asyncio.create_task(
            follow_slo(ApplicationStore(application), self._serving.state.set_slo)
        )
        self._looking = asyncio.create_task(self._backend.silences.run())
        places = self._serving.state.traffic.places
        self._collecting = asyncio.create_task(collect_when_quiet(lambda: places.taken))
        self._started = True

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

    async def silent(self) -> Page:
        """The replicas that make no progress on requests from here (`Silences.now`)."""
        return _page(json.dumps(self._backend.silences.now()).encode())

    async def kept(self, request_id: str) -> Page:
        """The records of a request that this gateway has."""
        return _page(self._serving.state.fleet.kept(request_id))

    async def recent(self, seconds: float) -> Page:
        """The requests of the last `seconds`, one by one (`actors.collector.request_list.encode`)."""
        return _page(encode(self._serving.state.metrics.log.recent(seconds)))

    async def __del__(self) -> None:
        if not self._started:
            return
        for work in (self._slo, self._looking, self._collecting):
            work.cancel()
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
