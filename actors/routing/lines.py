"""The Router's ends of its lines to gateways (`actors.wire`; theirs is `serve_apps.routed.connection`).

gateway ──▶   (name, Batch)
        ◀──   BatchAnswer, in the order of the batches; Messages in between
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from actors.routing.gateway_sessions import GatewaySessions
from actors.routing.messages import Batch
from actors.wire import Address, SecretListener, ServerConnection


class GatewayLines:
    """The lines of one router. One event loop, on which `clock` gives the router's seconds."""

    def __init__(
        self,
        sessions: GatewaySessions,
        host: Callable[[], str],
        clock: Callable[[], float],
        handled: Callable[[], None],
    ) -> None:
        """`handled` is called after each batch."""
        self._sessions, self._clock, self._handled = sessions, clock, handled
        self._listener = SecretListener(host, partial(_Line, self))
        self._lines: dict[str, _Line] = {}
        self._connected: set[_Line] = set()

    async def address(self) -> Address:
        """Where it listens."""
        return await self._listener.address()

    async def close(self) -> None:
        """Let nobody in any more, and end all lines."""
        await self._listener.close()
        for line in self._connected:
            line.transport.abort()
        while self._connected:
            await asyncio.sleep(0)

    def begun(self, line: "_Line") -> None:
        """A line has begun."""
        self._connected.add(line)

    def exchange(self, line: "_Line", name: str, batch: Batch) -> None:
        """Take a gateway's events; the outcomes for it at once, and those for others."""
        self._lines[name] = line
        line.post(self._sessions.exchange(self._clock(), name, batch))
        self.deliver()
        self._handled()

    def deliver(self) -> None:
        """Send what has become of requests to their gateways, as far as these are connected."""
        gateways = self._sessions.gateways
        for name in gateways.with_messages():
            if (line := self._lines.get(name)) is not None:
                line.post(gateways.take(name))

    def over(self, ended: "_Line") -> None:
        """A line has ended."""
        self._connected.discard(ended)
        for name in [name for name, line in self._lines.items() if line is ended]:
            del self._lines[name]
            self._sessions.parted(self._clock(), name)
        self.deliver()
        self._handled()


class _Line(ServerConnection):
    def __init__(self, lines: GatewayLines, secret: bytes) -> None:
        super().__init__(secret)
        self._lines = lines
        lines.begun(self)

    def received(self, messages: Sequence[tuple[str, Batch]]) -> None:
        for name, batch in messages:
            self._lines.exchange(self, name, batch)

    def connection_ended(self) -> None:
        self._lines.over(self)
