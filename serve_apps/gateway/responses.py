"""Answers on their way to the client, over the bare ASGI channel: whole, or as server-sent events.

The bytes are the engine's. The status is sent with the first of them, so that whatever goes wrong before the
first token still gets a status of its own. After that a fault becomes an event in the stream, which ends with
it, as vLLM's server does.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.types import Send

from serve_apps.faults import Fault

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": headway\n\n"
"""A comment, which readers of events pass over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint that takes requests for output; `prompt_param` is the field that holds the prompt.

    `own_bound`: output tokens where a client says nothing; None: `gateway.default_max_tokens`.
    """

    path: str
    id_prefix: str
    prompt_param: str
    own_bound: int | None = None


COMPLETIONS = Endpoint(path="/v1/completions", id_prefix="cmpl-", prompt_param="prompt", own_bound=16)
CHAT_COMPLETIONS = Endpoint(path="/v1/chat/completions", id_prefix="chatcmpl-", prompt_param="messages")
RESPONSES = Endpoint(path="/v1/responses", id_prefix="resp-", prompt_param="input")
ENDPOINTS = (COMPLETIONS, CHAT_COMPLETIONS, RESPONSES)

Header = tuple[bytes, bytes]
HeaderList = Sequence[Header]
Push = Callable[[bytes], bool]
"""Sends more of a stream at once; False where it cannot (`serve_apps.compat_uvicorn`)."""
_JSON = (b"content-type", b"application/json")

_EVENTS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies of the nginx family would collect the events otherwise.
    (b"x-accel-buffering", b"no"),
)


class Channel:
    """The ASGI channel of one request."""

    __slots__ = ("_headers", "_push", "_send", "ended", "spoken", "started", "status")

    def __init__(self, send: Send, headers: HeaderList, push: Push | None = None) -> None:
        self._send, self._push = send, push
        self._headers = headers
        self.started = False
        self.spoken = False
        """Something of the answer has left, not comments alone."""
        self.ended = False
        self.status: int | None = None
        """HTTP's, once it is sent."""

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response, whatever it will be."""
        self._headers = [*self._headers, *headers]

    async def start_stream(self, headers: HeaderList) -> None:
        """Begin a response of events."""
        self.started = True
        await self._start(200, [*_EVENTS, *headers])

    async def event(self, data: bytes, *, last: bool = False) -> None:
        """Send some events."""
        self.ended, self.spoken = last, self.spoken or data is not HEARTBEAT
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    def push(self, data: bytes) -> bool:
        """Send some events at once; False where they have to wait."""
        pushed = self._push is not None and self.started and not self.ended and self._push(data)
        self.spoken = self.spoken or pushed
        return pushed

    async def whole(self, status: int, body: bytes, headers: HeaderList = ()) -> None:
        """Send a response of JSON."""
        self.started = self.spoken = self.ended = True
        await self._start(status, [_JSON, (b"content-length", b"%d" % len(body)), *headers])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def fail(self, fault: Fault) -> None:
        """Say what went wrong, where there is still room to say it."""
        if not self.started:
            await self.whole(fault.status, fault.body(), fault.headers())
        elif not self.ended:
            await self.event(b"data: " + fault.body() + b"\n\n" + DONE, last=True)

    async def _start(self, status: int, headers: HeaderList) -> None:
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*self._headers, *headers]}
        )


class StreamedAnswer:
    """Server-sent events."""

    __slots__ = ("_channel", "_headers")

    def __init__(self, channel: Channel, headers: HeaderList) -> None:
        self._channel, self._headers = channel, headers

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response, before its first event."""
        self._headers = [*self._headers, *headers]

    async def part(self, part: bytes, *, last: bool = False) -> None:
        """Some events; nothing may follow the last."""
        if not self._channel.started:
            await self._channel.start_stream(self._headers)
        await self._channel.event(part, last=last)

    def push(self, part: bytes) -> bool:
        """Some events at once, but not the last; False where that cannot be."""
        return self._channel.push(part)

    def close(self) -> None:
        """The request is over."""


class BeatingAnswer(StreamedAnswer):
    """Server-sent events, and a comment whenever there were none for `every_s`."""

    __slots__ = ("_beat", "_every_s", "_sending", "_sent_s", "_waits")

    def __init__(
        self, channel: Channel, headers: HeaderList, every_s: float, waits: Callable[[], HeaderList]
    ) -> None:
        """`waits` are headers for what has nothing to say yet when it begins."""
        super().__init__(channel, headers)
        self._waits = waits
        self._every_s, self._sent_s = every_s, asyncio.get_running_loop().time()
        self._sending, self._beat = asyncio.Lock(), asyncio.create_task(self._beats())

    async def part(self, part: bytes, *, last: bool = False) -> None:
        """Some events."""
        async with self._sending:
            await super().part(part, last=last)
            self._sent_s = asyncio.get_running_loop().time()

    def push(self, part: bytes) -> bool:
        """Some events, unless a comment is on its way."""
        if self._sending.locked() or not super().push(part):
            return False
        self._sent_s = asyncio.get_running_loop().time()
        return True

    def close(self) -> None:
        """No more comments: the answer is complete, or the request over."""
        self._beat.cancel()
        # It holds this object.
        del self._beat

    async def _beats(self) -> None:
        while not self._channel.ended:
            due_s = self._sent_s + self._every_s - asyncio.get_running_loop().time()
            if due_s > 0:
                await asyncio.sleep(due_s)
                continue
            if not self._channel.started:
                self.add_headers(self._waits())
            await self.part(HEARTBEAT)


class WholeAnswer:
    """One JSON document."""

    __slots__ = ("_channel", "_headers", "_parts")

    def __init__(self, channel: Channel, headers: HeaderList) -> None:
        self._channel, self._headers = channel, headers
        self._parts: list[bytes] = []

    def add_headers(self, headers: HeaderList) -> None:
        """Add to the headers of the response."""
        self._headers = [*self._headers, *headers]

    async def part(self, part: bytes, *, last: bool = False) -> None:
        """A part, kept until the last one."""
        self._parts.append(part)
        if last:
            await self._channel.whole(200, b"".join(self._parts), self._headers)

    def push(self, part: bytes) -> bool:
        """A part, kept."""
        self._parts.append(part)
        return True

    def close(self) -> None:
        """The request is over."""


Answer = StreamedAnswer | WholeAnswer
"""The output of one request on its way to the client."""
