"""What every engine does, simulated or vLLM: prefill, decode, abort, stats.

    EngineError(Exception)
    ├── EngineFailed       the engine is broken; nothing more will come from it
    ├── PromptTooLong      the request can never fit this engine
    └── RequestAborted     someone called `abort` for a request that others still wait for

Times are seconds, lengths tokens. Values travel between processes, so they are small and picklable. An engine
may emit several tokens in one chunk. Closing the iterator of `decode` (or cancelling the task that waits in
`prefill`) aborts the request and frees its slot; `abort` does the same from elsewhere.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from headway.routing.types import RouteRequest

FinishReason = Literal["stop", "length"]


class EngineError(Exception):
    """Base of what an engine raises."""


class EngineFailed(EngineError):
    """The engine is broken; nothing more will come from it."""


class PromptTooLong(EngineError):
    """The request can never fit this engine."""


class RequestAborted(EngineError):
    """The request was aborted by a call of `abort`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request as an engine sees it.

    `prompt` is text or token ids; `input_tokens` is its length as the gateway counted or estimated it.
    `max_tokens` bounds the output. `sampling` holds what the client said of temperature, top_p, seed and the
    like; `stop` are strings at which the gateway cuts the text (an engine may stop earlier by itself).
    `route` is what the router knows of it (SLO, session, prefix blocks); None where no router is asked.
    """

    request_id: str
    model: str
    prompt: str | Sequence[int]
    input_tokens: int
    max_tokens: int
    stop: Sequence[str] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    route: RouteRequest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHandle:
    """Where the KV cache of a prefilled request is: what the decode side needs to fetch it."""

    request_id: str
    engine_id: str
    input_tokens: int
    transfer: Mapping[str, Any] = field(default_factory=dict)


class TokenChunk(NamedTuple):
    """Some tokens of a stream: their text, their number, and with the last one why the stream ended."""

    text: str
    tokens: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine's load: requests in the batch and queued, KV usage in [0, 1], prefilled KV still held."""

    engine: str
    running: int
    waiting: int
    kv_usage: float
    held_kv_tokens: int = 0


class Engine(Protocol):
    """One inference engine. A mixed one answers `decode` without a KV handle by doing both phases."""

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt; the KV stays here until the decode side has it."""

    def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncIterator[TokenChunk]:
        """Stream the output. The first token is part of the stream."""

    async def abort(self, request_id: str) -> None:
        """End the request if it is here and free what it holds; unknown ids are ignored."""

    def stats(self) -> EngineStats:
        """The load now."""
