"""The backend that runs the gateway's requests, and every way in which a request ends without an answer.

    BackendError(Exception)                    becomes
    ├── NotReady       no replica can take a request now               Unready
    ├── Overloaded     too much is queued; has `retry_after_s`         Shed
    ├── TooLong        the request can never fit an engine             TooLongForModel
    ├── RefusedByEngine  the engine's own answer says why             EngineRefusal
    ├── TimedOut       the request's time is over                      Expired
    └── ReplicaLost    the replica died after the first token left     OutputLost, or an event in the stream

    Fault(Exception)        status  outcome    type                    code
    ├── InvalidRequest      400     invalid    invalid_request_error   (says which field: `param`)
    ├── Unauthorized        401     -          invalid_request_error   invalid_api_key
    ├── Forbidden           403     -          invalid_request_error   missing_role
    ├── UnknownModel        404     invalid    invalid_request_error   model_not_found
    ├── BodyTooSlow         408     invalid    invalid_request_error   body_timeout
    ├── BodyTooLarge        413     invalid    invalid_request_error   request_too_large
    ├── TooLongForModel     413     too_long   invalid_request_error   context_length_exceeded
    ├── EngineRefusal       as the engine has it: its status and its body
    ├── OverLimit           429     invalid    rate_limit_error        key_limit_exceeded     Retry-After
    ├── Shed                429     shed       rate_limit_error        rate_limit_exceeded    Retry-After
    ├── Broken              500     failed     server_error            internal_error
    ├── OutputLost          502     failed     server_error            replica_lost
    ├── Unready             503     not_ready  server_error            not_ready              Retry-After
    ├── Expired             504     timeout    server_error            timeout
    └── ClientGone          -       aborted    none: there is no reader left

Faults have OpenAI's form. Unknown paths and methods are Starlette's HTTPException; `app` gives them the same.
"""

import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import ClassVar, Literal, Protocol

from headway.planning import Role
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, TokenChunk, error_body
from serve_apps.gateway.timeline import Timeline


class BackendError(Exception):
    """Base of what a backend raises; the text is for the client."""


class NotReady(BackendError):
    """No replica can take a request now."""


class Overloaded(BackendError):
    """Too much is queued."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLong(BackendError):
    """The request can never fit an engine."""


class RefusedByEngine(BackendError):
    """The engine answers that it does not take the request: an HTTP status and a body."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"the engine refused the request with status {status}")
        self.status, self.body = status, body


class TimedOut(BackendError):
    """The request's time is over."""


class ReplicaLost(BackendError):
    """The replica died after the first token had left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """One running replica: requests in its batch, requests that wait for it, KV usage in [0, 1].

    Totals since its start are those of `EngineStats`.
    """

    role: Role
    replica: str
    running: int
    waiting: int
    kv_usage: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    preemptions: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """True while requests can be served; `reason` says why not."""

    ok: bool
    reason: str = ""


ChunkSink = Callable[[TokenChunk], bool]
"""Takes a chunk at once, where it says that it does: one task less that wakes for each."""


class Backend(Protocol):
    """Runs requests on replicas."""

    def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """The output, streamed. Retries before the first token; closing it aborts the request everywhere.

        The timeline has its placement before the first chunk comes. Chunks that come while the next one is
        waited for may go to the `sink`, but for the first and the last: what it takes is not yielded.
        """

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """What an engine says to it; only asked where engines answer clients by themselves. BackendError."""

    def complete(self, request_id: str) -> None:
        """The reader has all it wants of an output: closing it now is no failure. Any id is taken."""

    def ready(self) -> Readiness:
        """Ok while every pool has a running replica."""

    def replicas(self) -> Sequence[ReplicaLoad]:
        """The running replicas and their load."""


Outcome = Literal["ok", "invalid", "too_long", "shed", "not_ready", "timeout", "aborted", "failed"]


class Fault(Exception):
    """A request that ends without an answer; the text is for the client."""

    status: int = 500
    outcome: Outcome = "failed"
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The error as JSON."""
        return error_body(str(self), self.type, self.param, self.code)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Further headers of the response."""
        if self.retry_after_s is None:
            return []
        seconds, milliseconds = math.ceil(self.retry_after_s), math.ceil(1e3 * self.retry_after_s)
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

    def __init__(self, refused: RefusedByEngine) -> None:
        super().__init__(str(refused))
        self.status, self._body = refused.status, refused.body
        self.outcome = "invalid" if refused.status < HTTPStatus.INTERNAL_SERVER_ERROR else "failed"

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


class ClientGone(Fault):
    """The client has closed its connection."""

    outcome = "aborted"


_FAULTS: Mapping[type[BackendError], Callable[[str, float], Fault]] = {
    NotReady: lambda text, wait_s: Unready(text, retry_after_s=wait_s),
    Overloaded: lambda text, wait_s: Shed(text, retry_after_s=wait_s),
    TooLong: lambda text, _: TooLongForModel(text),
    TimedOut: lambda text, _: Expired(text),
    ReplicaLost: lambda text, _: OutputLost(text),
}


def fault_of(error: BackendError, retry_after_s: float) -> Fault:
    """A backend's error as the client's fault; `retry_after_s` counts where the error does not say."""
    if isinstance(error, RefusedByEngine):
        return EngineRefusal(error)
    wait_s = error.retry_after_s if isinstance(error, Overloaded) else retry_after_s
    for kind, fault in _FAULTS.items():
        if isinstance(error, kind):
            return fault(str(error), wait_s)
    return Broken(str(error))
