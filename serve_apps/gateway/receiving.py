"""The client's side of a request: its body, and noticing that it has gone."""

import asyncio
from collections.abc import Iterable

from starlette.types import Receive

from serve_apps.gateway.faults import BodyTooLarge, ClientGone

MOST_BODY_BYTES = 16 * 2**20
"""Room for the longest contexts: a million tokens take a few bytes each."""


async def read_body(headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> bytes:
    """The body; BodyTooLarge as soon as that is known, ClientGone."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit() and int(value) > MOST_BODY_BYTES:
            raise _too_large()
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client went away before its request was complete")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY_BYTES:
            raise _too_large()
        more = message.get("more_body", False)
    return b"".join(parts)


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {MOST_BODY_BYTES} bytes")


class Watch:
    """Ends a request's deadline early when the client goes away.

    The deadline does the cancelling, so that an own end and one that somebody else asked for stay apart.
    """

    __slots__ = ("_deadline", "_task", "gone")

    def __init__(self, deadline: asyncio.Timeout, receive: Receive) -> None:
        self.gone = False
        self._deadline = deadline
        self._task = asyncio.create_task(self._wait(receive))

    def stop(self) -> None:
        """No longer watch: the answer is complete, or the request over."""
        self._task.cancel()

    async def _wait(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._deadline.expired():
            self.gone = True
            self._deadline.reschedule(asyncio.get_running_loop().time())
