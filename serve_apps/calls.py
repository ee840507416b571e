"""Calls of replicas through Serve handles, and the feeds that carry their outputs back.

    Lost(BackendError)     the replica died, is dying, or cannot be reached; another may be tried
    ├── EngineLost         its engine failed
    └── Untaken            it was gone before it took the call: nothing has run

`lean` handles call over gRPC on the caller's event loop, which takes a fraction of the CPU of Serve's
default. Errors of Ray, Serve, gRPC and the engines become `Lost` or a BackendError here and nowhere else.
Cancelling the task that waits in `ask` cancels the call, and Serve carries that to the replica.

A message costs the CPU of some hundred tokens' handling on either side, whatever is in it. An engine that
batches produces a token for each of its requests at the same moment, so all that a replica has for a gateway
leaves as one frame:

    replica   FeedSender    put, put, put ──> frame [(key, text, tokens, finish_reason, cached_tokens), …]
    gateway   ReplicaFeed   frame ──> ChunkStream of each key

The call that runs a request stays open until its last chunk is in the sender, and returns how many there
were. It carries errors and cancellation, and Serve counts it while a replica drains. The feed carries nothing
but chunks, and may be behind that call: a stream ends when it has as many chunks as the call said. A feed is
opened at the first request of a replica. Serve waits for it, too, when the replica drains, so it ends as soon
as the replica has left its pool and no request of ours runs there.
"""

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, cast

from grpc.aio import AioRpcError  # type: ignore[import-untyped]
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import (
    BackPressureError,
    DeploymentUnavailableError,
    RayServeException,
    ReplicaUnavailableError,
    RequestCancelledError,
)
from ray.serve.handle import DeploymentHandle

from serve_apps.engines.protocol import (
    EngineError,
    EngineFailed,
    EngineRequest,
    FinishReason,
    KvHandle,
    PromptTooLong,
    Refused,
    TokenChunk,
)
from serve_apps.gateway.backend import BackendError, NotReady, Overloaded, RefusedByEngine, TooLong
from serve_apps.membership import Membership, NoReplica, ReplicaGone

LEAN: Mapping[str, Any] = {
    "_by_reference": False,
    "request_serialization": "pickle",
    "response_serialization": "pickle",
}

REPLICA_LOST = (
    RayActorError,
    ReplicaUnavailableError,
    RequestCancelledError,
    ReplicaGone,
    EngineFailed,
    AioRpcError,
    # Serve's own for a connection that breaks before the replica has said whether it takes the call.
    RuntimeError,
    # Sent by a replica that shuts down; where we cancel ourselves it is not translated.
    asyncio.CancelledError,
)

FOREIGN = (*REPLICA_LOST, NoReplica, EngineError, RayError, RayServeException)


class Lost(BackendError):
    """The replica died, is dying, or cannot be reached."""


class EngineLost(Lost):
    """The replica's engine failed."""


class Untaken(Lost):
    """The replica was gone before it took the call."""


def lean(handle: DeploymentHandle[Any], method: str, *, stream: bool = False) -> DeploymentHandle[Any]:
    """The handle for one method, on this event loop and over gRPC."""
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=False)  # type: ignore[no-untyped-call]
    return handle.options(method_name=method, stream=stream, **LEAN)


async def ask(handle: DeploymentHandle[Any], *arguments: Any) -> Any:  # noqa: ANN401 - as the method returns
    """Call a method that returns one value. Lost, or a BackendError."""
    response = handle.remote(*arguments)
    try:
        return await response
    except FOREIGN as error:
        # The call may run on, unheard: it holds a place in the engine until it is cancelled.
        cancel(response)
        if isinstance(error, asyncio.CancelledError) and _cancelling():
            raise
        raise _translated(error) from error


def cancel(response: Any) -> None:  # noqa: ANN401 - one of Serve's two kinds of response
    """Cancel a call, however far it is; nothing happens to one that has ended."""
    response.cancel()
    # Serve forgets a call that a replica has taken before anything waited for it.
    taken = response._replica_result_future
    if taken.done() and not taken.cancelled() and taken.exception() is None:
        taken.result().cancel()


def lost(error: BaseException) -> Lost:
    """The error as the loss of a replica."""
    if isinstance(error, EngineFailed):
        return EngineLost(f"the engine failed: {error}")
    kind = Untaken if isinstance(error, ReplicaGone) else Lost
    return kind(f"{type(error).__name__}: {error}")


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _translated(error: BaseException) -> Exception:
    if isinstance(error, PromptTooLong):
        return TooLong(str(error))
    if isinstance(error, Refused):
        return RefusedByEngine(error.status, error.body)
    if isinstance(error, NoReplica | DeploymentUnavailableError):
        return NotReady(str(error))
    if isinstance(error, BackPressureError):
        return Overloaded(str(error))
    if isinstance(error, REPLICA_LOST):
        return lost(error)
    return BackendError(str(error))


Framed = tuple[int, str | bytes, int, FinishReason | None, int | None]
Frame = Sequence[Framed]


class FeedSender:
    """Chunks on a replica that wait to be sent to one gateway."""

    def __init__(self) -> None:
        self._chunks: list[Framed] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, key: int, chunk: TokenChunk) -> None:
        """Send a chunk of the output that the gateway calls `key`, with the next frame."""
        self._chunks.append((key, *chunk))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Everything put, until closed."""
        while True:
            if not self._chunks:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            chunks, self._chunks = self._chunks, []
            yield chunks


class ChunkStream:
    """One output as it arrives at the gateway: chunks in order, then the end or an error. One taker."""

    __slots__ = ("_chunks", "_error", "_received", "_sent", "_waiter")

    def __init__(self) -> None:
        self._chunks: deque[TokenChunk] = deque()
        self._received = 0
        self._sent: int | None = None
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, chunk: TokenChunk) -> None:
        """The next chunk has come."""
        self._chunks.append(chunk)
        self._received += 1
        self._wake()

    def end(self, sent: int) -> None:
        """The replica has sent this many chunks, and there will be no more."""
        self._sent = sent
        self._wake()

    def fail(self, error: BaseException) -> None:
        """There will be no more; the taker gets `error` once it has what came before."""
        if self._error is None:
            self._error = error
        self._wake()

    async def next(self) -> TokenChunk | None:
        """The next chunk, None at the end. All that came since the last one is one chunk."""
        while not self._chunks:
            if self._sent is not None and self._received >= self._sent:
                return None
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if len(self._chunks) == 1:
            return self._chunks.popleft()
        return self._join()

    def _join(self) -> TokenChunk:
        chunks = list(self._chunks)
        self._chunks.clear()
        return TokenChunk(
            # All of them bytes, or all of them text.
            cast("str", chunks[0].text[:0]).join(cast("str", chunk.text) for chunk in chunks),
            sum(chunk.tokens for chunk in chunks),
            chunks[-1].finish_reason,
            chunks[-1].cached_tokens,
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Output:
    """One request that runs on a decoding replica."""

    def __init__(self, stream: ChunkStream, task: "asyncio.Task[int]", forget: Callable[[], None]) -> None:
        self._stream = stream
        self._task = task
        self._forget = forget
        task.add_done_callback(self._ended)

    async def next(self) -> TokenChunk | None:
        """The next chunk, None at the end. Lost, or a BackendError."""
        return await self._stream.next()

    def fail(self, error: Exception) -> None:
        """End it with this error."""
        self._stream.fail(error)

    def close(self) -> None:
        """Abort it if it has not ended."""
        # Cancels the call, and Serve the method on the replica: the engine frees what the request holds.
        self._task.cancel()
        self._forget()

    def _ended(self, task: "asyncio.Task[int]") -> None:
        if task.cancelled():
            self._stream.fail(Lost("cancelled"))
        elif (error := task.exception()) is not None:
            self._stream.fail(error)
        else:
            self._stream.end(task.result())


class ReplicaFeed:
    """The feed of one replica and the streams on it."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self.reader = uuid.uuid4().hex
        self.streams: dict[int, ChunkStream] = {}
        # In a context of its own: Serve cancels with a request whatever was called in the request's context.
        self.task = asyncio.create_task(self._read(handle), context=Context())

    async def _read(self, handle: DeploymentHandle[Any]) -> None:
        response: Any = handle.remote(self.reader)
        loss = Lost("the feed ended")
        try:
            async for frame in response:
                for key, *chunk in frame:
                    if (stream := self.streams.get(key)) is not None:
                        stream.put(TokenChunk(*chunk))
        except FOREIGN as error:
            loss = lost(error)
        finally:
            cancel(response)
            for stream in self.streams.values():
                stream.fail(loss)


class PoolFeeds:
    """The feeds of one pool."""

    def __init__(self, handle: DeploymentHandle[Any], pool: Membership) -> None:
        self._feed = lean(handle, "feed", stream=True)
        self._run = lean(handle, "decode_into_feed")
        self._pool = pool
        self._feeds: dict[str, ReplicaFeed] = {}
        self._keys = itertools.count()
        pool.watch(self._retire)

    def start(self, replica: str, request: EngineRequest, kv: KvHandle | None) -> Output:
        """Run a request on that replica."""
        feed = self._feeds.get(replica)
        if feed is None or feed.task.done():
            feed = self._feeds[replica] = ReplicaFeed(self._feed.options(session_id=replica))
        key = next(self._keys)
        stream = feed.streams[key] = ChunkStream()
        self._pool.sent(replica, request.request_id)
        task = asyncio.create_task(ask(self._run.options(session_id=replica), feed.reader, key, request, kv))

        def forget() -> None:
            feed.streams.pop(key, None)
            self._pool.done(replica, request.request_id)
            self._retire()

        return Output(stream, task, forget)

    def _retire(self) -> None:
        for replica in [replica for replica, feed in self._feeds.items() if self._is_over(replica, feed)]:
            self._feeds.pop(replica).task.cancel()

    def _is_over(self, replica: str, feed: ReplicaFeed) -> bool:
        return not feed.streams and replica not in self._pool
