"""One request as its gateway follows it, from asking for a place to its end.

ASKED ──▶ PLACED ──▶ ENDED          HELD: it waits in the router, whose answer comes later
  ╲──▶ HELD ──▶╱                    a lost attempt goes back to ASKED
"""

import asyncio
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from headway.routing.types import Placement, RouteRequest
from serve_apps.engines.protocol import TokenChunk


class RequestState(Enum):
    """The state of a request's placement."""

    ASKED = auto()
    HELD = auto()
    PLACED = auto()
    ENDED = auto()


class RequestObserver(Protocol):
    """The table, as its requests report to it."""

    def prefilled(self, routed: "RoutedRequest") -> None:
        """Its prompt is computed."""

    def first_token(self, routed: "RoutedRequest") -> None:
        """Its first token has come."""

    def again(self, routed: "RoutedRequest") -> None:
        """Its attempt was lost; it wants another place."""

    def reused(self, routed: "RoutedRequest", cached_tokens: int) -> None:
        """Its engine says how much of its prompt was cached."""

    def ended(self, routed: "RoutedRequest", *, complete: bool) -> None:
        """It has ended."""


class RoutedRequest:
    """A request that is to be placed, or is."""

    __slots__ = (
        "_newer",
        "_observer",
        "_waiter",
        "computed",
        "output_tokens",
        "placement",
        "reported_tokens",
        "request",
        "state",
        "streaming",
        "timer",
    )

    def __init__(self, request: RouteRequest, observer: RequestObserver) -> None:
        self.request = request
        self.placement: Placement | None = None
        self.state = RequestState.ASKED
        self.computed = self.streaming = False
        self.output_tokens = self.reported_tokens = 0
        self.timer: asyncio.TimerHandle | None = None
        self._observer = observer
        self._waiter: asyncio.Future[Placement] | None = None
        self._newer: Callable[[], None] | None = None

    @property
    def attempt(self) -> int:
        """The number of its placements so far."""
        return 0 if self.placement is None else self.placement.attempt

    async def placed(self) -> Placement:
        """Where it goes. BackendError: nowhere."""
        if self.state is RequestState.PLACED and self.placement is not None:
            return self.placement
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        try:
            return await self._waiter
        finally:
            # An error in it has this call's frames, and so this object.
            self._waiter = None

    def again(self, lost: Placement | None) -> None:
        """An attempt was lost: it wants another place, unless it has been given one meanwhile."""
        if self.placement is lost:
            self._waiter = None
            self._observer.again(self)

    def watch(self, newer: Callable[[], None] | None) -> None:
        """Call this, once, when another placement takes the place of the one that is carried out."""
        self._newer = newer

    def prefilled(self) -> None:
        """Its prompt is computed, and not by the replica that decodes."""
        if not self.computed:
            self.computed = True
            self._observer.prefilled(self)

    def first_token(self) -> None:
        """Its first token has come: from now on it stays where it is."""
        self.computed = self.streaming = True
        self._newer = None
        self._observer.first_token(self)

    def counted(self, chunk: TokenChunk) -> None:
        """Some tokens have come; the last chunk may report how much of the prompt was cached."""
        self.output_tokens += chunk.tokens
        if chunk.cached_tokens is not None:
            self._observer.reused(self, chunk.cached_tokens)
        if chunk.finish_reason is not None:
            self.complete()

    def complete(self) -> None:
        """It has all its tokens."""
        if self.state is not RequestState.ENDED:
            self._observer.ended(self, complete=True)

    def close(self) -> None:
        """It has ended, if it had not yet."""
        if self.state is not RequestState.ENDED:
            self._observer.ended(self, complete=False)

    def take(self, placement: Placement) -> None:
        """The router, or the gateway itself, has placed it."""
        before, self.placement, self.state = self.state, placement, RequestState.PLACED
        self.computed = False
        self.stop_timer()
        if before is RequestState.PLACED:
            newer, self._newer = self._newer, None
            if newer is not None:
                newer()
        elif self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
            self._waiter.set_result(placement)
        elif not self._waiter.done():
            self._waiter.set_result(placement)

    def refuse(self, error: Exception) -> None:
        """There is no place for it."""
        self.stop_timer()
        if self._waiter is None:
            self._waiter = asyncio.get_running_loop().create_future()
        if not self._waiter.done():
            self._waiter.set_exception(error)
            # Without a reader asyncio would log an exception that was never retrieved.
            self._waiter.exception()

    def stop_timer(self) -> None:
        """Nothing is late any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
