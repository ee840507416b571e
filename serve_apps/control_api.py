"""The control plane over HTTP: the planner's doings, and the virtual connector for what is not Python.

    /v1/control   status, decisions, advice and settings of the planner
    /v1/scaling   its decisions, for whatever carries them out; 404 where another connector does

Each endpoint's docstring says what it takes and answers; the reference's page of paths is made of them.

A fault of the input is one line that names the parameter. A decision's id is a whole number, in a path or a
query; anything else is 400. Ids are contiguous from 0, so "unknown" and "future" are the same and have one
status. 503: the actor does not answer now, ask again. Errors have OpenAI's form (`serve_apps.faults`). No
Ray in here.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from serve_apps.faults import BodyTooLarge, ClientGone, Fault, InvalidRequest, NotFound, response_of

if TYPE_CHECKING:
    from serve_apps.control_plane import ActorControlPlane, ActorScaling

JSON = "application/json"
MOST_BODY_BYTES = 64 * 1024
MOST_DIGITS = 18
Answer = TypeVar("Answer")


class NotJson(Fault):
    """The body is of another type."""

    status, outcome, type, code = 415, "invalid", "invalid_request_error", "not_json"


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

    def whole(self, name: str) -> int | None:
        """A whole number, None where it is not given."""
        return whole(name, self._values[name]) if name in self._values else None

    def within(self, name: str, default: int, low: int, high: int) -> int:
        """A whole number in a range."""
        given = self.whole(name)
        value = default if given is None else given
        if not low <= value <= high:
            raise InvalidRequest(f"{name}: should be between {low} and {high}, not {value}", param=name)
        return value

    def span(self, name: str) -> float | None:
        """A time such as `24h`, in seconds."""
        return span_s(name, self._values[name]) if name in self._values else None

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


UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def span_s(name: str, text: str) -> float:
    """The seconds of a text such as `24h`, `90m` or `3600`."""
    number, unit_s = (text[:-1], UNITS_S[text[-1]]) if text[-1:] in UNITS_S else (text, 1.0)
    try:
        value = float(number) * unit_s
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0.0):
        raise InvalidRequest(
            f"{name}: should be a time such as 24h, 90m or 7d, not {text[:40]!r}", param=name
        )
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
    """The body, a JSON object, and said to be JSON; an empty body is an empty one."""
    size, parts = 0, []
    async for part in request.stream():
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise BodyTooLarge(f"The body is larger than {MOST_BODY_BYTES} bytes")
        parts.append(part)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if size and kind != JSON:
        # A page of another origin can send other types without being asked.
        raise NotJson(f"Send the body as content-type: {JSON} (curl: --json), not {kind[:100] or 'without'}")
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


def control_routes(plane: "ActorControlPlane") -> list[BaseRoute]:
    """The routes of `/v1/control`."""

    async def status(request: Request, query: Query) -> Response:
        """The status document (docs/reference/results.md#the-status-document)."""
        return JSONResponse(await plane.status())

    async def decisions(request: Request, query: Query) -> Response:
        """`{"decisions": […]}`, in order: those above `after=ID`, at most `limit=N` (1 to 1000; 100)."""
        after = query.whole("after")
        limit = query.within("limit", 100, 1, MOST_DECISIONS)
        found = await plane.decisions(-1 if after is None else after, limit)
        return JSONResponse({"decisions": list(found)})

    async def decision(request: Request, query: Query) -> Response:
        """One decision (docs/reference/results.md#a-decision)."""
        return await _kept(request, plane.decision)

    async def story(request: Request, query: Query) -> Response:
        """One decision in words: lines by step."""
        return await _kept(request, plane.story)

    async def history(request: Request, query: Query) -> Response:
        """Decisions above `after=ID` as columns, for pictures (`headway.planning.record_figures`)."""
        after = query.whole("after")
        return JSONResponse(await plane.history(-1 if after is None else after))

    async def advice(request: Request, query: Query) -> Response:
        """What the plan of a dry run would have been worth in its last `since=24h` (`s`, `m`, `h`, `d`,
        or seconds; without it in all of it): advice (docs/reference/results.md#advice).
        """
        return JSONResponse(await plane.advice(query.span("since")))

    async def offload_traces(request: Request, query: Query) -> Response:
        """`{"traces": […]}`: the router's latest, in order; `limit=N`, 1 to 10000 (100); 503 without a
        router.
        """
        limit = query.within("limit", 100, 1, MOST_TRACES)
        return JSONResponse({"traces": list(await plane.offload_traces(limit))})

    async def profile(request: Request, query: Query) -> Response:
        """The profile that is planned by: samples of `prefill` and `decode` as arrays in seconds and
        tokens, and `meta`.
        """
        return JSONResponse(await plane.profile())

    async def settings(request: Request, query: Query) -> Response:
        """Changes settings of the running planner, all or none: `slo.ttft_ms`, `slo.itl_ms`,
        `slo.attainment`, `planner.max_gpu_budget` and `planner.max_step` (null lifts them),
        `planner.dry_run`, `pools.ROLE.min_replicas`, `pools.ROLE.max_replicas`,
        `connector.foreign_edits`, `connector.yield_s`, `share.*`, `fleet.gpus` and
        `fleet.host_memory` (for all applications that share them).
        """
        changes = await json_object(request)
        if not changes:
            raise InvalidRequest("The body should name at least one setting, such as slo.ttft_ms")
        return JSONResponse(await plane.update_settings(changes, request.scope.get("user", "")))

    return [
        _route("GET", "/v1/control/status", status),
        _route("GET", "/v1/control/decisions", decisions, "after", "limit"),
        _route("GET", "/v1/control/decisions/{decision_id}", decision),
        _route("GET", "/v1/control/decisions/{decision_id}/story", story),
        _route("GET", "/v1/control/history", history, "after"),
        _route("GET", "/v1/control/advice", advice, "since"),
        _route("GET", "/v1/control/offload-traces", offload_traces, "limit"),
        _route("GET", "/v1/control/profile", profile),
        _route("PATCH", "/v1/control/settings", settings),
    ]


async def _kept(request: Request, ask: Callable[[int], Awaitable[Document | None]]) -> Response:
    """The answer about the decision that the path names; NotFound."""
    decision_id = path_id(request)
    found = await ask(decision_id)
    if found is None:
        raise NotFound(f"There is no decision {decision_id}", param="decision_id")
    return JSONResponse(found)


def scaling_routes(scaling: "ActorScaling | None") -> list[BaseRoute]:
    """The routes of `/v1/scaling`; None: decisions are carried out by another connector."""
    if scaling is None:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return [Route("/v1/scaling/{path:path}", _answering(_not_virtual), methods=methods)]

    async def newer(request: Request, query: Query) -> Response:
        """Long poll, `timeout_s=S` (at most 300): the newest decision above `after=ID`, or without it one
        that is not answered; 204 when the time is over; 409 for an id that was never issued.
        """
        after, timeout_s = query.whole("after"), query.seconds("timeout_s", POLL_S)
        waiting = scaling.next(after, min(timeout_s, LONGEST_POLL_S))
        return _decision(await unless_gone(request, waiting))

    async def latest(request: Request, query: Query) -> Response:
        """The newest decision, answered or not; 204 before the first."""
        return _decision(await scaling.latest())

    async def complete(request: Request, query: Query) -> Response:
        """The answer that it was carried out; the first answer counts. 404 for an id that was never
        issued.
        """
        only(await json_object(request), ())
        decision_id = path_id(request)
        counted = await scaling.complete(decision_id)
        return JSONResponse({"decision_id": decision_id, "counted": counted})

    async def fail(request: Request, query: Query) -> Response:
        """The answer that it could not be, with `{"reason": …}` as its body; likewise."""
        body = await json_object(request)
        only(body, ("reason",))
        decision_id, reason = path_id(request), body.get("reason")
        if not isinstance(reason, str) or not 0 < len(reason.strip()) <= MOST_REASON:
            raise InvalidRequest(f"reason: should be a text of 1 to {MOST_REASON} characters", param="reason")
        counted = await scaling.fail(decision_id, reason)
        return JSONResponse({"decision_id": decision_id, "counted": counted})

    async def report(request: Request, query: Query) -> Response:
        """The replicas that there are now: `{"pools": {"decode": {"desired": 8, "starting": 0, "ready":
        8, "draining": 0}}}`, of which `ready` is needed; answers with the counts as understood.
        """
        body = await json_object(request)
        only(body, ("pools",))
        pools = body.get("pools")
        if not isinstance(pools, dict) or not pools:
            raise InvalidRequest("pools: should hold the counts of at least one pool", param="pools")
        return JSONResponse({"pools": await scaling.report(pools)})

    return [
        _route("POST", "/v1/scaling/report", report),
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

    queried.__doc__ = endpoint.__doc__
    return Route(path, _answering(queried), methods=[method])


def _answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint, with faults as responses wherever it is mounted."""

    async def answering(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED)
        except Fault as fault:
            return response_of(fault)

    # The reference's page of paths is made of these.
    answering.__doc__ = endpoint.__doc__
    return answering
