"""The backend that runs the gateway's requests, its errors, and what it notes of each request (`Timeline`).

BackendError(Exception)                    becomes (`serve_apps.faults`)
├── NotReady       no replica can take a request now               Unready; has `retry_after_s`
├── Overloaded     too much is queued; has `retry_after_s`         Shed
├── TooLong        the request can never fit an engine             TooLongForModel
├── RefusedByEngine  the engine's own answer says why             EngineRefusal
├── TimedOut       the request's time is over                      Expired
└── ReplicaLost    the replica died after the first token left     OutputLost, or an event in the stream

    Step of a timeline
    route      asked for a place → placed          one for each attempt
    prefill    called on a replica → its KV is there
    decode     called on a replica → the last token

Times of steps are those of the gateway's clock. What a replica reports of its own work (`EngineTimes`) stands
with the call that it answered. A step that was left open ends with the request.
"""

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Protocol

from headway.planning import Role
from headway.routing.types import Placement
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, EngineTimes, TokenChunk
from serve_apps.faults import (
    RETRY_AFTER_S,
    Broken,
    EngineRefusal,
    Expired,
    Fault,
    OutputLost,
    Shed,
    TooLongForModel,
    Unready,
)
from serve_apps.tracing.spans import TraceContext


class BackendError(Exception):
    """Base of what a backend raises; the text is for the client."""


class NotReady(BackendError):
    """No replica can take a request now."""

    def __init__(self, message: str, retry_after_s: float = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(BackendError):
    """Too much is queued."""

    def __init__(self, message: str, retry_after_s: float = RETRY_AFTER_S) -> None:
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


EmptyState = Literal["asleep", "starting", "waiting"]
"""Without a replica: none is asked for, one is on its way, or it lacks GPUs that others hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """True while requests can be served; `reason` says why not. `empty` is the state of a model that may have
    pools without a replica then, and has; it should serve in `serves_in_s`, None: that is not known.
    """

    ok: bool
    reason: str = ""
    empty: EmptyState | None = None
    serves_in_s: float | None = None


LONGEST_ERROR = 500
"""Characters: an engine's words may repeat what a client sent."""

StepName = Literal["route", "prefill", "decode"]


class Step:
    """One of them; as a context it ends with its block, and keeps the error that ended that."""

    __slots__ = ("_clock", "began_s", "ended_s", "error", "name", "replica", "times", "trace")

    def __init__(
        self, name: StepName, replica: str, clock: Callable[[], float], trace: TraceContext | None
    ) -> None:
        self.name, self.replica, self.trace, self._clock = name, replica, trace, clock
        self.began_s, self.ended_s = clock(), 0.0
        self.error = ""
        self.times: EngineTimes | None = None

    def end(self) -> None:
        """It is over, if it was not yet."""
        if not self.ended_s:
            self.ended_s = self._clock()

    def traced(self, request: EngineRequest) -> EngineRequest:
        """The request for this call of a replica, whose spans hang below the call's."""
        if self.trace is None or request.call is None:
            return request
        return replace(request, call=request.call._replace(trace=self.trace.headers()))

    def failed(self, error: BaseException) -> None:
        """It is over, by this error."""
        self.end()
        self.error = f"{type(error).__name__}: {error}".removesuffix(": ")[:LONGEST_ERROR]

    def __enter__(self) -> "Step":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> None:
        self.end()
        if error is not None:
            self.failed(error)


class Timeline:
    """The steps of one request in order, and where it was placed last; `trace`: its place in one, if any."""

    __slots__ = ("clock", "placement", "steps", "trace")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, trace: TraceContext | None = None
    ) -> None:
        self.clock, self.trace = clock, trace
        self.placement: Placement | None = None
        self.steps: list[Step] = []

    def step(self, name: StepName, replica: str = "") -> Step:
        """A step that begins now."""
        trace = self.trace
        made = Step(name, replica, self.clock, trace.child() if trace is not None and trace.sampled else None)
        self.steps.append(made)
        return made

    def close(self, times: EngineTimes | None = None) -> None:
        """End all steps; `times` are those of the last one's replica."""
        for each in self.steps:
            each.end()
        if times is not None and self.steps:
            self.steps[-1].times = times


ChunkSink = Callable[[TokenChunk, bool], bool]
"""Sees each chunk at the time when it comes. Where the flag says that it is waited for, it may take it, and
says whether it does: one task less that wakes for each."""


class Backend(Protocol):
    """Runs requests on replicas."""

    def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """The output, streamed. Retries before the first token; closing it aborts the request everywhere.

        The timeline has its placement before the first chunk comes. The `sink` sees those after the first
        when the engine has made them, however slow the reader is; what it takes is not yielded.
        """

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """What an engine says to it; only asked where engines answer clients by themselves. BackendError."""

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


def fault_of(error: BackendError) -> Fault:
    """A backend's error as the client's fault."""
    if isinstance(error, RefusedByEngine):
        return EngineRefusal(error.status, error.body)
    wait_s = error.retry_after_s if isinstance(error, Overloaded | NotReady) else RETRY_AFTER_S
    for kind, fault in _FAULTS.items():
        if isinstance(error, kind):
            return fault(str(error), wait_s)
    return Broken(str(error))
