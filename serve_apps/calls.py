"""Calls of replicas, which run over a socket of our own.

    Phases     kv            = prefill(replica, request)
               output, chunk = decode(replica, request, kv)      the first chunk shows that it has begun

A call through Serve's handle costs more CPU than all else that a gateway does with a short request. So each
pair of gateway and replica has one connection for as long as both live (`actors.wire`), which carries all
calls and their outputs side by side:

    gateway   ReplicaConnection   call ──▶      `serve_apps.call_server` runs it
              Output              ◀── chunks, end or error, in order

The first request of a replica asks it through its handle where it listens, and for the secret that the
connection begins with. A connection that breaks fails what is under way on it, and is asked for anew at once:
so Serve finds out that a replica is dead, and reports it. A replica that has left its pool is let go of with
our last call there.
"""

import asyncio
import itertools
import logging
import pickle
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Any, cast

from ray.serve.handle import DeploymentHandle

from actors.wire import Address, ClientConnection, connect
from headway.planning import Role
from headway.routing.types import KnownBlocks
from serve_apps.call_server import CHUNK, END, FAILED
from serve_apps.compat_serve import Lost, NotStarted, ask, lean, translated
from serve_apps.engines.protocol import (
    AuxiliaryAnswer,
    AuxiliaryCall,
    EngineError,
    EngineRequest,
    KvHandle,
    TokenChunk,
    joined,
)
from serve_apps.gateway.backend import ChunkSink, Step, TimedOut, Timeline
from serve_apps.membership import Membership, membership
from serve_apps.routed.requests import RoutedRequest

CONNECTED_WITHIN_S = 30.0
"""Seconds to learn where a replica listens, and to be connected to it: its loop may be busy with a start."""

logger = logging.getLogger("ray.serve")


PIECE_BYTES = 64 * 2**10
"""What a reader gets at once of what waits for it, and what is packed at once."""

CHUNK_BYTES = 100
"""Of a chunk beside its text."""

MOST_PACKED_BYTES = 2 * 2**20
"""Of one output: 80 MB of events, or 300,000 tokens, that its client has not taken."""


class Unread:
    """Chunks that wait for their reader, in order: the latest as they came, what is beyond a piece packed.

    Events of a stream repeat themselves, so that they take a fortieth of their size.
    """

    __slots__ = ("_bytes", "_chunks", "_packed", "packed_bytes")

    def __init__(self) -> None:
        self._chunks: list[TokenChunk] = []
        self._packed: deque[TokenChunk] = deque()
        self._bytes = self.packed_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks or self._packed)

    def add(self, chunk: TokenChunk) -> None:
        """The next one."""
        if self._bytes >= PIECE_BYTES:
            piece = self._latest()
            text = zlib.compress(piece.text if isinstance(piece.text, bytes) else piece.text.encode(), 1)
            self._packed.append(piece._replace(text=text))
            self.packed_bytes += len(text)
        self._chunks.append(chunk)
        self._bytes += CHUNK_BYTES + len(chunk.text)

    def take(self) -> TokenChunk:
        """The first of them, as one: all, or a piece. There are some."""
        if not self._packed:
            return self._latest()
        piece = self._packed.popleft()
        assert isinstance(piece.text, bytes), "it was packed"
        self.packed_bytes -= len(piece.text)
        return piece._replace(text=zlib.decompress(piece.text))

    def _latest(self) -> TokenChunk:
        chunks, self._chunks, self._bytes = self._chunks, [], 0
        return chunks[0] if len(chunks) == 1 else joined(chunks)


class Output:
    """What one call brings, as it arrives: chunks in order, then the end or an error. One reader.

    It is counted as it arrives, so by the engine's time. A reader that is slower keeps neither the count nor
    the end from the router, and what waits for it is bounded: beyond that the call is over (TimedOut).
    """

    __slots__ = ("_connection", "_ended", "_error", "_key", "_sink", "_unread", "_waiter", "over",
                 "progress", "value")  # fmt: skip

    def __init__(
        self, connection: "ReplicaConnection", key: int, over: Callable[[], None] | None = None
    ) -> None:
        """`over` is called once, when the replica has done all that is wanted of it."""
        self._connection, self._key, self.over = connection, key, over
        self._unread = Unread()
        self._ended = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: ChunkSink | None = None
        self.value: Any = None
        """What the method returned."""
        self.progress: RoutedRequest | None = None
        """The request, where it was routed, from its first chunk on."""

    def put(self, chunk: TokenChunk) -> None:
        """The next chunk has come."""
        if self.progress is not None:
            self.progress.counted(chunk)
        last = chunk.finish_reason is not None
        if last:
            self._is_over()
        if self._sink is None or not self._sent(self._sink, chunk, last=last):
            self._unread.add(chunk)
            if self._unread.packed_bytes > MOST_PACKED_BYTES:
                self._unread = Unread()
                self.fail(TimedOut("the client reads too slowly: more of its output waits than is kept"))
                self.close()
            self._wake()

    def set_sink(self, sink: ChunkSink) -> None:
        """Let it see all that comes, and take at once what comes while it is waited for."""
        self._sink = sink

    def end(self, value: Any = None) -> None:  # noqa: ANN401 - as the method returns
        """There will be no more."""
        self.value, self._ended = value, True
        if self.progress is not None:
            self.progress.complete()
        self._is_over()
        self._wake()

    def fail(self, error: BaseException) -> None:
        """There will be no more; the reader gets `error` once it has what came before."""
        if self._error is None:
            self._error = error
        self._wake()

    async def next(self) -> TokenChunk | None:
        """The next chunk, None at the end: what came since the last one. Lost, or a BackendError."""
        while not self._unread:
            if self._ended:
                return None
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._unread.take()

    def close(self) -> None:
        """Abort it if it has not ended: the engine frees what the request holds."""
        if self.progress is not None:
            self.progress.close()
        self._connection.forget(self._key, cancel=not self._ended)
        self._is_over()

    def _is_over(self) -> None:
        over, self.over = self.over, None
        if over is not None:
            over()

    def _sent(self, sink: ChunkSink, chunk: TokenChunk, *, last: bool) -> bool:
        # Else an earlier one is still on its way to the client.
        waited_for = self._waiter is not None and not self._waiter.done()
        try:
            return sink(chunk, waited_for and not last)
        except Exception as error:  # noqa: BLE001 - one reader's fault, and the connection carries others, too
            self.fail(error)
            return True

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ReplicaConnection(ClientConnection):
    """The connection to one replica, and the calls on it."""

    def __init__(self, secret: bytes, pool: "ConnectionPool", replica: str) -> None:
        super().__init__(secret)
        self.outputs: dict[int, Output] = {}
        self.received_messages = 0
        self._pool, self._replica = pool, replica
        self._keys = itertools.count()

    def start(self, method: str, arguments: Sequence[Any], over: Callable[[], None] | None = None) -> Output:
        """Call a method of the replica; `over` as in `Output`."""
        key = next(self._keys)
        output = self.outputs[key] = Output(self, key, over)
        self.post((key, method, arguments))
        return output

    def forget(self, key: int, *, cancel: bool) -> None:
        """Nothing of this call is wanted any more."""
        if self.outputs.pop(key, None) is not None:
            if cancel and not self.transport.is_closing():
                self.post((key, None, ()))
            self._pool.retire(self._replica)

    def received(self, messages: Sequence[tuple[int, int, Any]]) -> None:
        """Chunks, ends and errors."""
        outputs = self.outputs
        self.received_messages += len(messages)
        for key, kind, value in messages:
            if (output := outputs.get(key)) is None:
                continue
            if kind == CHUNK:
                output.put(TokenChunk._make(value))
            else:
                _finish(output, kind, value)

    def connection_ended(self) -> None:
        """The connection is lost, or was let go of."""
        self._pool.lost(self._replica, self)
        for output in self.outputs.values():
            output.fail(Lost("the connection to the replica was lost"))


def _finish(output: Output, kind: int, pickled: bytes) -> None:
    try:
        value = pickle.loads(pickled)
    except Exception as error:
        logger.exception("a replica's answer can't be read")
        kind, value = FAILED, EngineError(f"an answer can't be read: {type(error).__name__}: {error}")
    if kind == END:
        output.end(value)
    else:
        output.fail(translated(value))


class ConnectionPool:
    """The connections to the replicas of one pool."""

    def __init__(self, handle: DeploymentHandle[Any], pool: Membership) -> None:
        self._address = lean(handle, "address")
        self._pool = pool
        self._connections: dict[str, ReplicaConnection] = {}
        self._opening: dict[str, asyncio.Task[ReplicaConnection]] = {}
        self._closed = False
        pool.watch(self._retire_all)

    async def call(self, replica: str, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Call a method that returns one value. Lost, or a BackendError."""
        output = await self.start(replica, method, *arguments)
        try:
            await output.next()
            return output.value
        finally:
            output.close()

    async def start(
        self, replica: str, method: str, *arguments: object, over: Callable[[], None] | None = None
    ) -> Output:
        """Call a method that streams; `Output.close` when nothing more is wanted. Lost."""
        connection = self._connections.get(replica)
        return (connection or await self._opened(replica)).start(method, arguments, over)

    def received(self, replica: str) -> int:
        """Messages that have come over the present connection; 0 where there is none."""
        connection = self._connections.get(replica)
        return 0 if connection is None else connection.received_messages

    def retire(self, replica: str) -> None:
        """Let go of a replica that has left the pool, unless calls of ours run there."""
        connection = self._connections.get(replica)
        if connection is not None and not connection.outputs and replica not in self._pool:
            connection.close()

    def lost(self, replica: str, connection: ReplicaConnection) -> None:
        """A connection has ended."""
        if self._connections.get(replica) is connection:
            del self._connections[replica]
            if replica in self._pool and not self._closed:
                self._open(replica)

    async def close(self) -> None:
        """End all connections, also those that are about to begin."""
        self._closed = True
        for connection in tuple(self._connections.values()):
            connection.close()
        if self._opening:
            await asyncio.wait(tuple(self._opening.values()))

    def _retire_all(self) -> None:
        for replica in tuple(self._connections):
            self.retire(replica)

    async def _opened(self, replica: str) -> ReplicaConnection:
        # Others may wait for it, too.
        return await asyncio.shield(self._opening.get(replica) or self._open(replica))

    def _open(self, replica: str) -> "asyncio.Task[ReplicaConnection]":
        # In a context of its own: Serve cancels with a request whatever was called in the request's context.
        opening = asyncio.create_task(self._connect(replica), context=Context())
        self._opening[replica] = opening

        def opened(task: "asyncio.Task[ReplicaConnection]") -> None:
            self._opening.pop(replica, None)
            # Nobody may have waited for it, and the replica may have left meanwhile.
            if not task.cancelled() and task.exception() is None:
                self.retire(replica)

        opening.add_done_callback(opened)
        return opening

    async def _connect(self, replica: str) -> ReplicaConnection:
        try:
            async with asyncio.timeout(CONNECTED_WITHIN_S):
                address = cast("Address", await ask(self._address.options(session_id=replica)))
                connection = await connect(address, lambda secret: ReplicaConnection(secret, self, replica))
        except ConnectionRefusedError as error:
            raise NotStarted(f"nothing listens there any more: {error}") from error
        except (OSError, TimeoutError) as error:
            raise Lost(f"it cannot be connected to: {type(error).__name__}: {error}") from error
        if connection.ended or self._closed:
            connection.close()
            raise Lost("the connection was lost as it began")
        self._connections[replica] = connection
        return connection


Begun = tuple[Output, TokenChunk | None]
"""An output and its first chunk, None where it has none."""


class Phases:
    """The pools of one application. Made and used on one event loop."""

    def __init__(self, handles: Mapping[Role, DeploymentHandle[Any]], wait_s: float) -> None:
        """`wait_s`: how long a request waits for a replica that is not saturated."""
        self.wait_s = wait_s
        self.pools = {
            role: membership(handle.app_name, handle.deployment_name) for role, handle in handles.items()
        }
        self.names = {role: handle.deployment_name for role, handle in handles.items()}
        self.mixed = Role.MIXED in handles
        """True if the replicas do both phases."""
        self.prefill_role, self.decode_role = (
            (Role.MIXED, Role.MIXED) if self.mixed else (Role.PREFILL, Role.DECODE)
        )
        self._connections = {
            role: ConnectionPool(handle, self.pools[role]) for role, handle in handles.items()
        }

    async def close(self) -> None:
        """Let go of all replicas."""
        for each in self._connections.values():
            await each.close()

    async def prefill(self, replica: str, request: EngineRequest, timeline: Timeline) -> KvHandle:
        """Compute the prompt there. Lost, or a BackendError."""
        pool, connections = self.pools[self.prefill_role], self._connections[self.prefill_role]
        pool.sent(replica, request.request_id, request.input_tokens)
        try:
            with timeline.step("prefill", replica) as step:
                kv: KvHandle = await connections.call(replica, "prefill", step.traced(request))
                step.times = kv.times
                return kv
        except Lost:
            pool.suspect(replica, time.monotonic())
            raise
        finally:
            pool.done(replica, request.request_id)

    async def known_blocks(self, role: Role, replica: str, since: int | None) -> KnownBlocks | None:
        """What that replica's prefix cache holds, or what changed. Lost, or a BackendError."""
        return cast("KnownBlocks | None", await self._connections[role].call(replica, "known_blocks", since))

    def received(self, role: Role, replica: str) -> int:
        """Messages that have come from that replica over its present connection."""
        return self._connections[role].received(replica)

    async def progress(self, role: Role, replica: str) -> tuple[float, ...]:
        """Figures of its engine of which one changes with any progress. Lost, or a BackendError."""
        return cast("tuple[float, ...]", await self._connections[role].call(replica, "progress"))

    async def auxiliary(self, replica: str, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """What that replica says to it. Lost, or a BackendError."""
        answer: AuxiliaryAnswer = await self._connections[self.decode_role].call(
            replica, "auxiliary", question
        )
        return answer

    async def decode(
        self, replica: str, request: EngineRequest, kv: KvHandle | None, timeline: Timeline
    ) -> Begun:
        """Begin to decode there; the output and its first chunk. Lost, or a BackendError."""
        pool, output = self.pools[self.decode_role], None
        pool.sent(replica, request.request_id)
        step = timeline.step("decode", replica)
        # No closure: each of its variables would be one object more for the garbage collector to look at.
        over = partial(_over, pool, replica, request.request_id, step)
        try:
            connections = self._connections[self.decode_role]
            output = await connections.start(replica, "decode", step.traced(request), kv, over=over)
            return output, await output.next()
        except BaseException as error:
            step.failed(error)
            if isinstance(error, Lost):
                pool.suspect(replica, time.monotonic())
            if output is None:
                over()
            else:
                output.close()
            raise


def _over(pool: Membership, replica: str, request_id: str, step: Step) -> None:
    step.end()
    pool.done(replica, request_id)
