"""The replica's side of calls that come straight from gateways (`actors.wire`; theirs is in `calls`).

    gateway → replica    (key, method, arguments)   run this       (key, None, ())   it is no longer wanted
    replica → gateway    (key, CHUNK, tuple)   (key, END, pickled value)   (key, FAILED, pickled error)

Every call is a task. An async generator's chunks leave as they come, and END after the last; other methods
have only their END.

Serve does not count these calls. So `close`, which ends the replica, waits for them; those that come from
then on fail at once, as the replica is gone, and are placed elsewhere. A gateway that goes away cancels its
calls.
"""

import asyncio
import logging
import pickle
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from actors.wire import Address, SecretListener, ServerConnection
from serve_apps.engines.protocol import EngineError
from serve_apps.membership import ReplicaGone

LET_GO_WITHIN_S, POLL_S = 1.0, 0.02
CHUNK, END, FAILED = range(3)
Method = Callable[..., Any]
"""Returns an awaitable, or an async generator of tuples."""

logger = logging.getLogger("ray.serve")


class CallServer:
    """Listens from the first question for its address until it is closed."""

    def __init__(self, host: Callable[[], str], methods: Mapping[str, Method]) -> None:
        self.methods = methods
        self.closing = False
        self.refuses = ""
        """Why it takes nothing for now, empty if it does."""
        self.connections: set[_Connection] = set()
        self._listener = SecretListener(host, partial(_Connection, self))

    @property
    def begun(self) -> bool:
        """Whether anybody has asked for the address."""
        return self._listener.begun

    @property
    def busy(self) -> bool:
        """Whether any call runs."""
        return any(connection.tasks for connection in self.connections)

    async def address(self) -> Address:
        """Where it listens. ReplicaGone."""
        if self.closing:
            raise ReplicaGone("it shuts down")
        return await self._listener.address()

    async def close(self) -> None:
        """Take nothing new, and return when what runs has ended and is sent."""
        self.closing, self.refuses = True, "it shuts down"
        while tasks := [task for connection in self.connections for task in connection.tasks.values()]:
            await asyncio.wait(tasks)
        await self._listener.close()
        # Gateways let go of a replica when they hear that it has left; until then they are answered.
        with suppress(TimeoutError):
            async with asyncio.timeout(LET_GO_WITHIN_S):
                while self.connections:
                    await asyncio.sleep(POLL_S)
        for connection in tuple(self.connections):
            connection.close()


class _Connection(ServerConnection):
    """One gateway, and its calls."""

    def __init__(self, server: CallServer, secret: bytes) -> None:
        super().__init__(secret)
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self._server = server
        self._loop = asyncio.get_running_loop()
        server.connections.add(self)

    def received(self, messages: Sequence[tuple[int, str | None, Sequence[Any]]]) -> None:
        """Calls, and those that are no longer wanted."""
        for key, method, arguments in messages:
            if method is None:
                if (task := self.tasks.get(key)) is not None:
                    task.cancel()
            elif self._server.refuses:
                self._end(key, FAILED, ReplicaGone(self._server.refuses))
            else:
                work = self._run(key, self._server.methods[method], arguments)
                self.tasks[key] = task = self._loop.create_task(work)
                # Also of one that is cancelled before it has begun.
                task.add_done_callback(partial(self._ran, key))

    def connection_ended(self) -> None:
        """The gateway is gone."""
        self._server.connections.discard(self)
        for task in self.tasks.values():
            task.cancel()

    def _ran(self, key: int, _: "asyncio.Task[None]") -> None:
        del self.tasks[key]

    async def _run(self, key: int, method: Method, arguments: Sequence[Any]) -> None:
        try:
            result = method(*arguments)
            if isinstance(result, AsyncGenerator):
                await self._stream(key, result)
                self._end(key, END, None)
            else:
                self._end(key, END, await result)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._end(key, FAILED, EngineError("the call was cancelled where it ran"))
        except EngineError as error:
            self._end(key, FAILED, error)
        except Exception as error:
            logger.exception("a call failed for a reason that nobody foresaw")
            self._end(key, FAILED, EngineError(f"{type(error).__name__}: {error}"))

    def _end(self, key: int, kind: int, value: object) -> None:
        """Pickled by itself: one that the gateway can't read is no harm to the others."""
        try:
            pickled = pickle.dumps(value)
        except Exception as error:
            logger.exception("a replica's answer can't be pickled")
            kind, pickled = FAILED, pickle.dumps(EngineError(f"{type(error).__name__}: {error}"))
        self.post((key, kind, pickled))

    async def _stream(self, key: int, chunks: AsyncGenerator[tuple[Any, ...], None]) -> None:
        async with aclosing(chunks):
            async for chunk in chunks:
                # A tuple, and not one of our classes: less to pickle.
                self.post((key, CHUNK, tuple(chunk)))
