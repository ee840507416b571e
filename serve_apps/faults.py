"""The ways in which an HTTP request ends without an answer, in OpenAI's form.

    Fault(Exception)        status  outcome    type                    code
    ├── Moved               307     -          invalid_request_error   moved                  Location
    ├── InvalidRequest      400     invalid    invalid_request_error   (says which field: `param`)
    ├── Unauthorized        401     -          invalid_request_error   invalid_api_key
    ├── Forbidden           403     -          invalid_request_error   missing_role
    ├── UnknownModel        404     invalid    invalid_request_error   model_not_found
    ├── NotFound            404     -          invalid_request_error   not_found
    ├── BodyTooSlow         408     invalid    invalid_request_error   body_timeout
    ├── NeverIssued         409     -          invalid_request_error   never_issued
    ├── BodyTooLarge        413     invalid    invalid_request_error   request_too_large
    ├── TooLongForModel     413     too_long   invalid_request_error   context_length_exceeded
    ├── EngineRefusal       as the engine has it: its status and its body
    ├── OverLimit           429     invalid    rate_limit_error        key_limit_exceeded     Retry-After
    ├── Shed                429     shed       rate_limit_error        rate_limit_exceeded    Retry-After
    ├── Broken              500     failed     server_error            internal_error
    ├── OutputLost          502     failed     server_error            replica_lost
    ├── Unready             503     not_ready  server_error            not_ready              Retry-After
    ├── Unavailable         503     -          server_error            control_plane_unavailable  Retry-After
    ├── Expired             504     timeout    server_error            timeout
    └── ClientGone          -       aborted    none: there is no reader left

Unknown paths and methods are Starlette's HTTPException, which `starlette_app` gives the same form.
"""

import math
from collections.abc import Sequence
from http import HTTPStatus
from random import Random
from typing import ClassVar, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from serve_apps.engines.protocol import error_body

Outcome = Literal["ok", "invalid", "too_long", "shed", "spilled", "not_ready", "timeout", "aborted", "failed"]
RETRY_AFTER_S = 1.0
"""The `Retry-After` of a request that is turned away, where nothing says when there will be room."""
SPREAD_S, SPREAD = 1.0, 0.5
"""Seconds, or shares of the wait where that is more, by up to which clients are told to come later."""


class Fault(Exception):
    """A request that ends without an answer; the text is for the client."""

    status: int = 500
    outcome: Outcome = "failed"
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s, self.spread_s = retry_after_s, 0.0

    def spread(self, random: Random) -> None:
        """Draw by how much later this client shall come again: those refused at once should not return so."""
        self.spread_s = random.uniform(0.0, max(SPREAD_S, SPREAD * (self.retry_after_s or 0.0)))

    def body(self) -> bytes:
        """The error as JSON."""
        return error_body(str(self), self.type, self.param, self.code)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Further headers of the response."""
        if self.retry_after_s is None:
            return []
        later_s = self.retry_after_s + self.spread_s
        # Rounded up all would be told the same second.
        seconds, milliseconds = max(math.ceil(self.retry_after_s), round(later_s)), math.ceil(1e3 * later_s)
        return [(b"retry-after", b"%d" % seconds), (b"retry-after-ms", b"%d" % milliseconds)]


class InvalidRequest(Fault):
    """The request is not valid; `param` names the field."""

    status, outcome, type = 400, "invalid", "invalid_request_error"


class Unauthorized(Fault):
    """No key, or a wrong one."""

    status, type, code = 401, "invalid_request_error", "invalid_api_key"

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The scheme of authentication, which 401 has to name."""
        return [(b"www-authenticate", b"Bearer")]


class Forbidden(Fault):
    """The key has not the role that the request needs."""

    status, type, code = 403, "invalid_request_error", "missing_role"


class UnknownModel(Fault):
    """Another model than the one served here."""

    status, outcome, type, code = 404, "invalid", "invalid_request_error", "model_not_found"


class BodyTooLarge(Fault):
    """More bytes than any request needs."""

    status, outcome, type, code = 413, "invalid", "invalid_request_error", "request_too_large"


class BodyTooSlow(Fault):
    """The body did not come in time."""

    status, outcome, type, code = 408, "invalid", "invalid_request_error", "body_timeout"


class TooLongForModel(Fault):
    """Input and output tokens together never fit the model."""

    status, outcome, type, code = 413, "too_long", "invalid_request_error", "context_length_exceeded"


class EngineRefusal(Fault):
    """What the engine answered instead of an output, to the letter."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the engine refused the request with status {status}")
        self.status, self._body = status, body
        self.outcome = "invalid" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "failed"

    def body(self) -> bytes:
        """The engine's."""
        return self._body


class Shed(Fault):
    """Too much is in flight."""

    status, outcome, type, code = 429, "shed", "rate_limit_error", "rate_limit_exceeded"


class OverLimit(Fault):
    """The key has had what it may have; the fleet could have served it."""

    status, outcome, type, code = 429, "invalid", "rate_limit_error", "key_limit_exceeded"


class Broken(Fault):
    """An error of ours."""

    code = "internal_error"


class OutputLost(Fault):
    """The replica died and the request can't be repeated."""

    status, code = 502, "replica_lost"


class Unready(Fault):
    """No replica can take a request now."""

    status, outcome, code = 503, "not_ready", "not_ready"


class Expired(Fault):
    """The request's time is over."""

    status, outcome, code = 504, "timeout", "timeout"


class NotFound(Fault):
    """There is no such thing here."""

    status, type, code = 404, "invalid_request_error", "not_found"


class Moved(Fault):
    """It is elsewhere: `place`, beside this path."""

    status, type, code = 307, "invalid_request_error", "moved"

    def __init__(self, place: str) -> None:
        super().__init__(f"It is at {place}")
        self.place = place

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Where it is."""
        return [(b"location", self.place.encode())]


class NeverIssued(Fault):
    """`after` is an id that this control plane has not issued: the client has it from another one."""

    status, type, code = 409, "invalid_request_error", "never_issued"


class Unavailable(Fault):
    """The control plane does not answer."""

    status, code = 503, "control_plane_unavailable"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_s=1.0)


class ClientGone(Fault):
    """The client has closed its connection."""

    outcome = "aborted"


def starlette_app(routes: Sequence[BaseRoute]) -> Starlette:
    """An application of these routes, whose errors have OpenAI's form."""
    app = Starlette(
        routes=routes, exception_handlers={HTTPException: _routing, Fault: _fault, Exception: _broken}
    )
    app.router.redirect_slashes = False
    return app


def response_of(fault: Fault) -> Response:
    """The fault as a response."""
    headers = {name.decode(): value.decode() for name, value in fault.headers()}
    return _json(fault.status, fault.body(), headers)


async def _routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    kind = "invalid_request_error" if error.status_code < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    return _json(error.status_code, error_body(text, kind, None, code), dict(error.headers or {}))


async def _fault(_: Request, error: Exception) -> Response:
    assert isinstance(error, Fault)
    return response_of(error)


async def _broken(_: Request, __: Exception) -> Response:
    return response_of(Broken("The gateway failed; its log says why"))


def _json(status: int, body: bytes, headers: dict[str, str]) -> Response:
    return Response(body, status_code=status, headers=headers, media_type="application/json")
