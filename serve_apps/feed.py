"""Many outputs over one stream: what one replica produces for one gateway, an engine step at a time.

A message costs the CPU of some hundred tokens' handling, on either side, whatever is in it. An engine that
batches produces a token for each of its requests at the same moment, so what a replica has for a gateway
leaves as one frame:

    replica   Outlet   put, put, put ──> frame [(key, text, tokens, finish_reason), …]
    gateway   Feed     frame ──> Stream of each key

The call that runs a request stays open until its last chunk is in the outlet, and returns how many there
were: it carries errors and cancellation, and Serve counts it while a replica drains. The feed carries
nothing but chunks, and may be behind that call; a Stream ends when it has as many chunks as the call said.
No Ray in here, and one event loop on each side.
"""

import asyncio
import itertools
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import Context
from typing import Any

from ray.serve.handle import DeploymentHandle

from serve_apps.engines.protocol import EngineRequest, FinishReason, KvHandle, TokenChunk
from serve_apps.membership import Membership
from serve_apps.serve_call import FOREIGN, Lost, ask, cancel, lean, lost

Frame = Sequence[tuple[int, str, int, FinishReason | None]]


class FeedSender:
    """Chunks on a replica that wait to be sent to one gateway."""

    def __init__(self) -> None:
        self._chunks: list[tuple[int, str, int, FinishReason | None]] = []
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
        """The next chunk, None at the end. What came while nobody took is one chunk."""
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
            "".join(chunk.text for chunk in chunks),
            sum(chunk.tokens for chunk in chunks),
            chunks[-1].finish_reason,
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


logger = logging.getLogger("ray.serve")


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
                for key, text, tokens, finish_reason in frame:
                    if (stream := self.streams.get(key)) is not None:
                        stream.put(TokenChunk(text, tokens, finish_reason))
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
