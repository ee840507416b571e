"""All that we use of uvicorn beyond its documentation; nothing else of ours touches it.

`Connection` is uvicorn's HTTP protocol with three additions, for which it has no public interface:

- Each running request hears of a client that goes away; uvicorn tells the last request of a connection only.
- The head of a response leaves with its first bytes: one system call less on both sides.
- More of a stream may be pushed, which leaves at once, without a task that waits its turn (`PUSH`).

`tests/serve_apps/test_compat_uvicorn.py` lists every private name with what it is for, and compares that with
the installed uvicorn.
"""

import asyncio
from collections.abc import Set
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

PUSH = "headway.push"
"""The extension in an ASGI scope: `JoinedHead.push` of its response."""


class Connection(HttpToolsProtocol):
    """One connection."""

    running: RequestResponseCycle | None = None
    """The request that is answered, or was answered last."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone, and its running request hears of that."""
        super().connection_lost(exc)
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()

    def on_headers_complete(self) -> None:
        """The headers are here: its response is written as a `JoinedHead`."""
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not None and self.cycle is not before:
            response = JoinedHead(self.transport, self.flow)
            self.cycle.transport = cast("asyncio.Transport", response)
            cast("dict[str, Any]", self.scope)["extensions"] = {PUSH: response.push}

    @property
    def idle(self) -> bool:
        """True while no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def answering(self) -> bool:
        """True in the middle of a response."""
        running = self.running
        return running is not None and running.response_started and not running.response_complete

    @property
    def stalled(self) -> bool:
        """True while a response waits for its client to take more."""
        return self.flow.write_paused or self.transport.is_closing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:  # noqa: ANN401 - uvicorn's
        self.running = cycle
        super()._start_asgi_task(cycle, app)


class JoinedHead:
    """A connection as one response writes to it: its head waits for what follows in this pass of the loop."""

    __slots__ = ("_flow", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, flow: FlowControl) -> None:
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


def connection_of(server: uvicorn.Server) -> asyncio.Protocol:
    """A connection of the server, for a socket that was accepted outside of it."""
    settings: Any = server.config
    made: asyncio.Protocol = settings.http_protocol_class(
        config=settings, server_state=server.server_state, app_state=server.lifespan.state
    )
    return made


def connections_of(server: uvicorn.Server) -> Set[Any]:
    """The connections of the server, of the class that its settings name."""
    return server.server_state.connections


def close_listeners(server: uvicorn.Server) -> None:
    """Accept nothing new; what is in flight goes on."""
    for listener in server.servers:
        listener.close()
