"""uvicorn's HTTP protocol, in which no client holds anything for ever, nor more than a little of it.

| a connection that                                   | is                                            |
|-----------------------------------------------------|-----------------------------------------------|
| says nothing, or half a head                        | answered 408 after `headers_within_s`         |
| sends what brings neither a head nor a body on      | answered 431 after `MOST_HEAD_BYTES`          |
| goes on with a body whose request has been answered | read seldom, closed after as much as a body   |
| sends its body in crumbs                            | answered 400, see `LEAST_OF_PART`             |
| asks on without waiting for answers                 | reset after `MOST_PIPELINED`                  |
| takes nothing of an answer that waits for it        | reset after `taken_within_s`                  |
| is one too many                                     | let in for the one longest without a request  |

uvicorn closes a connection that stays silent after an answer. Beyond that it has none of these bounds.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Set
from dataclasses import dataclass, field

from serve_apps.compat_uvicorn import Connection

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
BAD = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"

MOST_BODY_BYTES = 16 * 2**20
"""Room for the longest contexts: a million tokens take a few bytes each."""
MOST_HEAD_BYTES = 128 * 2**10
MOST_HEADERS = 256
SLICE = 16 * 2**10
MOST_PARTS, LEAST_OF_PART = 1024, 16
"""A body in more parts than this has so many bytes in each, on average: each costs as much as a long one."""
MOST_PIPELINED = 16
"""Requests behind one that is being answered."""

LEAST_TAKEN = 4096
"""Bytes of a waiting answer that a client has to take in `taken_within_s`."""

LOOKS = 4
"""How often in that time it is looked at."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER by which what was not sent is dropped at once; else the kernel would go on trying."""


DROPPED_EVERY_S = 0.01
"""Seconds between two parts of bodies whose requests have been answered, of all connections together."""


class TooManyRequests(Exception):
    """Of one connection at once."""


@dataclass(slots=True, kw_only=True)
class Limits:
    """Of all connections of one server; `waiting` are those without a request, the longest wait first, and
    `dropping` those that go on with a body whose request has been answered, in turn.
    """

    headers_within_s: float = 20.0
    """Seconds that a connection may take to send the headers of a request; then it is closed."""
    taken_within_s: float = 60.0
    """Seconds in which a client has to take some of an answer that waits for it; then it is reset."""
    most: int = 8192
    """Connections at once; one more, and that which has waited longest for a request is reset."""
    waiting: dict["TimedProtocol", None] = field(default_factory=dict)
    dropping: deque["TimedProtocol"] = field(default_factory=deque)

    def drop_later(self, connection: "TimedProtocol") -> None:
        """Discard more of an unwanted body, in turn."""
        self.dropping.append(connection)
        if len(self.dropping) == 1:
            connection.loop.call_later(DROPPED_EVERY_S, self._drop, connection.loop)

    def _drop(self, loop: asyncio.AbstractEventLoop) -> None:
        self.dropping.popleft().read_on()
        if self.dropping:
            loop.call_later(DROPPED_EVERY_S, self._drop, loop)


class TimedProtocol(Connection):
    """One connection. `limits` are set by `timed`."""

    limits: Limits
    pauses = 0
    """How often the client was slower than its answers."""

    _due: asyncio.TimerHandle | None = None
    _in_body = False
    _parts = 0
    _body_bytes = 0
    _fruitless = 0
    """Bytes since there last was a head, or a part of a body that is read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection, of which a request is expected."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.most:
            reset(next(iter(self.limits.waiting), self))
        if not transport.is_closing():
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes, a few at a time: what is too much is seen before all of it is parsed."""
        for start in range(0, len(data), SLICE):
            self._received(data[start : start + SLICE])
            if self.transport.is_closing():
                return
        if self._in_body and self.idle:
            # Unwanted, but discarded: the client reads its answer only once it has sent all. Others go first.
            self.transport.pause_reading()
            self.limits.drop_later(self)

    def read_on(self) -> None:
        """Take more of a connection that was left alone for a while."""
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _received(self, data: bytes) -> None:
        """Where they are neither of a request that runs nor all of its headers, more are due."""
        self._fruitless += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        most = MOST_BODY_BYTES if self._in_body and self.idle else MOST_HEAD_BYTES
        if self._fruitless > most or (self.headers is not None and len(self.headers) > MOST_HEADERS):
            self._refuse(TOO_LARGE)
        elif self._parts > MOST_PARTS and self._body_bytes < LEAST_OF_PART * self._parts:
            self._refuse(BAD)
        elif self._due is None and self.idle:
            self._expect()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise TooManyRequests
        super().on_message_begin()
        if self._due is None:
            self._expect()

    def on_headers_complete(self) -> None:
        """The headers are here."""
        self._fruitless, self._in_body, self._parts, self._body_bytes = 0, True, 0, 0
        self._expect_nothing()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._parts += 1
        self._body_bytes += len(body)
        if not self.idle:
            self._fruitless = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is complete."""
        super().on_response_complete()
        if self.idle and not self.transport.is_closing():
            self.limits.waiting[self] = None

    def pause_writing(self) -> None:
        """More waits to be taken than is good."""
        self.pauses += 1
        super().pause_writing()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        del msg
        self._refuse(BAD)

    def _expect(self) -> None:
        self._due = self.loop.call_later(self.limits.headers_within_s, self._over)
        self.limits.waiting[self] = None

    def _expect_nothing(self) -> None:
        self.limits.waiting.pop(self, None)
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _over(self) -> None:
        self._due = None
        if not self.idle:
            # Half a request behind one that is being answered: its time begins with the end of that.
            self._expect()
        elif not self.transport.is_closing():
            self._refuse(TOO_SLOW)

    def _refuse(self, answer: bytes) -> None:
        if self.answering:
            # A client in the middle of an answer could not tell ours from the rest of it.
            self.transport.abort()
        else:
            self.transport.write(answer)
            self.transport.close()


def timed(limits: Limits) -> type[TimedProtocol]:
    """The protocol of a server with these limits."""
    return type("TimedProtocol", (TimedProtocol,), {"limits": limits})


def reset(connection: TimedProtocol) -> None:
    """Drop a connection with all that waits to be sent on it."""
    connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.transport.abort()


async def let_stalled_go(connections: Set[TimedProtocol], within_s: float) -> None:
    """For ever: reset those whose clients take too little of what waits for them."""
    loop = asyncio.get_running_loop()
    stalled: dict[TimedProtocol, tuple[int, int, float]] = {}
    while True:
        await asyncio.sleep(within_s / LOOKS)
        now_s, before = loop.time(), stalled
        stalled = {}
        for connection in list(connections):
            if not connection.stalled or connection not in connections:
                continue
            untaken = _untaken(connection.transport)
            pauses, most, since_s = before.get(connection, (-1, 0, now_s))
            if pauses != connection.pauses or untaken <= most - LEAST_TAKEN:
                stalled[connection] = (connection.pauses, untaken, now_s)
            elif now_s - since_s < within_s:
                stalled[connection] = (pauses, most, since_s)
            else:
                reset(connection)
                # Hundreds that end in one turn of the loop would make all others wait.
                await asyncio.sleep(0)


def _untaken(transport: asyncio.Transport) -> int:
    """Bytes that wait here or in the kernel until the client takes them."""
    in_kernel = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    return transport.get_write_buffer_size() + int(struct.unpack("i", in_kernel)[0])
