"""The clock of a simulated engine, and the tokens that wait for a reader."""

import asyncio
from collections.abc import Callable
from math import inf

from serve_apps.engines.protocol import EngineError


class PausableTimer:
    """Model time, and one callback at a model time.

    `now_s` follows the loop's monotonic clock and stands still while paused. A callback comes at its time or
    later, never while paused.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._due_s: float | None = None
        self._paused_at_s: float | None = None
        self._behind_s = 0.0
        self._reached_s = -inf

    @property
    def paused(self) -> bool:
        """True while time stands still."""
        return self._paused_at_s is not None

    def now_s(self) -> float:
        """Model time in seconds; the first call must come from within the loop that is to be used."""
        if self._paused_at_s is not None:
            return self._paused_at_s
        return max(self._reached_s, self._running_loop().time() - self._behind_s)

    def wake_at(self, due_s: float | None) -> None:
        """Call back at `due_s`, which replaces the time asked for before; None: not at all."""
        if due_s != self._due_s:
            self._due_s = due_s
            self._arm()

    def pause(self) -> None:
        """Stop time."""
        self._paused_at_s = self.now_s()
        self._arm()

    def resume(self) -> None:
        """Let time go on from where it stopped."""
        if self._paused_at_s is not None:
            self._behind_s = self._running_loop().time() - self._paused_at_s
            self._paused_at_s = None
            self._arm()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._due_s is not None and not self.paused:
            self._handle = self._running_loop().call_at(self._due_s + self._behind_s, self._fire)

    def _fire(self) -> None:
        if self._due_s is not None:
            self._reached_s = self._due_s  # loops round: uvloop calls up to half a millisecond early
        self._handle = self._due_s = None
        self._callback()


class Inbox:
    """Tokens of one request that wait to be taken, as a number, so that a slow reader costs no memory.

    What came since the last `take` comes at once. One reader.
    """

    __slots__ = ("_error", "_tokens", "_waiter")

    def __init__(self) -> None:
        self._tokens = 0
        self._error: EngineError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def add(self) -> None:
        """One more token."""
        self._tokens += 1
        self._wake()

    def fail(self, error: EngineError) -> None:
        """There will be no more; the reader gets `error`, also instead of tokens not yet taken."""
        self._error = error
        self._wake()

    async def take(self) -> int:
        """All tokens that are here, at least one; waits for it. Raises what `fail` was given."""
        while self._error is None and self._tokens == 0:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error
        tokens, self._tokens = self._tokens, 0
        return tokens

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
