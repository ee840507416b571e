"""The gateway's dialogue with the Router: events go out in batches, placements come back, and none gets lost.

    out    one call at a time. A request that wants a place goes at once, or with the next call when one is
           under way; everything else waits up to `LINGER_S` for more events
    back   answers to these calls, and messages at any time: for requests that were held, and for those whose
           placement is taken over by another

A request that gets no answer is placed without the router (`RequestTable`). When the router does not know
this gateway any more, or the way to it is lost, a new session begins with all that the gateway has. One event
loop.

The connection (`actors.wire`; the other end is `actors.router`) is made for the first batch, and for the
first one after it was lost. A call that is no longer waited for ends it: its answer could be taken for the
next one's.
"""

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any

import ray
from ray.exceptions import RayError

from actors import names
from actors.routing.messages import Batch, BatchAnswer, Messages
from actors.routing_actors import start_routing
from actors.wire import Address, ClientConnection, connect
from headway.config import HeadwayConfig
from headway.planning import Role
from headway.routing.types import RouteRequest
from serve_apps.membership import Membership
from serve_apps.routed.metrics import RoutingCounts
from serve_apps.routed.replicas import AskBlocks, KnownBlocksFeed
from serve_apps.routed.requests import RoutedRequest
from serve_apps.routed.table import Fallback, RequestTable, WaitLimits

LINGER_S = 0.25

TICK_S = 1.0
"""Seconds between two reports of how far requests are."""

RETRY_S = 0.2
"""Seconds before a router that did not answer is called again."""

CALL_LIMIT_S = 10.0
"""Seconds after which a call is lost."""

SIGN_S = 10.0
"""Seconds between two signs of life of a gateway that has nothing else to say."""

logger = logging.getLogger("ray.serve")


class Unreachable(Exception):
    """A call of the router was lost."""


class RouterClient:
    """The dialogue of one gateway. Made and used on one event loop; `ask_blocks` asks replicas."""

    def __init__(
        self,
        link: "RouterConnection",
        pools: Mapping[Role, Membership],
        fallback: Fallback,
        limits: WaitLimits,
        *,
        ask_blocks: AskBlocks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = uuid.uuid4().hex
        self._link = link
        self._table = RequestTable(pools, fallback, limits, clock, self._wake)
        self._feed = None if ask_blocks is None else KnownBlocksFeed(pools, ask_blocks, self._table.known)
        self._greeted = self._report = self._sign = False
        self._due, self._up = asyncio.Event(), asyncio.Event()
        self._linger: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        for work in (self._talk(), self._listen(), self._tick()):
            self._begin(work)

    @property
    def counts(self) -> RoutingCounts:
        """Counts of placements, sheds, and placements without the router."""
        return self._table.counts

    @property
    def met(self) -> bool:
        """True once the router has answered for the first time."""
        return self._table.counts.sessions > 0

    def submit(self, request: RouteRequest) -> RoutedRequest:
        """A request wants a place."""
        return self._table.submit(request)

    async def close(self) -> None:
        """Stop talking; the router forgets this gateway by itself."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._feed is not None:
            await self._feed.close()
        self._link.close()

    async def _talk(self) -> None:
        while True:
            batch = await self._next()
            if batch is None:
                continue
            try:
                async with asyncio.timeout(CALL_LIMIT_S):
                    answer = await self._link.exchange(self.name, batch)
                self._take(batch, answer)
            except (Unreachable, TimeoutError) as error:
                await self._pause(error)
            except Exception:
                logger.exception("a batch of the router could not be handled")
                await self._pause(None)

    async def _next(self) -> Batch | None:
        """The next batch, None when there turned out to be nothing to say."""
        if self._greeted:
            await self._due.wait()
        self._due.clear()
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        report, sign, self._report, self._sign = self._report, self._sign, False, False
        return self._table.batch(report=report, sign=sign) if self._greeted else self._table.hello()

    def _take(self, batch: Batch, answer: BatchAnswer) -> None:
        if not answer.known:
            self._lose()
            return
        self._table.answered(answer)
        if batch.hello:
            self._greeted = True
            self._table.counts.sessions += 1
            self._up.set()
            self._due.set()
            if self._feed is not None:
                self._feed.restart()
        if self._feed is not None and answer.unread:
            self._feed.unread(answer.unread)

    async def _listen(self) -> None:
        while True:
            await self._up.wait()
            try:
                self._table.deliver(await self._link.collect())
            except Unreachable:
                self._lose()
            except Exception:
                logger.exception("messages of the router could not be handled")
                self._lose()

    async def _tick(self) -> None:
        for tick in itertools.count(1):
            await asyncio.sleep(TICK_S)
            self._sign = tick % round(SIGN_S / TICK_S) == 0
            if not self._table.idle or self._sign:
                self._report = True
                self._wake(urgent=True)

    async def _pause(self, error: Exception | None) -> None:
        if error is not None and not self._table.down:
            logger.warning("the router does not answer: %s", error or type(error).__name__)
        self._lose()
        await asyncio.sleep(RETRY_S)

    def _lose(self) -> None:
        """Begin a new session."""
        self._greeted = False
        self._up.clear()
        self._due.set()
        self._table.lost()

    def _wake(self, urgent: bool) -> None:
        if urgent:
            self._due.set()
        elif self._linger is None and not self._due.is_set():
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self._due.set)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        # Not in the context of a request: Serve cancels with it whatever was called in its context.
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


MISSED_S = 60.0
"""Seconds after which a router that has gone for good is started again."""


class RouterConnection:
    """Calls of the router, whose address `find` gives. One event loop, one call at a time. Unreachable."""

    def __init__(self, find: Callable[[], Coroutine[Any, Any, Address]]) -> None:
        self._find = find
        self._connection: _RouterConnection | None = None

    async def exchange(self, gateway: str, batch: Batch) -> BatchAnswer:
        """Events there, answers back."""
        if self._connection is None or self._connection.ended:
            try:
                self._connection = await connect(await self._find(), _RouterConnection)
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


class _RouterConnection(ClientConnection):
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

    def __init__(self, config: HeadwayConfig, application: str = "") -> None:
        self._config, self._application = config, application
        self._again_s: float | None = 0.0
        """The time from which a missing router is started; None while there is one."""

    async def __call__(self) -> Address:
        """Where it listens, and the secret."""
        try:
            actor = await asyncio.to_thread(self._look_up)
            address: Address = await actor.address.remote(application=self._application)
        except (RayError, ConnectionError, ValueError) as error:
            lines = str(error).strip().splitlines()
            raise Unreachable(lines[0] if lines else type(error).__name__) from error
        return address

    def _look_up(self) -> Any:  # noqa: ANN401 - an actor handle
        try:
            actor = ray.get_actor(names.router_of(self._config), namespace=names.NAMESPACE)
        except ValueError:
            if self._again_s is None:
                self._again_s = time.monotonic() + MISSED_S
            if time.monotonic() < self._again_s:
                raise
            actor = start_routing(self._config, self._application)[names.router_of(self._config)]
        self._again_s = None
        return actor
