"""The bodies of requests while they are read: how long, how large, and how much all of them hold together.

What is held is counted as it comes, and not as it is announced: who announces much and sends nothing takes no
room from others. A body counts until its request is read and valid; from then on requests are counted.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from starlette.types import Receive

from serve_apps.gateway.backend import BodyTooLarge, BodyTooSlow, ClientGone, Shed

MOST_BODY_BYTES = 16 * 2**20
"""Room for the longest contexts: a million tokens take a few bytes each."""


class Bodies:
    """Reads bodies; `held` bytes are in memory now, of at most `most_bytes`."""

    def __init__(self, *, most_bytes: int, within_s: float, retry_after_s: float) -> None:
        self.held = 0
        self._most_bytes, self._within_s, self._retry_after_s = most_bytes, within_s, retry_after_s

    @asynccontextmanager
    async def read(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> AsyncIterator[bytes]:
        """The body, held for the block. BodyTooLarge or Shed as soon as it is; BodyTooSlow, ClientGone."""
        for name, value in headers:
            if name == b"content-length" and value.isdigit() and int(value) > MOST_BODY_BYTES:
                raise _too_large()
        parts: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(self._within_s) as time:
                    await self._fill(parts, receive)
            except TimeoutError:
                if not time.expired():
                    raise
                raise BodyTooSlow(f"The body did not come within {self._within_s:g} s") from None
            yield b"".join(parts)
        finally:
            self.held -= sum(map(len, parts))

    async def _fill(self, parts: list[bytes], receive: Receive) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone("The client went away before its request was complete")
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > MOST_BODY_BYTES:
                raise _too_large()
            if self.held + len(part) > self._most_bytes:
                text = f"Bodies of {self.held} bytes are being read, which is as much as this gateway holds"
                raise Shed(text, retry_after_s=self._retry_after_s)
            self.held += len(part)
            parts.append(part)
            more = message.get("more_body", False)


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {MOST_BODY_BYTES} bytes")
