"""The backend that runs the gateway's requests, and its errors.

BackendError(Exception)                    becomes (`serve_apps.faults`)
├── NotReady       no replica can take a request now               Unready
├── Overloaded     too much is queued; has `retry_after_s`         Shed
├── TooLong        the request can never fit an engine             TooLongForModel
├── RefusedByEngine  the engine's own answer says why             EngineRefusal
├── TimedOut       the request's time is over                      Expired
└── ReplicaLost    the replica died after the first token left     OutputLost, or an event in the stream
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.planning import Role
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, TokenChunk
from serve_apps.faults import (
    Broken,
    EngineRefusal,
    Expired,
    Fault,
    OutputLost,
    Shed,
    TooLongForModel,
    Unready,
)
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
        return EngineRefusal(error.status, error.body)
    wait_s = error.retry_after_s if isinstance(error, Overloaded) else retry_after_s
    for kind, fault in _FAULTS.items():
        if isinstance(error, kind):
            return fault(str(error), wait_s)
    return Broken(str(error))
