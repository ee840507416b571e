"""uvicorn's HTTP protocol, for which a connection without a request is not for ever.

uvicorn closes a connection that stays silent after an answer. One that says nothing at all, or half a header,
it keeps: here it has so many seconds to send the headers of a request.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedProtocol(HttpToolsProtocol):
    """One connection. `within_s` is set by `timed`."""

    within_s = 0.0
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection, of which a request is expected."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Some bytes; where they are neither of a request that runs nor all of its headers, more are due."""
        super().data_received(data)
        if self._due is None and not self._answering() and not self.transport.is_closing():
            self._expect()

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._due is None:
            self._expect()

    def on_headers_complete(self) -> None:
        """The headers are here."""
        self._expect_nothing()
        super().on_headers_complete()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect(self) -> None:
        self._due = self.loop.call_later(self.within_s, self._over)

    def _expect_nothing(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _over(self) -> None:
        self._due = None
        if self._answering():
            # Half a request behind one that is being answered: its time begins with the end of that.
            self._expect()
        elif not self.transport.is_closing():
            self.transport.write(TOO_SLOW)
            self.transport.close()


def timed(within_s: float) -> type[TimedProtocol]:
    """The protocol with that many seconds for the headers of a request."""
    return type("TimedProtocol", (TimedProtocol,), {"within_s": within_s})
