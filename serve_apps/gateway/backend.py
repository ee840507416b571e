"""What the gateway needs of whatever runs the requests, and how that can fail.

BackendError(Exception)
├── NotReady          no replica can take a request now              -> 503
├── Overloaded        too much is queued; has `retry_after_s`        -> 429
├── TooLong           the request can never fit an engine            -> 413
├── TimedOut          the request's time is over                     -> 504
└── ReplicaLost       the replica died after the first token left    -> 502 / an error event in the stream
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.planning import Role
from headway.routing.types import Placement
from serve_apps.engines.protocol import EngineRequest, TokenChunk


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
    """Whether requests can be served now, and if not, why."""

    ok: bool
    reason: str = ""


OnPlaced = Callable[[Placement], None]
"""Hears, before the first token, where a request is served."""


class Backend(Protocol):
    """Runs requests on replicas."""

    def generate(
        self, request: EngineRequest, placed: OnPlaced | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """The output, streamed. Retries before the first token; closing it aborts the request everywhere."""

    def complete(self, request_id: str) -> None:
        """The reader has all it wants of an output: closing it now is no failure. Any id is taken."""

    def ready(self) -> Readiness:
        """Whether every pool has a running replica."""

    def replicas(self) -> Sequence[ReplicaLoad]:
        """The running replicas and their load."""
