"""The live page, and the stream that it shows.

    GET /                      the page: one document without data, and without a request to another host
    GET /v1/control/live       text/event-stream, from one question to the planner every two seconds for
                               all readers together

    event: status              the status document, with `now` (the server's clock, seconds since 1970) and
                               what this process itself sees, as a gateway does (`gateway_view`)
    event: history             decisions as columns (`planning.record_figures`): all that are kept at first,
                               then new ones, with the last few again, which may have been reached meanwhile
    event: away                {"reason": ...}: the control plane does not answer; the stream goes on

A browser sends no key with a page's address, so the page takes one from the fragment (`/#key=...`, which
never leaves the browser) or asks for it, and reads the stream with it.
"""

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from headway.planning.policies import jsonable
from serve_apps.control_metrics import StatusFeed
from serve_apps.engines.protocol import error_body
from serve_apps.faults import Unavailable
from serve_apps.gateway.backend import ReplicaLoad

if TYPE_CHECKING:
    from serve_apps.control_plane import ActorControlPlane

PERIOD_S = 1.0
ALIVE_S = 15.0
"""Something is sent at least so often, so that nothing between here and the reader takes it for dead."""
MOST_READERS = 64
AGAIN = 5
"""Decisions sent again with new ones."""
PARTS = {"page": ("keys.js", "charts.js", "page.js"), "fleet": ("keys.js", "fleet.js")}
"""The scripts of each page."""

Document = Mapping[str, Any]
View = Callable[[], Document]


@cache
def page(name: str = "page") -> tuple[str, str]:
    """The document, and the policy by which browsers keep it from loading or sending anything elsewhere."""
    folder = files("serve_apps") / "live"
    text, style, *scripts = (
        (folder / part).read_text(encoding="utf-8") for part in (f"{name}.html", "page.css", *PARTS[name])
    )
    script = "\n".join(scripts)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script), policy


def answer(name: str = "page") -> Response:
    """A page for a browser."""
    text, policy = page(name)
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return HTMLResponse(text, headers={**headers, "cache-control": "no-cache"})


class LivePage:
    """Routes of the page. `view` is what the gateway sees, where there is one: keys of the status event."""

    def __init__(self, plane: "ActorControlPlane", feed: StatusFeed, view: View = dict) -> None:
        self._plane, self._feed, self._view = plane, feed, view
        self._readers, self._ended = 0, False

    def end(self) -> None:
        """End all streams, soon: a server that stops waits for what is in flight."""
        self._ended = True

    def routes(self) -> list[BaseRoute]:
        """Routes for the application of a gateway or of a control plane alone."""
        return [Route("/", self._page), Route("/v1/control/live", self._live)]

    async def _page(self, _: Request) -> Response:
        """The live page (docs/live-page.md), which asks for a key before it shows anything."""
        return answer()

    async def _live(self, _: Request) -> Response:
        """What the live page follows: a `text/event-stream` with events `status`, `history` and `away`."""
        if self._readers >= MOST_READERS:
            text = f"{self._readers} readers follow this deployment, which is as many as it takes"
            body = error_body(text, "rate_limit_error", None, "too_many_readers")
            return Response(body, status_code=503, media_type="application/json")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._counted(), media_type="text/event-stream", headers=headers)

    async def _counted(self) -> AsyncIterator[str]:
        self._readers += 1
        try:
            async for text in self.events():
                yield text
        finally:
            self._readers -= 1

    async def events(self) -> AsyncIterator[str]:
        """The stream of one reader, until `end`."""
        shown: Document | None = None
        last, sent_s = -1, 0.0
        key: tuple[int, float | None] = (-1, None)
        while not self._ended:
            await self._feed.refresh()
            document = self._feed.document
            if document is not None and document is not shown:
                decision = document.get("last_decision") or {}
                newer = (decision.get("id", -1), decision.get("reached_at"))
                columns = None if newer == key else await self._history(last - AGAIN)
                if columns is not None:
                    yield event("history", columns)
                    last, key = max(columns["id"], default=last), newer
                yield event("status", self._status(document))
                shown, sent_s = document, time.monotonic()
            if time.monotonic() - sent_s > ALIVE_S:
                yield event("away", {"reason": "the control plane does not answer"})
                sent_s = time.monotonic()
            await asyncio.sleep(PERIOD_S)

    async def _history(self, after: int) -> Document | None:
        try:
            return await self._plane.history(max(-1, after))
        except Unavailable:
            return None

    def _status(self, document: Document) -> Document:
        return {**document, "now": time.time(), **self._view()}


def gateway_view(
    replicas: Sequence[ReplicaLoad],
    judged: Mapping[str, tuple[float, float]],
    outcomes: Mapping[str, int],
    routing: Document,
) -> dict[str, Any]:
    """What a gateway adds to the status event.

    `replicas` that run, with their load; `classes`, by class the requests that met and that missed their SLO
    so far; `outcomes`, how many requests have ended how; `routing`, what the router counts.
    """
    keys = ("replica", "running", "waiting", "kv_usage")
    return {
        "replicas": [
            {"role": one.role.value, **{key: getattr(one, key) for key in keys}} for one in replicas
        ],
        "classes": {name: {"met": met, "missed": missed} for name, (met, missed) in judged.items()},
        "outcomes": dict(outcomes),
        "routing": routing,
    }


def event(name: str, data: Document) -> str:
    """One event of the stream. A figure that is not finite is null: it must not end the stream."""
    try:
        text = _plain(data)
    except ValueError:
        text = _plain(jsonable(data))
    return f"event: {name}\ndata: {text}\n\n"


def _plain(data: Document) -> str:
    return json.dumps(data, separators=(",", ":"), allow_nan=False)
