"""Long polls: each gateway waits in one call for its letters, and is woken when there are some."""

import asyncio
from collections.abc import Callable

from actors.routing.gateways import Gateways
from actors.routing.messages import Letters

POLL_S = 10.0
"""Seconds after which a poll is answered with nothing, so that both sides know that the other lives."""


class Post:
    """Delivers the gateways' letters. One event loop."""

    def __init__(self, gateways: Gateways, clock: Callable[[], float]) -> None:
        self._gateways = gateways
        self._clock = clock
        self._waiters: dict[str, asyncio.Future[None]] = {}

    async def collect(self, name: str) -> Letters:
        """The letters of a gateway, once there are some. A later poll of the same gateway ends this one.

        A gateway that is not known is told at once: it may wait for what nobody remembers.
        """
        letters = self._gateways.take(self._clock(), name)
        if letters != Letters():
            return letters
        self._wake(name)
        waiter = self._waiters[name] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(POLL_S):
                await waiter
        except TimeoutError:
            pass
        if self._waiters.get(name) is not waiter:
            return Letters()
        del self._waiters[name]
        return self._gateways.take(self._clock(), name)

    def deliver(self) -> None:
        """Wake the gateways that have letters."""
        for name in self._gateways.with_letters():
            waiter = self._waiters.get(name)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def _wake(self, name: str) -> None:
        """End an earlier poll: whoever waits there has gone."""
        earlier = self._waiters.pop(name, None)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)
