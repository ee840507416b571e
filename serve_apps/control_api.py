"""The control plane over HTTP: the planner's doings, and the virtual connector for what is not Python.

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

A fault of the input is one line that names the parameter. A decision's id is a whole number, in a path or a
query; anything else is 400. Ids are contiguous from 0, so "unknown" and "future" are the same and have one
status. The scaling paths are 404 where decisions are carried out by another connector. 503: the actor does
not answer now, ask again. Errors have OpenAI's form (`gateway.backend`). No Ray in here.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from serve_apps.gateway.backend import BodyTooLarge, ClientGone, Fault, InvalidRequest

MOST_BODY_BYTES = 64 * 1024
MOST_DIGITS = 18
Answer = TypeVar("Answer")


class Query:
    """The query parameters of one request; any but those that are `known` is a fault."""

    def __init__(self, request: Request, known: tuple[str, ...]) -> None:
        self._values = request.query_params
        for name in self._values:
            if name not in known:
                wanted = ", ".join(known) if known else "there are none"
                raise InvalidRequest(f"{name}: unknown query parameter (known: {wanted})", param=name)
            if len(self._values.getlist(name)) > 1:
                raise InvalidRequest(f"{name}: should come once", param=name)

    def whole(self, name: str, default: int | None) -> int | None:
        """A whole number."""
        return whole(name, self._values[name]) if name in self._values else default

    def within(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number in a range."""
        value = whole(name, self._values[name]) if name in self._values else default
        if not low <= value <= high:
            raise InvalidRequest(f"{name}: should be between {low} and {high}, not {value}", param=name)
        return value

    def seconds(self, name: str, default: float) -> float:
        """A time, not below zero."""
        text = self._values.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0.0):
            raise InvalidRequest(f"{name}: should be a number of seconds from 0, not {text!r}", param=name)
        return value


def whole(name: str, text: str) -> int:
    """The whole number that a text writes in ASCII digits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS):
        raise InvalidRequest(f"{name}: should be a whole number, not {text[:40]!r}", param=name)
    return int(text)


def path_id(request: Request) -> int:
    """The decision that the path names."""
    return whole("decision_id", request.path_params["decision_id"])


async def json_object(request: Request) -> Mapping[str, Any]:
    """The body, a JSON object; an empty body is an empty one."""
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise BodyTooLarge(f"The body is larger than {MOST_BODY_BYTES} bytes")
        parts.append(part)
    try:
        body = json.loads(b"".join(parts) or b"{}", parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise InvalidRequest("The body should be JSON") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body should be a JSON object")
    return body


def only(body: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse other keys than those."""
    for name in body:
        if name not in known:
            wanted = ", ".join(known) if known else "there are none"
            raise InvalidRequest(f"{name[:40]}: unknown field (known: {wanted})", param=name[:40])


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The outcome of `work`, which is cancelled when the client goes away; ClientGone then."""
    doing = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGone("The client went away")
    finally:
        for task in (doing, watching):
            task.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


Document = Mapping[str, Any]
Endpoint = Callable[[Request], Awaitable[Response]]
QueryEndpoint = Callable[[Request, Query], Awaitable[Response]]
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
    """`after` is an id that this control plane has not issued: the client has it from another one."""

    status, type, code = 409, "invalid_request_error", "never_issued"


class Unavailable(Fault):
    """The control plane does not answer."""

    status, code = 503, "control_plane_unavailable"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_s=1.0)


class ControlQueries(Protocol):
    """The control plane as these routes ask it. Raises Unavailable, and InvalidRequest for settings."""

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


def control_routes(plane: ControlQueries) -> list[BaseRoute]:
    """The routes of `/v1/control`."""

    async def status(request: Request, query: Query) -> Response:
        return JSONResponse(await plane.status())

    async def decisions(request: Request, query: Query) -> Response:
        after = query.whole("after", None)
        limit = query.within("limit", 100, 1, MOST_DECISIONS)
        found = await plane.decisions(-1 if after is None else after, limit)
        return JSONResponse({"decisions": list(found)})

    async def decision(request: Request, query: Query) -> Response:
        decision_id = path_id(request)
        found = await plane.decision(decision_id)
        if found is None:
            raise NotFound(f"There is no decision {decision_id}", param="decision_id")
        return JSONResponse(found)

    async def offload_traces(request: Request, query: Query) -> Response:
        limit = query.within("limit", 100, 1, MOST_TRACES)
        return JSONResponse({"traces": list(await plane.offload_traces(limit))})

    async def profile(request: Request, query: Query) -> Response:
        return JSONResponse(await plane.profile())

    async def settings(request: Request, query: Query) -> Response:
        changes = await json_object(request)
        if not changes:
            raise InvalidRequest("The body should name at least one setting, such as slo.ttft_ms")
        return JSONResponse(await plane.update_settings(changes))

    return [
        _route("GET", "/v1/control/status", status),
        _route("GET", "/v1/control/decisions", decisions, "after", "limit"),
        _route("GET", "/v1/control/decisions/{decision_id}", decision),
        _route("GET", "/v1/control/offload-traces", offload_traces, "limit"),
        _route("GET", "/v1/control/profile", profile),
        _route("PATCH", "/v1/control/settings", settings),
    ]


def scaling_routes(scaling: Scaling | None) -> list[BaseRoute]:
    """The routes of `/v1/scaling`; None: decisions are carried out by another connector."""
    if scaling is None:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return [Route("/v1/scaling/{path:path}", _answering(_not_virtual), methods=methods)]

    async def newer(request: Request, query: Query) -> Response:
        after, timeout_s = query.whole("after", None), query.seconds("timeout_s", POLL_S)
        waiting = scaling.next(after, min(timeout_s, LONGEST_POLL_S))
        return _decision(await unless_gone(request, waiting))

    async def latest(request: Request, query: Query) -> Response:
        return _decision(await scaling.latest())

    async def complete(request: Request, query: Query) -> Response:
        only(await json_object(request), ())
        decision_id = path_id(request)
        counted = await scaling.complete(decision_id)
        return JSONResponse({"decision_id": decision_id, "counted": counted})

    async def fail(request: Request, query: Query) -> Response:
        body = await json_object(request)
        only(body, ("reason",))
        decision_id, reason = path_id(request), body.get("reason")
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= MOST_REASON:
            raise InvalidRequest(f"reason: should be a text of 1 to {MOST_REASON} characters", param="reason")
        counted = await scaling.fail(decision_id, reason)
        return JSONResponse({"decision_id": decision_id, "counted": counted})

    return [
        _route("GET", "/v1/scaling/decisions/next", newer, "after", "timeout_s"),
        _route("GET", "/v1/scaling/decisions/latest", latest),
        _route("POST", "/v1/scaling/decisions/{decision_id}/complete", complete),
        _route("POST", "/v1/scaling/decisions/{decision_id}/fail", fail),
    ]


def _decision(decision: Document | None) -> Response:
    headers = {"cache-control": "no-store"}
    if decision is None:
        return Response(status_code=204, headers=headers)
    return JSONResponse(decision, headers=headers)


async def _not_virtual(_: Request) -> Response:
    raise NotFound(
        "Decisions are not carried out from outside here: these paths need 'connector.kind: virtual'"
    )


def _route(method: str, path: str, endpoint: QueryEndpoint, *known: str) -> Route:
    """A route whose endpoint takes the request and its query, of the `known` parameters only."""

    async def queried(request: Request) -> Response:
        return await endpoint(request, Query(request, known))

    return Route(path, _answering(queried), methods=[method])


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
