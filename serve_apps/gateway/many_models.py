"""The front of several models: one ASGI application over one for each deployment, of a gateway or, of an
attached fleet, of a control plane alone.

    POST /v1/chat/completions …     the deployment whose model, or adapter, the body names, and what finds no
                                    place there the one that it spills over to
    /deployments/NAME/…             everything of one deployment, as a gateway of its own has it
    GET /v1/models, /v1/requests/ID of all deployments
    GET /metrics                    of all, with the label `deployment`, and requests for models of none
    GET /health, /ready             of this process: ready once a deployment is
    GET /v1/fleet, /                all deployments in short, as JSON and as a page
    everything else                 the first deployment's, as a gateway of one model has it

Deployments come and go while it runs (`change`). A body is read here, for its model, and handed on whole.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any, Protocol
from urllib.parse import quote

from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from serve_apps import live_page
from serve_apps.access import OPEN, READ, Access, Holder, own_scope
from serve_apps.faults import (
    RETRY_AFTER_S,
    ClientGone,
    Fault,
    InvalidRequest,
    Moved,
    NotFound,
    UnknownModel,
    Unready,
    starlette_app,
)
from serve_apps.gateway.app import AUXILIARY_CALLS, adding, request_id_of
from serve_apps.gateway.fleet import GATEWAY, joined
from serve_apps.gateway.reading import LONG_BYTES, Bodies, model_named
from serve_apps.gateway.responses import ENDPOINTS, Channel, Header
from serve_apps.gateway.spillover import BEFORE, Call, Spillover, Target

PREFIX = "/deployments/"
BY_BODY = frozenset(
    {*(api.path for api in ENDPOINTS), *(path for how, path in AUXILIARY_CALLS if how == "POST")}
)
"""Paths of requests for the model that their body names."""

OWN = re.compile("/|/v1/(models|requests)/.*|/v1/(models|fleet)|/metrics|/health|/ready")
"""Paths that are answered here; all others are the first deployment's."""

SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{?)", re.MULTILINE)

Document = Mapping[str, Any]
NOWHERE: Mapping[str, str] = {}


class Member(Target, Protocol):
    """The application of one deployment."""

    @property
    def models(self) -> Sequence[str]:
        """Its model, then aliases and adapters."""

    @property
    def in_flight(self) -> int:
        """Requests under way."""

    async def empty(self) -> str:
        """What it is while a pool has no replica on purpose, such as asleep; empty while all have one."""

    async def waits_for(self) -> str:
        """Why it is not ready; empty once it is."""

    def entry(self, model: str) -> Document:
        """One of its models, as `/v1/models` lists it."""

    async def status(self) -> Document:
        """What its planner says, or said last; empty before that."""

    async def page(self, accept: str) -> Response:
        """Its metrics, in the form that is accepted."""

    async def record(self, request: Request) -> Response:
        """The records of a request. NotFound, HTTPException."""


class ManyModels(Collector):
    """The ASGI application. Without a deployment it serves nothing but its own pages.

    As a collector it has what it counts itself, labelled `gateway` where it is one of several of that name.
    """

    def __init__(
        self, access: Access, fleet: Callable[[], Awaitable[Document]], gateway: str | None = None
    ) -> None:
        """`fleet` is what the planner says (`headway.planning.documents.FleetDocument`), or nothing."""
        self._access, self._fleet = access, fleet
        self._labels = {} if gateway is None else {GATEWAY: gateway}
        self._unknown = 0
        self._apps: Mapping[str, Member] = {}
        self._by_model: Mapping[str, str] = {}
        self._after: Mapping[str, str] = {}
        self._bodies = Bodies()
        self._own = starlette_app(
            [
                Route("/", self._page),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
                Route("/v1/requests/{id:path}", self._request),
                Route("/v1/fleet", self._in_short),
                Route("/metrics", self._metrics),
                Route("/health", self._health),
                Route("/ready", self._ready),
            ]
        )

    def change(self, apps: Mapping[str, Member], after: Mapping[str, str] = NOWHERE) -> None:
        """From now on these are the deployments; `after` says where each spills over to, if it does.

        Requests under way go on.
        """
        self._apps, self._after = dict(apps), after
        first = {name: app for name, app in apps.items() if name not in after.values()}
        self._by_model = {app.models[0]: name for name, app in first.items()}
        for name, app in apps.items():
            for other in app.models:
                self._by_model.setdefault(other, name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request, or the server's start and end."""
        if scope["type"] == "lifespan":
            await self._own(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(own_scope(scope), receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = request_id_of(scope)
        try:
            name, scope = _deployment_of(scope)
            holder = self._access.admit(scope)
            if name is None and scope["method"] == "POST" and scope["path"] in BY_BODY:
                await self._by_body(scope, receive, send, request_id, holder)
                return
            if name is not None or not OWN.fullmatch(scope["path"]):
                app = self._first() if name is None else self._named(name)
                _check_page(scope, app, holder)
                await app.admitted(scope, receive, send, request_id, holder)
                return
        except ClientGone:
            return
        except Fault as fault:
            await Channel(send, (request_id,)).fail(fault)
            return
        scope = {**scope, "user": holder.name, "holder": holder}
        await self._own(scope, receive, adding(send, (request_id,)))

    def _named(self, name: str) -> Member:
        try:
            return self._apps[name]
        except KeyError:
            raise NotFound(f"There is no deployment {name!r:.60} here; /v1/models lists all") from None

    def _first(self) -> Member:
        if not self._apps:
            raise NotFound("There is no deployment here yet")
        return next(iter(self._apps.values()))

    async def _by_body(
        self, scope: Scope, receive: Receive, send: Send, request_id: Header, holder: Holder
    ) -> None:
        """Hand a request on to the deployment of the model in its body. Fault."""
        async with self._bodies.read(scope["headers"], receive) as body:
            model = (
                await asyncio.to_thread(model_named, body) if len(body) >= LONG_BYTES else model_named(body)
            )
        name = self._by_model.get(model or "")
        if name is None and (model or len(self._apps) != 1):
            said = f"The model {model!r:.120} does not exist here" if model else "'model' is missing"
            kind = UnknownModel if model else InvalidRequest
            self._unknown += kind is UnknownModel
            raise kind(
                f"{said}; {', '.join(self._models_of(holder)) or 'no model'} can be used", param="model"
            )
        app = self._first() if name is None else self._apps[name]
        holder.check_model(model or app.models[0])
        call = Call(scope, body, receive, send, request_id, holder)
        await self._served(name or next(iter(self._apps)), call, model or app.models[0])

    async def _served(self, name: str, call: Call, model: str) -> None:
        """Let a deployment serve a call, or the next one what it has no place for."""
        if name not in self._apps:
            # It went while the call waited at the one before it.
            gone = Unready(f"{name} is no longer served here", retry_after_s=RETRY_AFTER_S)
            await call.scope[BEFORE].channel.fail(gone)
            return
        after = self._after.get(name, "")
        if (to := self._apps.get(after)) is None or model not in to.models:
            await call.by(self._apps[name])
        else:
            ready, served = partial(self._takes, after, model), partial(self._served, after, model=model)
            await call.by(self._apps[name], Spillover(call, ready, served))

    async def _takes(self, name: str, model: str, tokens: int = 0) -> bool:
        """Whether a deployment, or one that it spills over to, holds so many and has replicas for a model."""
        app = self._apps.get(name)
        if app is None or model not in app.models:
            return False
        holds = tokens <= app.entry(model).get("max_model_tokens", inf)
        ready = holds and not (await app.waits_for() or await app.empty())
        return ready or await self._takes(self._after.get(name, ""), model, tokens)

    def _models_of(self, holder: Holder) -> Sequence[str]:
        return [name for name in self._by_model if holder.may_use(name)]

    async def _models(self, request: Request) -> Response:
        """The models that the key may use, and their adapters, each with its deployment and its state."""
        found = await asyncio.gather(*map(self._entry, self._models_of(request.scope["holder"])))
        return JSONResponse({"object": "list", "data": found})

    async def _model(self, request: Request) -> Response:
        """One model by its name."""
        name = request.path_params["name"]
        if name not in self._models_of(request.scope["holder"]):
            raise UnknownModel(f"The model {name!r} does not exist here", param="model")
        return JSONResponse(await self._entry(name))

    async def _entry(self, model: str) -> Document:
        name = self._by_model[model]
        app = self._apps[name]
        state = "ready"
        if not await self._takes(name, model):
            state = "starting" if await app.waits_for() else await app.empty()
        return {**app.entry(model), "deployment": name, "state": state}

    async def _request(self, request: Request) -> Response:
        """The records of a request, of whichever deployments: one that spilled over was at several."""
        found = list[Document]()
        for name, app in self._of(request.scope["holder"]).items():
            try:
                said = json.loads(bytes((await app.record(request)).body))["requests"]
            except HTTPException as error:
                if error.status_code != HTTPStatus.NOT_FOUND:
                    raise
            else:
                found += ({"deployment": name, **each} for each in said)
        if not found:
            raise NotFound(f"no gateway has a request {request.path_params['id']!r} (any more)")
        return JSONResponse({"requests": found}, headers={"cache-control": "no-store"})

    def _of(self, holder: Holder) -> Mapping[str, Member]:
        """The deployments of which a key may know."""
        return {name: app for name, app in self._apps.items() if _may_see(app, holder)}

    async def _in_short(self, request: Request) -> Response:
        """The deployments of the key's models in short: state, replicas, attainment, GPUs and budget."""
        mine = self._of(request.scope["holder"])
        names, apps = list(mine), list(mine.values())
        fleet, *said = await asyncio.gather(self._fleet(), *(app.status() for app in apps))
        budget = {each["name"]: each for each in fleet.get("deployments", ()) if each["shares"]}
        rows = [
            {"deployment": name, **in_short(app, each), "budget": budget.get(name)}
            for name, app, each in zip(names, apps, said, strict=True)
        ]
        of_all: Mapping[str, Any] = {"gpus": None, "by_type": {}, "room": ""}
        found = {key: fleet.get(key, default) for key, default in of_all.items()} | {"deployments": rows}
        return JSONResponse(found, headers={"cache-control": "no-store"})

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What no deployment counts."""
        text = "Requests for models that no deployment of a fleet serves"
        family = CounterMetricFamily("headway_unknown_model_requests", text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._unknown)
        yield family

    async def _metrics(self, request: Request) -> Response:
        """Prometheus' text, or OpenMetrics: what is counted here, and the series of all deployments, each of
        which has the label `deployment`.
        """
        accept = request.headers.get("accept", "")
        names, apps = list(self._apps), list(self._apps.values())
        pages = await asyncio.gather(*(app.page(accept) for app in apps))
        of_each = (labelled(bytes(page.body).decode(), name) for name, page in zip(names, pages, strict=True))
        encoder, kind = choose_encoder(accept)
        text = joined([encoder(self).decode(), *of_each])
        return Response(text, headers={"content-type": kind})

    async def _page(self, _: Request) -> Response:
        """The page of the fleet, which asks for a key before it shows anything."""
        return live_page.answer("fleet")

    async def _health(self, _: Request) -> Response:
        """200: the process lives."""
        return JSONResponse({"status": "ok"})

    async def _ready(self, _: Request) -> Response:
        """200 while a deployment is ready, with what the others wait for; else 503."""
        apps = self._apps
        found = await asyncio.gather(*(app.waits_for() for app in apps.values()))
        waiting = {name: why for name, why in zip(apps, found, strict=True) if why}
        if len(waiting) < len(apps):
            return JSONResponse({"status": "ready", "waiting": waiting})
        reason = "; ".join(f"{name}: {why}" for name, why in waiting.items()) or "no deployment"
        body = {"status": "not ready", "reason": reason}
        return JSONResponse(body, status_code=503, headers={"retry-after": "1"})


def _deployment_of(scope: Scope) -> tuple[str | None, Scope]:
    """The deployment that a path names, and the scope with the path below it. Moved where that is empty."""
    path: str = scope["path"]
    if not path.startswith(PREFIX):
        return None, scope
    name, slash, rest = path.removeprefix(PREFIX).partition("/")
    if not slash and scope["method"] in READ:
        # Pages ask for what is below them.
        raise Moved(f"{quote(name)}/")
    return name, {**scope, "path": f"/{rest}"}


def _may_see(app: Member, holder: Holder) -> bool:
    return any(map(holder.may_use, app.models))


def _check_page(scope: Scope, app: Member, holder: Holder) -> None:
    """Forbidden for what is of other models than the key's."""
    if scope["path"] not in OPEN and not _may_see(app, holder):
        holder.check_model(app.models[0])


def in_short(app: Member, said: Document) -> Document:
    """A deployment in a line of a table; of what its planner `said` last, empty if nothing."""
    pools, measured = said.get("pools") or {}, said.get("measured") or {}
    return {
        "model": app.models[0],
        "verdict": said.get("verdict"),
        "planner": (said.get("planner") or {}).get("state"),
        "pools": {
            role: {
                key: pool.get(key) for key in ("ready", "desired", "starting", "draining", "gpus_per_replica")
            }
            for role, pool in pools.items()
        },
        "requests_per_s": _rate(measured),
        "attainment": (said.get("attainment") or {}).get("last_interval"),
        "promised": (said.get("slo") or {}).get("attainment"),
        "in_flight": app.in_flight,
    }


def _rate(measured: Document) -> float | None:
    requests, start_s, end_s = (measured.get(key) for key in ("requests", "start_s", "end_s"))
    return None if requests is None or not end_s else requests / max(end_s - start_s, 1e-3)


def labelled(page: str, deployment: str) -> str:
    """A page of metrics whose samples have one label more."""
    label = f'{{deployment="{deployment}"'
    return SAMPLE.sub(lambda found: f"{found[1]}{label}{',' if found[2] else '}'}", page)
