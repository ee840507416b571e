"""The control plane over HTTP: what the planner does, and the virtual connector for what is not Python.

    GET   /v1/control/status                     the status document
    GET   /v1/control/decisions?after=&limit=    {"decisions": [...]}: the first with higher ids, in order
    GET   /v1/control/decisions/{id}             one of them; 404
    GET   /v1/control/profile                    {"prefill": {...}, "decode": {...}, "meta": {...}}
    GET   /v1/control/offload-traces?limit=      {"traces": [...]}: the latest of the router, in order
    PATCH /v1/control/settings                   {"slo.ttft_ms": 200}: the changes in force; 400 names the key

    GET   /v1/scaling/decisions/next?after=&timeout_s=
          200: the newest decision above `after`, answered or not; without `after`, one that is not answered
          yet. 204: none in time (at most 300 s), ask again. 409: `after` was never issued
    GET   /v1/scaling/decisions/latest           200, or 204 before the first
    POST  /v1/scaling/decisions/{id}/complete    200: {"decision_id", "counted"}, whether this was the answer
    POST  /v1/scaling/decisions/{id}/fail        that counts; body {"reason": "..."}. 404: never issued

A decision's id is a whole number, in a path or a query; anything else is 400. Ids are contiguous from 0, so
"unknown" and "future" are the same thing and have one status. The scaling paths are 404 where decisions are
carried out by another connector. 503: the actor does not answer now, ask again. Errors have OpenAI's form
(`gateway.faults`). No Ray in here.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from serve_apps.control_input import Query, json_object, only, path_id, unless_gone
from serve_apps.gateway.faults import ClientGone, Fault, InvalidRequest

Document = Mapping[str, Any]
Endpoint = Callable[[Request], Awaitable[Response]]

LONGEST_POLL_S = 300.0
POLL_S = 30.0
MOST_DECISIONS = 1_000
MOST_TRACES = 10_000
MOST_REASON = 1_000
CLIENT_CLOSED = 499


class NotFound(Fault):
    """There is no such thing here."""

    status, type, code = 404, "invalid_request_error", "not_found"


class NeverIssued(Fault):
    """`after` is an id that this control plane has not issued: the client knows another one's decisions."""

    status, type, code = 409, "invalid_request_error", "never_issued"


class Unavailable(Fault):
    """The control plane does not answer."""

    status, code = 503, "control_plane_unavailable"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_s=1.0)


class ControlPlane(Protocol):
    """What these routes need of the actors. Raises Unavailable, and InvalidRequest for settings."""

    async def status(self) -> Document:
        """The status document."""

    async def decisions(self, after: int, limit: int) -> Sequence[Document]:
        """The first `limit` decisions with higher ids, in order."""

    async def decision(self, decision_id: int) -> Document | None:
        """One decision, None if there is none with this id."""

    async def offload_traces(self, limit: int) -> Sequence[Document]:
        """The latest `limit` offload traces of the router, in order."""

    async def profile(self) -> Document:
        """The samples of the profile that is planned by, as arrays in seconds and tokens, and its `meta`."""

    async def update_settings(self, changes: Document) -> Document:
        """Change settings at run time, all of them or none."""


class Scaling(Protocol):
    """The virtual connector, as far as these routes need it. Raises Unavailable, NotFound and NeverIssued."""

    async def next(self, after: int | None, timeout_s: float) -> Document | None:
        """The newest decision above `after` (None: not answered yet), waited for; None when time is over."""

    async def latest(self) -> Document | None:
        """The newest decision, None before the first."""

    async def complete(self, decision_id: int) -> bool:
        """The decision was carried out; whether this answer counts."""

    async def fail(self, decision_id: int, reason: str) -> bool:
        """The decision could not be carried out; whether this answer counts."""


def control_routes(plane: ControlPlane) -> list[BaseRoute]:
    """The routes of `/v1/control`."""
    api = _Control(plane)
    return [
        _route("GET", "/v1/control/status", api.status),
        _route("GET", "/v1/control/decisions", api.decisions),
        _route("GET", "/v1/control/decisions/{decision_id}", api.decision),
        _route("GET", "/v1/control/offload-traces", api.offload_traces),
        _route("GET", "/v1/control/profile", api.profile),
        _route("PATCH", "/v1/control/settings", api.settings),
    ]


def scaling_routes(scaling: Scaling | None) -> list[BaseRoute]:
    """The routes of `/v1/scaling`; None: decisions are carried out by another connector."""
    if scaling is None:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return [Route("/v1/scaling/{path:path}", _answering(_not_virtual), methods=methods)]
    api = _Scaling(scaling)
    return [
        _route("GET", "/v1/scaling/decisions/next", api.next),
        _route("GET", "/v1/scaling/decisions/latest", api.latest),
        _route("POST", "/v1/scaling/decisions/{decision_id}/complete", api.complete),
        _route("POST", "/v1/scaling/decisions/{decision_id}/fail", api.fail),
    ]


class _Control:
    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    async def status(self, request: Request) -> Response:
        Query(request, ())
        return JSONResponse(await self._plane.status())

    async def decisions(self, request: Request) -> Response:
        query = Query(request, ("after", "limit"))
        after = query.whole("after", None)
        limit = query.within("limit", 100, 1, MOST_DECISIONS)
        found = await self._plane.decisions(-1 if after is None else after, limit)
        return JSONResponse({"decisions": list(found)})

    async def decision(self, request: Request) -> Response:
        Query(request, ())
        decision_id = path_id(request)
        found = await self._plane.decision(decision_id)
        if found is None:
            raise NotFound(f"There is no decision {decision_id}", param="decision_id")
        return JSONResponse(found)

    async def offload_traces(self, request: Request) -> Response:
        limit = Query(request, ("limit",)).within("limit", 100, 1, MOST_TRACES)
        return JSONResponse({"traces": list(await self._plane.offload_traces(limit))})

    async def profile(self, request: Request) -> Response:
        Query(request, ())
        return JSONResponse(await self._plane.profile())

    async def settings(self, request: Request) -> Response:
        Query(request, ())
        changes = await json_object(request)
        if not changes:
            raise InvalidRequest("The body should name at least one setting, such as slo.ttft_ms")
        return JSONResponse(await self._plane.update_settings(changes))


class _Scaling:
    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling

    async def next(self, request: Request) -> Response:
        query = Query(request, ("after", "timeout_s"))
        after, timeout_s = query.whole("after", None), query.seconds("timeout_s", POLL_S)
        waiting = self._scaling.next(after, min(timeout_s, LONGEST_POLL_S))
        return _decision(await unless_gone(request, waiting))

    async def latest(self, request: Request) -> Response:
        Query(request, ())
        return _decision(await self._scaling.latest())

    async def complete(self, request: Request) -> Response:
        Query(request, ())
        only(await json_object(request), ())
        decision_id = path_id(request)
        return _counted(decision_id, await self._scaling.complete(decision_id))

    async def fail(self, request: Request) -> Response:
        Query(request, ())
        body = await json_object(request)
        only(body, ("reason",))
        decision_id = path_id(request)
        return _counted(decision_id, await self._scaling.fail(decision_id, _reason(body)))


def _reason(body: Document) -> str:
    reason = body.get("reason")
    if not isinstance(reason, str) or not 0 < len(reason.strip()) <= MOST_REASON:
        raise InvalidRequest(f"reason: should be a text of 1 to {MOST_REASON} characters", param="reason")
    return reason


def _decision(decision: Document | None) -> Response:
    headers = {"cache-control": "no-store"}
    if decision is None:
        return Response(status_code=204, headers=headers)
    return JSONResponse(decision, headers=headers)


def _counted(decision_id: int, counted: bool) -> Response:
    return JSONResponse({"decision_id": decision_id, "counted": counted})


async def _not_virtual(_: Request) -> Response:
    raise NotFound(
        "Decisions are not carried out from outside here: these paths need 'connector.kind: virtual'"
    )


def _route(method: str, path: str, endpoint: Endpoint) -> Route:
    return Route(path, _answering(endpoint), methods=[method])


def _answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with faults as responses wherever it is mounted."""

    async def answering(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        except Fault as fault:
            headers = {name.decode(): value.decode() for name, value in fault.headers()}
            return Response(fault.body(), fault.status, headers, media_type="application/json")

    return answering
