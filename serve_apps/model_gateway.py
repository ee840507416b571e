"""One model at a gateway: its application of the API over its replicas, and what that does on the side."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client import generate_latest
from ray.serve.handle import DeploymentHandle

from actors.applications import ApplicationStore
from actors.collector.request_list import encode
from actors.planning.settings import follow_slo
from headway.config import HeadwayConfig
from headway.planning import Role
from headway.planning.silence import Silence
from serve_apps.access import Access
from serve_apps.control_api import control_routes, scaling_routes
from serve_apps.control_plane import the_control_plane, the_scaling
from serve_apps.gateway.admission import Quotas
from serve_apps.gateway.app import make_app
from serve_apps.gateway.fleet import Ask
from serve_apps.routed.metrics import RoutingMetrics
from serve_apps.serve_backend import ServeBackend


class ModelGateway:
    """Made and used on one event loop. `engines` are the deployments of `application`, by role.

    `access` and `quotas` are those of a gateway of many models.
    """

    def __init__(
        self,
        config: HeadwayConfig,
        engines: Mapping[str, DeploymentHandle[Any]],
        application: str,
        access: Access | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.spillover = config.spillover
        """The deployment that takes what finds no place here."""
        self._backend = ServeBackend(config, {Role(role): handle for role, handle in engines.items()})
        plane = the_control_plane(config, application)
        routes = [*control_routes(plane), *scaling_routes(the_scaling(config, application))]
        self.app = make_app(
            config,
            self._backend,
            routes,
            plane=plane,
            routing=lambda: self._backend.routing().seen(),
            access=access,
            quotas=quotas,
        )
        self.app.state.registry.register(RoutingMetrics(config.model, self._backend.routing))
        self._tasks = (
            asyncio.create_task(follow_slo(ApplicationStore(application), self.app.state.set_slo)),
            asyncio.create_task(self._backend.silences.run()),
        )

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.app.state.traffic.places.taken

    def join(self, name: str, node: str, ask: Ask) -> None:
        """Be at one of several gateways, which has this name and is on this node."""
        self.app.state.fleet.join(name, node, ask)

    def scraped(self) -> bytes:
        """The metrics as Prometheus' text."""
        return generate_latest(self.app.state.registry)

    def counted(self, accept: str) -> bytes:
        """The metrics for a page of another gateway, in the form that is accepted."""
        return self.app.state.fleet.counted(accept)

    def figures(self) -> bytes:
        """What the live page shows of this gateway, for another's."""
        return self.app.state.fleet.figures(self._backend.routing().seen())

    def silent(self) -> Sequence[Silence]:
        """The replicas that make no progress on requests from here (`Silences.now`)."""
        return self._backend.silences.now()

    def kept(self, request_id: str) -> bytes:
        """The records of a request that this gateway has."""
        return self.app.state.fleet.kept(request_id)

    def recent(self, seconds: float) -> bytes:
        """The requests of the last `seconds`, one by one (`actors.collector.request_list.encode`)."""
        return encode(self.app.state.metrics.log.recent(seconds))

    def end_live(self) -> None:
        """End the streams of the live page, for which a server that stops would wait."""
        if self.app.live is not None:
            self.app.live.end()

    def end_held(self, why: str) -> None:
        """End requests that wait for a replica, as none comes any more."""
        self._backend.end_held(why)

    async def close(self) -> None:
        """Do nothing any more."""
        for task in self._tasks:
            task.cancel()
        self.end_live()
        await self._backend.close()
        if (tracing := self.app.state.tracing) is not None:
            await asyncio.to_thread(tracing.export.close)
