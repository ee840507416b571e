"""Serve deployment `ControlPlane` of a control plane alone: the named actors, and the control API over HTTP.

What a gateway serves beside the OpenAI API is served here without one, behind the same keys:

    /                           `serve_apps.live_page`
    /v1/control, /v1/scaling    `serve_apps.control_api`
    /health                     the process answers
    /ready                      200 while the planner plans: its source answers and its target was seen
    /metrics                    Prometheus text

Its `user_config` holds settings over those of the application, as that of `ControlPlane` does beside a
gateway: those that the planner can take while it runs are in force at once, for others the actors are
replaced. The API is served all the while; its own settings (`gateway`) are those of the application.

A server of its own in the replica, at `gateway.host` and `gateway.port`, as that of the gateway, and the same
application as Serve's ingress, where there is a proxy.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from actors import names
from actors.keeping import Keeper
from actors.names import CallError, NamedActor
from headway.config import ConfigError, HeadwayConfig
from serve_apps.access import Access, Holder, make_access, own_scope
from serve_apps.arguments import control_problems
from serve_apps.control_api import control_routes, scaling_routes
from serve_apps.control_metrics import ControlMetrics, StatusFeed, exposition
from serve_apps.control_plane import (
    DRAINING_MARGIN_S,
    MOST_ONGOING,
    TIMEOUT_S,
    deployment,
    the_control_plane,
    the_scaling,
    with_settings,
)
from serve_apps.faults import Fault, NotFound, response_of, starlette_app
from serve_apps.http_server import HttpServer, WithoutLifespan
from serve_apps.live_page import LivePage

RETRY_AFTER_S = 1
WhyNotReady = Callable[[], Awaitable[str]]
"""Why the planner does not plan; empty while it does."""


class ControlApp:
    """The ASGI application, with its live page. Among several it is a `many_models.Member`."""

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        access: Access,
        waits_for: WhyNotReady,
        control: ControlMetrics,
        live: LivePage | None = None,
    ) -> None:
        self._access, self._waits_for, self._feed, self._live = access, waits_for, control.feed, live
        self.models = (control.model,)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(control)
        own = [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
        ]
        self._app = starlette_app([*own, *routes])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request, or the server's start and end."""
        if scope["type"] == "websocket":
            # No route speaks WebSocket, and none may get around the check of keys.
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http":
            scope = dict(own_scope(scope))
            try:
                scope["user"] = self._access.admit(scope).name
            except Fault as fault:
                await response_of(fault)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def admitted(
        self, scope: Scope, receive: Receive, send: Send, request_id: tuple[bytes, bytes], holder: Holder
    ) -> None:
        """One request of the holder of a key; nothing here is known by the id of a request."""
        del request_id
        await self._app({**scope, "user": holder.name}, receive, send)

    def entry(self, model: str) -> Mapping[str, Any]:
        """The model, as `/v1/models` lists it."""
        return {"id": model, "object": "model"}

    @property
    def in_flight(self) -> int:
        """Requests on the engines, as far as that was known last."""
        loads = (pool.get(key) or 0.0 for pool in self._pools() for key in ("running", "waiting"))
        return int(sum(map(float, loads)))

    async def empty(self) -> str:
        """Asleep while no replica is wanted; else empty."""
        await self._feed.refresh()
        pools = self._pools()
        return "asleep" if pools and not any(pool["desired"] for pool in pools) else ""

    async def waits_for(self) -> str:
        """Why the planner does not plan; empty while it does."""
        return await self._waits_for()

    async def status(self) -> Mapping[str, Any]:
        """What the planner says, or said last; empty before that."""
        await self._feed.refresh()
        return self._feed.document or {}

    async def page(self, accept: str) -> Response:
        """Its metrics, in the form that is accepted."""
        return await exposition(accept, self._registry, self._feed)

    async def record(self, _: Request) -> Response:
        """NotFound: requests do not go through here."""
        raise NotFound("this control plane sees no request")

    def end_live(self) -> None:
        """End the streams of the live page, for which a server that stops would wait."""
        if self._live is not None:
            self._live.end()

    def _pools(self) -> Sequence[Mapping[str, Any]]:
        return list(((self._feed.document or {}).get("pools") or {}).values())

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        reason = await self.waits_for()
        if not reason:
            return JSONResponse({"status": "ready"})
        body = {"status": "not ready", "reason": reason}
        return JSONResponse(body, status_code=503, headers={"retry-after": str(RETRY_AFTER_S)})

    async def _metrics(self, request: Request) -> Response:
        return await self.page(request.headers.get("accept", ""))


async def why_not_planning(application: str = "") -> str:
    """Why the planner still waits for its source or its target, or does not answer; empty once it plans."""
    planner = NamedActor(names.PLANNER, application=application)
    try:
        status = await planner.call("status", timeout_s=TIMEOUT_S)
    except CallError as error:
        return str(error)
    found = status["planner"]
    return str(found["reason"]) if found["state"] in ("waiting", "stopped") else ""


def control_app(config: HeadwayConfig, application: str, access: Access) -> ControlApp:
    """The control API of an application whose engines others run."""
    plane = the_control_plane(config, application, routes=False)
    feed = StatusFeed(plane.status)
    live = LivePage(plane, feed)
    routes = [*control_routes(plane), *scaling_routes(the_scaling(config, application)), *live.routes()]
    waits_for = partial(why_not_planning, application)
    return ControlApp(routes, access, waits_for, ControlMetrics(config.model, feed), live)


@serve.ingress()
class ControlPlaneAlone:
    """Starts the named actors and serves their API; the orderly end of the application ends them."""

    async def __init__(self, config: HeadwayConfig) -> None:  # type: ignore[misc] # Serve awaits it
        self._application = serve.get_replica_context().app_name
        self._serving = control_app(config, self._application, make_access(config.gateway))
        self._config, self._keeper = config, Keeper(routes=False)
        gateway = config.gateway
        self._server = HttpServer(self._serving, gateway.host, gateway.port, tls=gateway.tls)
        await self._server.start()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return WithoutLifespan(self._serving)

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Run by the settings with these over them. ConfigError where they are wrong or cannot work alone."""
        config = with_settings(self._config, user_config)
        if problems := control_problems(config):
            raise ConfigError(f"user_config: {'; '.join(problems)}")
        await self._keeper.serve({self._application: config})

    async def addresses(self) -> Sequence[str]:
        """Where the own server listens, as the settings name the host."""
        return (self._server.address,)

    async def __del__(self) -> None:
        self._serving.end_live()
        await self._server.stop()
        await self._keeper.close()


def control_application(config: HeadwayConfig) -> serve.Application:
    """The control plane alone, with a server of its own at `gateway.host` and `gateway.port`."""
    # Serve calls `reconfigure`, which starts the actors, only where there is a user_config.
    return control_deployment(ControlPlaneAlone, {}).bind(config)


def control_deployment(kind: type, told: Mapping[str, Any]) -> serve.Deployment:
    """The deployment of a control plane alone; `told` is its `user_config`."""
    return deployment(
        kind,
        name="ControlPlane",
        num_replicas=1,
        user_config=told,
        max_ongoing_requests=MOST_ONGOING,
        graceful_shutdown_timeout_s=DRAINING_MARGIN_S,
        ray_actor_options={"num_cpus": 0},
    )
