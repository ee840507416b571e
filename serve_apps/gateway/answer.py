"""Sending a response: whole, streamed, or a fault, over the bare ASGI channel.

The status is sent with the first bytes of the body, so that whatever goes wrong before the first token still
gets a status of its own. After that a fault becomes an event in the stream, which then ends without `[DONE]`.
"""

from collections.abc import Sequence
from typing import Protocol

from starlette.types import Send

from serve_apps.engines.protocol import FinishReason
from serve_apps.gateway.faults import Fault
from serve_apps.gateway.request import Usage
from serve_apps.gateway.wire import Envelope, EventWriter, error_event

HeaderList = Sequence[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
)


class Answer(Protocol):
    """Takes the output of one request."""

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response, before its first text."""

    async def text(self, text: str) -> None:
        """Some output."""

    async def end(self, text: str, reason: FinishReason, usage: Usage) -> None:
        """The last output."""


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
        """Add to the headers of the response."""
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
        """Add to the headers of the response."""
        self._headers = [*self._headers, *headers]

    async def text(self, text: str) -> None:
        """Some output, kept."""
        self._texts.append(text)

    async def end(self, text: str, reason: FinishReason, usage: Usage) -> None:
        """The last output; everything leaves."""
        whole = self._envelope.answer("".join([*self._texts, text]), reason, usage)
        await self._channel.whole(200, whole, self._headers)
