"""The gateway as one ASGI application.

    app = make_app(config, backend)        # raises ConfigError, ProfileError
    app.state.set_slo(ttft_s=0.2, itl_s=0.02)

Access is checked first (`serve_apps.access`).

Requests for output then go straight to their endpoint, without routing or middleware; everything else is a
Starlette application. Every response carries `x-request-id` (the client's own, where it is a sane one) and
`x-headway-engine`. `/metrics/requests?seconds=S` is for our own collector: the latest requests, one by one.
"""

import asyncio
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from actors.collector.request_list import encode
from headway.config import HeadwayConfig, Right
from serve_apps.access import Access, Holder, make_access, own_scope
from serve_apps.control_metrics import ControlMetrics, StatusFeed, exposition
from serve_apps.engines.protocol import AuxiliaryCall
from serve_apps.faults import RETRY_AFTER_S, Fault, starlette_app
from serve_apps.gateway import openapi
from serve_apps.gateway.admission import Quotas
from serve_apps.gateway.backend import Backend, BackendError, fault_of
from serve_apps.gateway.generation import Generation
from serve_apps.gateway.reading import model_named
from serve_apps.gateway.responses import ENDPOINTS, Channel, Header, HeaderList
from serve_apps.gateway.state import GatewayState, make_state
from serve_apps.live_page import LivePage, gateway_view

if TYPE_CHECKING:
    from serve_apps.control_plane import ActorControlPlane

PAGE_EVERY_S = 0.1
"""Seconds between two pages of metrics at the least."""


class Pages:
    """Pages that need no key and cost milliseconds. One page answers all requests since the last was begun.

    So a client that asks all the time takes some percent of the event loop at most.
    """

    def __init__(self, make: Callable[[str], Awaitable[Response]]) -> None:
        self._make = make
        self._next: dict[str, asyncio.Task[Response]] = {}
        self._due_s = 0.0

    async def page(self, accept: str) -> Response:
        """In the form that is accepted. What `make` raises."""
        _, form = choose_encoder(accept)
        if (task := self._next.get(form)) is None:
            # In a context of its own: Serve cancels with a request whatever was called in its context.
            task = self._next[form] = asyncio.create_task(self._made(form, accept), context=Context())
        return await asyncio.shield(task)

    async def _made(self, form: str, accept: str) -> Response:
        now_s = asyncio.get_running_loop().time()
        begin_s = max(now_s, self._due_s)
        self._due_s = begin_s + PAGE_EVERY_S
        await asyncio.sleep(begin_s - now_s)
        del self._next[form]
        return await self._make(accept)


class Service:
    """The endpoints that ask about the gateway instead of the model."""

    def __init__(self, state: GatewayState, control: ControlMetrics | None = None) -> None:
        self._state = state
        self._feed = None if control is None else control.feed
        self._pages = Pages(self._page)
        self._shown = CollectorRegistry()
        self._shown.register(state.fleet)
        if control is not None:
            self._shown.register(control)

    async def models(self, _: Request) -> Response:
        """The model and its adapters, as a list."""
        identity = self._state.identity
        return JSONResponse({"object": "list", "data": [identity.entry(name) for name in identity.names]})

    async def model(self, request: Request) -> Response:
        """One model by its name."""
        name, identity = request.path_params["name"], self._state.identity
        identity.check(name)
        return JSONResponse(identity.entry(name))

    async def health(self, _: Request) -> Response:
        """200: the process lives."""
        return JSONResponse({"status": "ok", "engine": self._state.identity.engine})

    async def ready(self, _: Request) -> Response:
        """200 while every pool has a replica, and the router has answered where it places requests, else
        503 with the reason; of `headway attach`: while it plans.
        """
        readiness = self._state.traffic.backend.ready()
        if readiness.ok:
            return JSONResponse({"status": "ready"})
        wait_s = math.ceil(RETRY_AFTER_S)
        body = {"status": "not ready", "reason": readiness.reason}
        return JSONResponse(body, status_code=503, headers={"retry-after": str(wait_s)})

    async def metrics(self, request: Request) -> Response:
        """Prometheus' text, or OpenMetrics (docs/reference/metrics.md): at most ten pages a second, each for
        all who wait for one.
        """
        return await self.page(request.headers.get("accept", ""))

    async def page(self, accept: str) -> Response:
        """The same in the form that is accepted."""
        return await self._pages.page(accept)

    async def status(self) -> Mapping[str, Any]:
        """What the planner says, or said last; empty before that."""
        if self._feed is None:
            return {}
        await self._feed.refresh()
        return self._feed.document or {}

    async def _page(self, accept: str) -> Response:
        own = await exposition(accept, self._shown, self._feed)
        return await self._state.fleet.with_others(own, accept)

    async def requests(self, request: Request) -> Response:
        """For the collector of measurements: the requests of the last `seconds=S` one by one, as times,
        token counts, SLOs of their own and classes of arrivals, token counts and cached tokens of
        completions; the latest 200,000 are kept.
        """
        text = request.query_params.get("seconds", "inf")
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if math.isnan(seconds):
            raise HTTPException(400, f"seconds: {text!r} is no number")
        return Response(encode(await self._state.fleet.requests(seconds)), media_type="application/json")

    async def record(self, request: Request) -> Response:
        """`{"requests": […]}`: the requests with this `x-request-id`, of whichever gateway
        (docs/reference/results.md#a-request); 404 without one. A key that may not observe finds those that it
        has asked itself.
        """
        asked, holder = request.path_params["id"], request.scope["holder"]
        found = await self._state.fleet.records(asked)
        if Right.OBSERVE not in holder.rights:
            found = [each for each in found if each["key"] == holder.name]
        if not found:
            raise HTTPException(404, f"no gateway has a request {asked!r} (any more)")
        return JSONResponse({"requests": list(found)}, headers={"cache-control": "no-store"})

    async def auxiliary(self, request: Request) -> Response:
        """Answered by an engine: nothing of it is counted as a request for output."""
        state, holder = self._state, request.scope["holder"]
        async with state.bodies.read(request.headers.raw, request.receive) as body:
            question = AuxiliaryCall(request.method, request.url.path, body)
            holder.check_model((body and model_named(body)) or state.identity.model)
        with state.slots(1, holder):
            try:
                status, said = await state.traffic.backend.auxiliary(question)
            except BackendError as error:
                raise fault_of(error) from error
        return Response(said, status_code=status, media_type="application/json")

    async def elsewhere(self, _: Request) -> Response:
        """Generation is served before routing; what comes here had another root path."""
        raise HTTPException(404)


AUXILIARY_CALLS = (
    ("POST", "/v1/embeddings"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/version"),
)
"""Endpoints of vLLM's server that make no output."""


def make_service(
    service: Service, extra_routes: Sequence[BaseRoute], model: str, *, keys: bool = False
) -> Starlette:
    """The Starlette application of everything but generation; `keys`: there are some."""
    routes = [
        Route("/v1/models", service.models),
        Route("/v1/models/{name:path}", service.model),
        Route("/health", service.health),
        Route("/ready", service.ready),
        Route("/metrics", service.metrics),
        Route("/metrics/requests", service.requests),
        Route("/v1/requests/{id:path}", service.record),
        # Only other methods than POST get here, which Starlette refuses with 405.
        *(Route(api.path, service.elsewhere, methods=["POST"]) for api in ENDPOINTS),
        *(Route(path, service.auxiliary, methods=[method]) for method, path in AUXILIARY_CALLS),
        *extra_routes,
    ]
    return starlette_app([*routes, *openapi.routes_of(routes, model, keys=keys)])


_SANE_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")


class GatewayApp:
    """The ASGI application; `state` is what may be read and changed while it runs, `live` its live page."""

    def __init__(
        self,
        state: GatewayState,
        access: Access,
        extra_routes: Sequence[BaseRoute],
        control: ControlMetrics | None = None,
        live: LivePage | None = None,
    ) -> None:
        self.state, self.live = state, live
        if live is not None:
            extra_routes = [*extra_routes, *live.routes()]
        self._access = access
        self._generation = {api.path: Generation(state, api) for api in ENDPOINTS}
        service = Service(state, control)
        self.status, self.page, self.record = service.status, service.page, service.record
        self._others = make_service(service, extra_routes, state.identity.model, keys=access.keyed)
        self._engine_header = (b"x-headway-engine", state.identity.engine.encode())

    @property
    def models(self) -> Sequence[str]:
        """The model, then aliases and adapters."""
        return self.state.identity.names

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return self.state.traffic.requests

    async def empty(self) -> str:
        """What it is while a pool has no replica on purpose; empty while all have one."""
        return self.state.traffic.backend.ready().empty or ""

    def entry(self, model: str) -> Mapping[str, Any]:
        """One of the models, as `/v1/models` lists it."""
        return self.state.identity.entry(model)

    async def waits_for(self) -> str:
        """Why it is not ready; empty once it is."""
        readiness = self.state.traffic.backend.ready()
        return "" if readiness.ok else readiness.reason or "not ready"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._others(scope, receive, send)
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            # No route speaks WebSocket, and none that is added may get around the check of keys.
            await send({"type": "websocket.close", "code": 1008})

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope, request_id = own_scope(scope), request_id_of(scope)
        try:
            holder = self._access.admit(scope)
        except Fault as fault:
            await Channel(send, (request_id, self._engine_header)).fail(fault)
        else:
            await self.admitted(scope, receive, send, request_id, holder)

    async def admitted(
        self, scope: Scope, receive: Receive, send: Send, request_id: Header, holder: Holder
    ) -> None:
        """One request of the holder of a key, with the header of its id."""
        headers = (request_id, self._engine_header)
        generation = self._generation.get(scope["path"]) if scope["method"] == "POST" else None
        if generation is not None:
            await generation(scope, receive, send, headers, holder)
        else:
            await self._others(
                {**scope, "user": holder.name, "holder": holder}, receive, adding(send, headers)
            )


def make_app(
    config: HeadwayConfig,
    backend: Backend,
    extra_routes: Sequence[BaseRoute] = (),
    clock: Callable[[], float] = time.monotonic,
    *,
    plane: "ActorControlPlane | None" = None,
    routing: Callable[[], Mapping[str, object]] = dict,
    access: Access | None = None,
    quotas: Quotas | None = None,
) -> GatewayApp:
    """The gateway over `backend`, with further routes behind the same keys. ConfigError, ProfileError.

    With `plane` it has the live page, which shows what `routing` says of the router, and its metrics have
    those of the control plane. `access` and `quotas` are those of a gateway of several models.
    """
    access, state = access or make_access(config.gateway), make_state(config, backend, clock, quotas)
    if plane is None:
        return GatewayApp(state, access, extra_routes)
    fleet = state.fleet
    feed, judged = StatusFeed(fleet.with_others_figures(plane.status)), fleet.judged

    def view() -> Mapping[str, object]:
        return gateway_view(backend.replicas(), judged(), fleet.outcomes(), fleet.routing(routing()))

    live = LivePage(plane, feed, view)
    return GatewayApp(state, access, extra_routes, ControlMetrics(config.model, feed, judged), live)


def request_id_of(scope: Scope) -> Header:
    """The header with the id of a request: the client's, where it is a sane one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _SANE_ID.fullmatch(value):
            return name, bytes(value)
    return b"x-request-id", b"req-" + secrets.token_hex(16).encode()


def adding(send: Send, headers: HeaderList) -> Send:
    """`send` that adds `headers` to the response's."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return with_headers
