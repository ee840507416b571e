"""A response whose head leaves with its first bytes: one system call less on both sides.

What follows in a stream may be pushed: it leaves at once, without a task that waits its turn.
"""

import asyncio
from typing import Protocol

PUSH = "headway.push"
"""The extension in an ASGI scope: `JoinedHead.push` of its response."""


class Flow(Protocol):
    """uvicorn's flow control of a connection."""

    write_paused: bool


class JoinedHead:
    """A connection as one response writes to it: its head waits for what follows in this pass of the loop."""

    __slots__ = ("_flow", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: Flow) -> None:
        self._transport, self._flow = transport, flow
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Bytes of the response, the first ones of which are its head."""
        if self._head is None:
            self._head = data
            asyncio.get_running_loop().call_soon(self._flush)
        elif self._head:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._transport.write(data)

    def push(self, body: bytes) -> bool:
        """More of a body without a length that is under way; False where it has to be sent the usual way."""
        if self._head != b"" or self._flow.write_paused or self._transport.is_closing():
            return False
        self._transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True

    def close(self) -> None:
        """The connection ends after what was written."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection ends."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head and not self._transport.is_closing():
            self._transport.write(head)
