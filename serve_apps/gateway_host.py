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
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from actors.collector.pages import Page, ServePages
from actors.garbage import collect_when_quiet
from headway.config import GatewaySettings, HeadwayConfig
from serve_apps.http_server import HttpServer, WithoutLifespan
from serve_apps.model_gateway import ModelGateway

logger = logging.getLogger("ray.serve")
ANSWER_WITHIN_S = 2.0
"""How long a page waits for other gateways."""


def _place() -> str:
    """The application and the node of this replica."""
    return f"{serve.get_replica_context().app_name} {ray.get_runtime_context().get_node_id()}"


class GatewayReplica:
    """What a replica of either gateway has: its models by application, its own server, pages for others.

    `of` names the application where there are several.
    """

    _started = False

    def __init__(self) -> None:
        self._models: dict[str, ModelGateway] = {}

    async def _begin(self, serving: ASGIApp, gateway: GatewaySettings) -> None:
        self._serving = serving
        # While Serve replaces a gateway, both serve; as two of one node do.
        self._server = HttpServer(
            serving, gateway.host, gateway.port, place=_place(), tls=gateway.tls, among=gateway.replicas
        )
        await self._server.start()
        self._collecting = asyncio.create_task(
            collect_when_quiet(lambda: sum(each.in_flight for each in self._models.values()))
        )
        self._started = True

    def __serve_build_asgi_app__(self) -> ASGIApp:
        # The own server runs the app's lifespan; through Serve's ingress it would begin a second time.
        return WithoutLifespan(self._serving)

    async def addresses(self) -> Sequence[str]:
        """Where the own server listens, as the settings name the host."""
        return (self._server.address,)

    async def scraped(self, of: str = "") -> Page:
        """`ModelGateway.scraped`, as are the following."""
        return _page(self._model(of).scraped())

    async def counted(self, accept: str, of: str = "") -> Page:
        """The metrics for a page of another gateway."""
        return _page(self._model(of).counted(accept))

    async def figures(self, of: str = "") -> Page:
        """What the live page shows, for another's."""
        return _page(self._model(of).figures())

    async def silent(self) -> Page:
        """By application the replicas that make no progress on requests from here (`Silences.now`)."""
        return _page(json.dumps({of: model.silent() for of, model in self._models.items()}).encode())

    async def kept(self, request_id: str, of: str = "") -> Page:
        """The records of a request."""
        return _page(self._model(of).kept(request_id))

    async def recent(self, seconds: float, of: str = "") -> Page:
        """The latest requests."""
        return _page(self._model(of).recent(seconds))

    def _model(self, of: str) -> ModelGateway:
        found = self._models.get(of) if of else next(iter(self._models.values()), None)
        if found is None:
            raise RuntimeError(f"this gateway does not serve {of or 'a model'} yet")
        return found

    def _join(self, model: ModelGateway, replicas: int, of: str = "") -> None:
        """Show what all of `replicas` gateways count, where they are several."""
        context = serve.get_replica_context()
        if context.world_size > replicas:
            text = (
                "%d gateways run, and gateway.replicas is %d: /metrics and limits of keys are those of each"
            )
            logger.warning(text, context.world_size, replicas)
        if replicas > 1:
            pages = ServePages(context.app_name, ANSWER_WITHIN_S, of)
            node = ray.get_runtime_context().get_node_id()
            model.join(context.replica_id.unique_id, node, pages.ask)

    async def __del__(self) -> None:
        if not self._started:
            return
        self._collecting.cancel()
        for each in self._models.values():
            each.end_live()
        await self._server.stop()
        await asyncio.gather(*(each.close() for each in self._models.values()))


@serve.ingress()
class Gateway(GatewayReplica):
    """The front door of one application. `others` are deployments that only live and die with it."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        config: HeadwayConfig,
        engines: Mapping[str, DeploymentHandle[Any]],
        others: Sequence[DeploymentHandle[Any]] = (),
    ) -> None:
        super().__init__()
        self._others = others
        application = serve.get_replica_context().app_name
        model = self._models[application] = ModelGateway(config, engines, application)
        self._join(model, config.gateway.replicas)
        await self._begin(model.app, config.gateway)


def _page(text: bytes) -> Page:
    """What this replica says."""
    replica = serve.get_replica_context().replica_id.unique_id
    return Page(replica, ray.get_runtime_context().get_node_id(), text.decode())
