"""What a client of the control API may send, checked; each fault is one line that names the parameter."""

import asyncio
import json
import math
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from serve_apps.gateway.faults import BodyTooLarge, ClientGone, InvalidRequest

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
