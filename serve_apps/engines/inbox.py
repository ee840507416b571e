"""Between an engine and one consumer: a count of tokens, so that a slow consumer costs no memory."""

import asyncio

from serve_apps.engines.protocol import EngineError


class Inbox:
    """Tokens that wait to be taken; what came since the last `take` comes as one number. One taker."""

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
        """There will be no more; the taker gets `error`, also instead of tokens not yet taken."""
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
