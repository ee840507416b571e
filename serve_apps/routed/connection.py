"""The gateway's connection to the Router (`actors.wire`; the other end is `actors.router`).

It is made for the first batch, and for the first one after it was lost. A call that is no longer waited for
ends it: its answer could be taken for the next one's.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from actors import names
from actors.routing.messages import Batch, BatchAnswer, Messages
from actors.routing_actors import start_routing
from actors.wire import Address, ClientConnection, connect
from headway.config import HeadwayConfig
from serve_apps.routed.client import Unreachable

MISSED_S = 60.0
"""Seconds after which a router that has gone for good is started again."""


class RouterConnection:
    """Calls of the router, whose address `find` gives. One event loop, one call at a time. Unreachable."""

    def __init__(self, find: Callable[[], Coroutine[Any, Any, Address]]) -> None:
        self._find = find
        self._connection: _Connection | None = None

    async def exchange(self, gateway: str, batch: Batch) -> BatchAnswer:
        """Events there, answers back."""
        if self._connection is None or self._connection.ended:
            try:
                self._connection = await connect(await self._find(), _Connection)
            except OSError as error:
                raise Unreachable(f"the router cannot be connected to: {error}") from error
        return await self._connection.exchange(gateway, batch)

    async def collect(self) -> Messages:
        """The next later placements and sheds."""
        if self._connection is None:
            raise Unreachable("there is no connection")
        messages = await self._connection.messages.get()
        if messages is None:
            raise Unreachable("the connection has ended")
        return messages

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()


class _Connection(ClientConnection):
    def __init__(self, secret: bytes) -> None:
        super().__init__(secret)
        self.messages: asyncio.Queue[Messages | None] = asyncio.Queue()
        self._answer: asyncio.Future[BatchAnswer] | None = None

    async def exchange(self, gateway: str, batch: Batch) -> BatchAnswer:
        if self.ended:
            raise Unreachable("the connection has ended")
        self._answer = asyncio.get_running_loop().create_future()
        self.post((gateway, batch))
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.transport.abort()
            raise

    def received(self, messages: Sequence[BatchAnswer | Messages]) -> None:
        for message in messages:
            if isinstance(message, Messages):
                self.messages.put_nowait(message)
            elif self._answer is not None and not self._answer.done():
                self._answer.set_result(message)

    def connection_ended(self) -> None:
        self.messages.put_nowait(None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Unreachable("the connection has ended"))


class ActorAddress:
    """Asks the Router actor of one model. Unreachable.

    A router that was never seen is started. One that was seen and is gone was most likely ended together with
    this gateway, so it is started again only after `MISSED_S`.
    """

    def __init__(self, config: HeadwayConfig) -> None:
        self._config = config
        self._again_s: float | None = 0.0
        """The time from which a missing router is started; None while there is one."""

    async def __call__(self) -> Address:
        """Where it listens, and the secret."""
        try:
            actor = await asyncio.to_thread(self._look_up)
            address: Address = await actor.address.remote()
        except (RayError, ConnectionError, ValueError) as error:
            lines = str(error).strip().splitlines()
            raise Unreachable(lines[0] if lines else type(error).__name__) from error
        return address

    def _look_up(self) -> Any:  # noqa: ANN401 - an actor handle
        try:
            actor = ray.get_actor(names.router(self._config.model), namespace=names.NAMESPACE)
        except ValueError:
            if self._again_s is None:
                self._again_s = time.monotonic() + MISSED_S
            if time.monotonic() < self._again_s:
                raise
            actor = start_routing(self._config)[names.router(self._config.model)]
        self._again_s = None
        return actor
