"""Callers that wait for the next decision: woken when one is issued, not when one is answered.

A waiter is a coroutine on the coordinator's loop. All share one event, renewed at each issue; those who
are woken look for themselves whether it was for them.
"""

import asyncio
from collections.abc import Callable

from actors.virtual.decision import ScalingDecision
from actors.virtual.errors import TooManyWaiters

MOST_WAITERS = 8_000
"""Held at once. The actor admits more calls than this, so that those who wait never keep an answer out."""


class Waiters:
    """Everybody who waits."""

    def __init__(self, most: int = MOST_WAITERS) -> None:
        self._most = most
        self._issued = asyncio.Event()
        self.count = 0

    def wake(self) -> None:
        """A decision was issued."""
        self._issued.set()
        self._issued = asyncio.Event()

    async def until(
        self, found: Callable[[], ScalingDecision | None], timeout_s: float
    ) -> ScalingDecision | None:
        """What `found` finds, at once or after a decision was issued; None after `timeout_s` seconds."""
        decision = found()
        if decision is not None or timeout_s <= 0.0:
            return decision
        if self.count >= self._most:
            raise TooManyWaiters(f"{self.count} calls are waiting already; ask again later")
        self.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await self._found(found)
        except TimeoutError:
            return None
        finally:
            self.count -= 1

    async def _found(self, found: Callable[[], ScalingDecision | None]) -> ScalingDecision:
        while (decision := found()) is None:
            await self._issued.wait()
        return decision
