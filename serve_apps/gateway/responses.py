"""Responses, whole or streamed, as bytes and over the bare ASGI channel.

The status is sent with the first bytes of the body, so that whatever goes wrong before the first token still
gets a status of its own. After that a fault becomes an event in the stream, which then ends without `[DONE]`.

Everything of an event but its text is the same for the whole stream and is made once; per chunk one string is
quoted and three are joined. The two APIs differ only in their tables, `COMPLETIONS` and `CHAT_COMPLETIONS`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Protocol

from starlette.types import Send

from serve_apps.engines.protocol import FinishReason
from serve_apps.gateway.backend import Fault
from serve_apps.gateway.request import GenerationRequest, Usage
from serve_apps.gateway.validation import read_chat, read_completion

DONE = b"data: [DONE]\n\n"

_TEXT = "\x00"
"""Stands for the text while an event's frame is made; JSON never holds it unescaped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint that takes requests for output; `prompt_param` is the field that holds the prompt."""

    path: str
    id_prefix: str
    prompt_param: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Api(Endpoint):
    """An endpoint whose answers are made here.

    `delta(text, first)` and `whole(text)` are the parts of a choice that hold the text.
    """

    stream_object: str
    whole_object: str
    read: Callable[[bytes], GenerationRequest]
    delta: Callable[[str, bool], dict[str, Any]]
    whole: Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The fields that every response of one request has."""

    api: Api
    id: str
    created: int
    model: str
    fingerprint: str

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
        }

    def answer(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """The whole answer as JSON."""
        choice = {"index": 0, **self.api.whole(text), "logprobs": None, "finish_reason": reason}
        head = self._head(self.api.whole_object)
        return json.dumps({**head, "choices": [choice], "usage": _usage(usage)}).encode()

    def frame(self, *, first: bool, with_usage: bool) -> tuple[str, str]:
        """The text before and after that of an event that does not end the stream."""
        choice = {"index": 0, **self.api.delta(_TEXT, first), "logprobs": None, "finish_reason": None}
        event = _event(self._head(self.api.stream_object) | {"choices": [choice]} | _nothing(with_usage))
        before, _, after = event.rpartition(quoted(_TEXT))
        return before, after

    def usage_event(self, usage: Usage) -> bytes:
        """The event that carries the token counts, before the last."""
        return _event(self._head(self.api.stream_object) | {"choices": [], "usage": _usage(usage)}).encode()


class EventWriter:
    """The events of one stream."""

    __slots__ = ("_after", "_before", "_envelope", "_first", "_with_usage")

    def __init__(self, envelope: Envelope, *, with_usage: bool) -> None:
        self._envelope = envelope
        self._with_usage = with_usage
        self._first: str | None
        self._first, _ = envelope.frame(first=True, with_usage=with_usage)
        self._before, self._after = envelope.frame(first=False, with_usage=with_usage)

    def text(self, text: str) -> bytes:
        """An event with some text."""
        return (self._head() + quoted(text) + self._after).encode()

    def end(self, text: str, reason: FinishReason, usage: Usage) -> bytes:
        """The last text, why it is the last, the usage if wanted, and the end mark."""
        after = self._after.replace('"finish_reason":null', f'"finish_reason":"{reason}"')
        last = (self._head() + quoted(text) + after).encode()
        return last + (self._envelope.usage_event(usage) if self._with_usage else b"") + DONE

    def _head(self) -> str:
        if self._first is None:
            return self._before
        head, self._first = self._first, None
        return head


def error_event(body: bytes) -> bytes:
    """An error in the middle of a stream, which ends with it."""
    return b"data: " + body + b"\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


def _nothing(with_usage: bool) -> dict[str, None]:
    return {"usage": None} if with_usage else {}


def _usage(usage: Usage) -> dict[str, Any]:
    counts = {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if usage.cached_tokens is None:
        return counts
    return {**counts, "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def _chat_delta(text: str, first: bool) -> dict[str, Any]:
    return {"delta": {"role": "assistant", "content": text} if first else {"content": text}}


COMPLETIONS = Api(
    path="/v1/completions",
    id_prefix="cmpl-",
    stream_object="text_completion",
    whole_object="text_completion",
    prompt_param="prompt",
    read=read_completion,
    delta=lambda text, _first: {"text": text},
    whole=lambda text: {"text": text},
)

CHAT_COMPLETIONS = Api(
    path="/v1/chat/completions",
    id_prefix="chatcmpl-",
    stream_object="chat.completion.chunk",
    whole_object="chat.completion",
    prompt_param="messages",
    read=read_chat,
    delta=_chat_delta,
    whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
)

RESPONSES = Endpoint(path="/v1/responses", id_prefix="resp-", prompt_param="input")
"""Answered by engines that do so by themselves."""

HeaderList = Sequence[tuple[bytes, bytes]]
_JSON = (b"content-type", b"application/json")

_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
)


class Channel:
    """The ASGI channel of one request."""

    __slots__ = ("_headers", "_send", "ended", "started")

    def __init__(self, send: Send, headers: HeaderList) -> None:
        self._send = send
        self._headers = headers
        self.started = False
        self.ended = False

    async def start_stream(self, headers: HeaderList) -> None:
        """Begin a response of events."""
        self.started = True
        await self._start(200, [*_EVENTS, *headers])

    async def event(self, data: bytes, *, last: bool = False) -> None:
        """Send some events."""
        self.ended = last
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def whole(self, status: int, body: bytes, headers: HeaderList = ()) -> None:
        """Send a response of JSON."""
        self.started = self.ended = True
        await self._start(status, [_JSON, (b"content-length", b"%d" % len(body)), *headers])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, fault: Fault) -> None:
        """Say what went wrong, where there is still room to say it."""
        if not self.started:
            await self.whole(fault.status, fault.body(), fault.headers())
        elif not self.ended:
            await self.event(error_event(fault.body()), last=True)

    async def _start(self, status: int, headers: HeaderList) -> None:
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*self._headers, *headers]}
        )


class StreamedAnswer:
    """Output as server-sent events."""

    __slots__ = ("_channel", "_headers", "_writer")

    def __init__(self, channel: Channel, envelope: Envelope, headers: HeaderList, *, usage: bool) -> None:
        self._channel = channel
        self._headers = headers
        self._writer = EventWriter(envelope, with_usage=usage)

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response, before its first text."""
        self._headers = [*self._headers, *headers]

    async def text(self, text: str) -> None:
        """Some output, as an event."""
        if not self._channel.started:
            await self._channel.start_stream(self._headers)
        await self._channel.event(self._writer.text(text))

    async def end(self, text: str, reason: FinishReason, usage: Usage) -> None:
        """The last output and the end mark."""
        if not self._channel.started:
            await self._channel.start_stream(self._headers)
        await self._channel.event(self._writer.end(text, reason, usage), last=True)


class WholeAnswer:
    """Output as one JSON document."""

    __slots__ = ("_channel", "_envelope", "_headers", "_texts")

    def __init__(self, channel: Channel, envelope: Envelope, headers: HeaderList) -> None:
        self._channel = channel
        self._envelope = envelope
        self._headers = headers
        self._texts: list[str] = []

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response, before its first text."""
        self._headers = [*self._headers, *headers]

    async def text(self, text: str) -> None:
        """Some output, kept."""
        self._texts.append(text)

    async def end(self, text: str, reason: FinishReason, usage: Usage) -> None:
        """The last output; everything leaves."""
        whole = self._envelope.answer("".join([*self._texts, text]), reason, usage)
        await self._channel.whole(200, whole, self._headers)


class Answer(Protocol):
    """The output of one request on its way to the client; its text is of the kind that the backend sends."""

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response, before its first text."""

    async def text(self, text: Any) -> None:  # noqa: ANN401 - str, or bytes of an engine's own answer
        """Some output."""

    async def end(self, text: Any, reason: FinishReason, usage: Usage) -> None:  # noqa: ANN401
        """The last output; nothing may follow."""
