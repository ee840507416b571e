"""The gateway's end: one feed per decoding replica, opened at its first request, closed when it leaves.

A feed is a call that Serve waits for when the replica drains. So it must end by itself: as soon as the
replica is no longer a member of its pool and nothing of ours runs there.
"""

import asyncio
import itertools
import logging
import uuid
from collections.abc import Callable
from contextvars import Context
from typing import Any

from ray.serve.handle import DeploymentHandle

from serve_apps.engines.protocol import EngineRequest, KvHandle, TokenChunk
from serve_apps.feed import Stream
from serve_apps.membership import Membership
from serve_apps.serve_call import FOREIGN, Lost, ask, cancel, lean, lost

logger = logging.getLogger("ray.serve")


class Output:
    """One request that runs on a decoding replica."""

    def __init__(self, stream: Stream, task: "asyncio.Task[int]", forget: Callable[[], None]) -> None:
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


class Feed:
    """The feed of one replica and the streams on it."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self.reader = uuid.uuid4().hex
        self.streams: dict[int, Stream] = {}
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


class Feeds:
    """The feeds of one pool."""

    def __init__(self, handle: DeploymentHandle[Any], pool: Membership) -> None:
        self._feed = lean(handle, "feed", stream=True)
        self._run = lean(handle, "decode_into_feed")
        self._pool = pool
        self._feeds: dict[str, Feed] = {}
        self._keys = itertools.count()
        pool.watch(self._retire)

    def start(self, replica: str, request: EngineRequest, kv: KvHandle | None) -> Output:
        """Run a request on that replica."""
        feed = self._feeds.get(replica)
        if feed is None or feed.task.done():
            feed = self._feeds[replica] = Feed(self._feed.options(session_id=replica))
        key = next(self._keys)
        stream = feed.streams[key] = Stream()
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

    def _is_over(self, replica: str, feed: Feed) -> bool:
        return not feed.streams and replica not in self._pool
