"""The protocol of every engine, simulated or real: prefill, decode, abort, and reports of its load.

    EngineError(Exception)
    ├── EngineFailed       the engine is broken; nothing more will come from it
    ├── PromptTooLong      the request can never fit this engine
    ├── Refused            the engine's own answer to a call that it does not take
    └── RequestAborted     `abort` was called, or the same request came again, while others still waited

Times are seconds, lengths tokens. Values travel between processes, so they are small and picklable. An engine
may emit several tokens in one chunk. Closing the iterator of `decode` (or cancelling the task that waits in
`prefill`) aborts the request and frees its slot; `abort` does the same from elsewhere.

A request id names one request for ever, and callers retry under the same id: an attempt whose end has not
come through yet must not be in the way. So a request that comes again takes the place of itself, and a reader
that still waits for the earlier attempt gets RequestAborted.
"""

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

from headway.routing.types import RouteRequest

FinishReason = Literal["stop", "length"]


class EngineError(Exception):
    """Base of what an engine raises."""


class EngineFailed(EngineError):
    """The engine is broken; nothing more will come from it."""


class PromptTooLong(EngineError):
    """The request can never fit this engine."""


def check_length(input_tokens: int, max_tokens: int, longest_tokens: int) -> None:
    """PromptTooLong where input and output of a request are more than an engine's `longest_tokens`."""
    if input_tokens + max_tokens > longest_tokens:
        raise PromptTooLong(
            f"{input_tokens} input and {max_tokens} output tokens are more than the {longest_tokens} "
            "that this model holds"
        )


class RequestAborted(EngineError):
    """The request was aborted by a call of `abort`, or came again and took its own place."""


def error_body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """An error in OpenAI's form."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error}).encode()


class Refused(EngineError):
    """The engine's own answer to a call that it does not take: an HTTP status and a body of JSON."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status, self.body = status, body


class ClientCall(NamedTuple):
    """What a client sent, as it came, for engines that answer it themselves (`EngineKind.answers`).

    One output, unless it asks for beams. `stream`: it wants server-sent events. `bounded`: it named the most
    tokens; else `EngineRequest.max_tokens` is that bound. `divisible`: a prefill elsewhere can serve it.
    `trace`: the headers of W3C's trace context.
    """

    path: str
    body: bytes
    stream: bool
    bounded: bool
    divisible: bool = True
    trace: Sequence[tuple[bytes, bytes]] = ()


class AuxiliaryCall(NamedTuple):
    """What a client asks of an engine that makes no output and counts as none, such as POST /tokenize."""

    method: str
    path: str
    body: bytes


class AuxiliaryAnswer(NamedTuple):
    """An HTTP status and a body of JSON."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One request as an engine sees it.

    `prompt` is text or token ids; `input_tokens` is its length as the gateway counted or estimated it.
    `max_tokens` bounds the output. `sampling` holds the client's temperature, top_p, seed and the
    like; `stop` are strings at which its text is cut (`answering`; an engine may stop by itself).
    `route` is the router's view of it (SLO, session, prefix blocks); None where no router is asked. With a
    `call` the engine answers that; the other fields are what the gateway read of it, to decide by. `adapter`
    is the LoRA adapter that it is for, "" for the model itself.
    """

    request_id: str
    model: str
    prompt: str | Sequence[int]
    input_tokens: int
    max_tokens: int
    stop: Sequence[str] = ()
    sampling: Mapping[str, Any] = field(default_factory=dict)
    route: RouteRequest | None = None
    call: ClientCall | None = None
    adapter: str = ""


class EngineTimes(NamedTuple):
    """When an engine did what for one call, in seconds since that came; None: not part of it, or not known.

    `transferred_s`: the prompt's KV was here, or for engines that do not tell the two apart, and a place in
    the batch was free. `begun_s`: it left the queue. `first_token_s`: the first token was there. `ended_s`:
    the last one was, or in a prefill, the prompt was computed.
    """

    transferred_s: float | None = None
    begun_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHandle:
    """Where the KV cache of a prefilled request is: what the decode side needs to fetch it."""

    request_id: str
    engine_id: str
    input_tokens: int
    transfer: Mapping[str, Any] = field(default_factory=dict)
    cached_tokens: int | None = None
    """Of the input, what the prefill found in its prefix cache; None where the engine does not report it."""
    times: EngineTimes | None = None


class TokenChunk(NamedTuple):
    """Some tokens of a stream: their text, their number, and with the last one why the stream ended.

    The last one also has what of the prompt was not computed, as `KvHandle.cached_tokens`, and `times`. Of a
    `ClientCall` the text is bytes of the answer's body, and a token may be counted before any byte tells of
    it.
    """

    text: str | bytes
    tokens: int
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None
    times: EngineTimes | None = None


def joined(chunks: Sequence[TokenChunk]) -> TokenChunk:
    """Some of one stream as one chunk."""
    return TokenChunk(
        # All of them bytes, or all of them text.
        cast("str", chunks[0].text[:0]).join(cast("str", chunk.text) for chunk in chunks),
        sum(chunk.tokens for chunk in chunks),
        *chunks[-1][2:],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """An engine's load: requests in the batch and queued, KV usage in [0, 1], prefilled KV still held.

    Totals since the start, in tokens: `prompt_tokens` of all prompts begun with or received here, of these
    `cached_tokens` found in the prefix cache and `external_tokens` received from another engine. So the local
    prefix-hit rate is cached / prompt, the external one external / prompt, and their sum is the part that
    did not have to be computed here. `busy_s` is the time spent computing: the difference of two samples over
    the time between them is the utilisation. `preemptions`: requests that were thrown out of the batch, to be
    computed again. `output_tokens` were produced here, including those of prefill engines, which are thrown
    away. Simulated engines count neither. `adapters` are the LoRA adapters that are loaded, the least
    recently used first, and `adapter_room` how many a batch can use; None of an engine without any.
    `blocks_at` is the sequence of `known_blocks`, a method outside the protocol that engines may have, as
    vLLM's has, to report what their prefix caches hold; None: not known now.
    """

    engine: str
    running: int
    waiting: int
    kv_usage: float
    held_kv_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    external_tokens: int = 0
    busy_s: float = 0.0
    preemptions: int = 0
    output_tokens: int = 0
    adapters: tuple[str, ...] | None = None
    adapter_room: int | None = None
    blocks_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """An engine's sizes: tokens in its KV cache, input plus output of one request, requests in a batch.

    `kv_bytes_per_token`: of all its GPUs together; None where that is not known. Engines may say so with a
    method `sizes()`, and end with `close()`; both are outside the protocol.
    """

    kv_tokens: int
    request_tokens: int
    batch: int
    kv_bytes_per_token: float | None = None


class Engine(Protocol):
    """One inference engine: a prefill engine, a decode engine, or a mixed one, which does all of this.

    `decode` without a KV handle, on a mixed engine, does both phases.
    """

    async def prefill(self, request: EngineRequest) -> KvHandle:
        """Compute the prompt; the KV stays here until the decode side has it."""

    def decode(self, request: EngineRequest, kv: KvHandle | None) -> AsyncIterator[TokenChunk]:
        """Stream the output. The first token is part of the stream."""

    async def abort(self, request_id: str) -> None:
        """End the request if it is here and free what it holds; unknown ids are ignored."""

    def stats(self) -> EngineStats:
        """The load now."""


class SleepingEngine(Protocol):
    """What engines have beside that whose kind says that they sleep (`EngineKind.sleeps`).

    They are asked only while no request is here. EngineError where it fails.
    """

    async def sleep(self, level: int) -> None:
        """Free the GPU; level 1 keeps the weights in host memory, 2 keeps nothing."""

    async def wake(self) -> None:
        """Return when it serves again."""


class LoadedAdapters:
    """The LoRA adapters that an engine has loaded: as many as a batch uses, the least recently used go first.

        wait_s = adapters.begin(name, now_s)      # seconds until it is there
        adapters.end(name)

    Those in use stay. Where more are in use than there is room for, all count as loaded: an engine has the
    requests of the last ones wait. `loaded` are there at the start; one that is missing takes `load_s`.
    `room` None: the engine has none.
    """

    def __init__(self, room: int | None, loaded: Iterable[str] = (), load_s: float = 0.0) -> None:
        self.room, self._load_s = room, load_s
        self._ready_s: OrderedDict[str, float] = OrderedDict.fromkeys(loaded, 0.0)
        self._users: dict[str, int] = {}
        self._shrink()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The least recently used first."""
        return None if self.room is None else tuple(self._ready_s)

    def begin(self, name: str, now_s: float = 0.0) -> float:
        """A request uses it from now on; seconds until it can."""
        if not name:
            return 0.0
        self._users[name] = self._users.get(name, 0) + 1
        self._ready_s.setdefault(name, now_s + self._load_s)
        self._ready_s.move_to_end(name)
        self._shrink()
        return max(0.0, self._ready_s[name] - now_s)

    def end(self, name: str) -> None:
        """A request that used it has ended."""
        if not name:
            return
        self._users[name] -= 1
        if not self._users[name]:
            del self._users[name]
            self._shrink()

    def _shrink(self) -> None:
        while len(self._ready_s) > (self.room or 0):
            idle = next((name for name in self._ready_s if name not in self._users), None)
            if idle is None:
                return
            del self._ready_s[idle]
