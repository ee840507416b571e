"""vLLM's KV events: its own report of what its prefix cache holds, over ZeroMQ to the replica's process.

    vLLM's scheduler ── PUB ────▶ batches, numbered from 0: blocks stored, removed, all cleared
                     ◀─ ROUTER ── "from number n on, please": the latest `BUFFERED` batches once more

Both are sockets in a directory that only this user may enter, and that is gone once they are connected: a
replica may end at any time. A missing number is asked for again. Batches that are lost for good, or cannot be
understood, leave the cache unknown: the replica reports that, and routers estimate again, until vLLM clears
its cache, which is known then to be empty.

Of caches of several kinds (sliding windows beside full attention) the first group counts, of several places
(CPU, disk) the GPU: what is elsewhere is not reused without a transfer.
"""

import asyncio
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

from headway.config import HeadwayConfig, Role
from headway.routing.types import KnownBlocks
from serve_apps.engines.vllm.arguments import caches_prefixes
from serve_apps.engines.vllm.cached_blocks import CachedBlocks, CannotFollow

BUFFERED = 10_000
"""Batches that vLLM keeps to send again."""

ANSWERS_WITHIN_S = 10.0
MOST_BYTES = 256 << 20
"""Of one message: vLLM sends a few bytes a token."""

MOST_WAITING = 100_000
"""Messages that wait to be read, as at vLLM's end."""

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)

logger = logging.getLogger(__name__)


def tells_events(config: HeadwayConfig, role: Role) -> bool:
    """True if an engine of `role` is to report what it caches: where prompts are computed.

    `engine.vllm.args.kv_events_config` is a stream for another reader, and there can be one only.
    """
    vllm = config.engine.vllm
    wanted = vllm.kv_events and "kv_events_config" not in vllm.args
    return wanted and caches_prefixes(config) and role is not Role.DECODE


class EventBook:
    """What the batches say, in order. Pure."""

    def __init__(self, cache: CachedBlocks) -> None:
        self.cache = cache
        self.known = True
        self.expected = 0
        """The number of the next batch."""

    @property
    def sequence(self) -> int | None:
        """The number of changes so far, None where the cache is unknown."""
        return self.cache.sequence if self.known else None

    def since(self, sequence: int | None) -> KnownBlocks | None:
        """What has changed since then; None where the cache is unknown."""
        return self.cache.since(sequence) if self.known else None

    def take(self, number: int, events: Sequence[object]) -> bool:
        """Apply a batch; False if one before it is missing. Those that came before are ignored."""
        if number > self.expected:
            return False
        if number == self.expected:
            self.expected += 1
            for event in events:
                try:
                    self._apply(event)
                except CannotFollow as error:
                    self.lose(str(error))
            self.cache.tick()
        return True

    def skip_to(self, number: int) -> None:
        """What was before that batch cannot be had."""
        if number > self.expected:
            self.lose(f"batches {self.expected} to {number - 1} of its events are lost")
            self.expected = number

    def lose(self, reason: str) -> None:
        """The cache is not known any more."""
        if self.known:
            logger.warning("what vLLM's prefix cache holds is unknown until it is cleared: %s", reason)
            self.known = False
            self.cache.cleared()

    def _apply(self, event: Any) -> None:  # noqa: ANN401 - a struct of vLLM's
        kind = type(event).__name__
        if kind == "AllBlocksCleared":
            self.cache.cleared()
            self.known = True
        elif not self.known or event.group_idx not in {None, 0} or event.medium not in {None, "GPU"}:
            return
        elif kind == "BlockStored":
            adapter, extra = event.lora_name or "", event.extra_keys
            self.cache.stored(
                event.block_hashes,
                event.parent_block_hash,
                event.token_ids,
                event.block_size,
                adapter=adapter,
                foreign=None if extra is None else lambda place: _is_foreign(extra, place, adapter),
            )
        elif kind == "BlockRemoved":
            self.cache.removed(event.block_hashes)


def _is_foreign(extra: Sequence[Sequence[object] | None], place: int, adapter: str) -> bool:
    keys = extra[place] if place < len(extra) else None
    return any(key != adapter for key in keys or ())


class KvEvents:
    """The stream of one engine. Made before the engine, begun on the event loop of the replica."""

    def __init__(self) -> None:
        # Not below TMPDIR, which may be long: the kernel bounds the path of a socket at 107 characters.
        self._directory = directory = tempfile.mkdtemp(prefix="headway-kv-", dir="/tmp")
        self._endpoint, self._replays = f"ipc://{directory}/events", f"ipc://{directory}/replays"
        self._task: asyncio.Task[None] | None = None
        self.book: EventBook | None = None
        """None until the engine has been loaded."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The fields of vLLM's KVEventsConfig."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._endpoint,
            "replay_endpoint": self._replays,
            "buffer_steps": BUFFERED,
        }

    def loaded(self, engine_blocks: int, block_size: int) -> None:
        """The engine is there, with so many blocks, and has cached nothing yet."""
        self.book = EventBook(CachedBlocks(engine_blocks, block_size))

    def start(self) -> None:
        """Begin to listen, unless that has begun."""
        if self._task is None and self.book is not None:
            self._task = asyncio.get_running_loop().create_task(self._run(self.book))

    def close(self) -> None:
        """Listen no more."""
        if self._task is not None:
            with suppress(RuntimeError):  # its loop may be gone
                self._task.cancel()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _run(self, book: EventBook) -> None:
        try:
            await self._listen(book)
        except Exception as error:
            logger.exception("vLLM's KV events cannot be read")
            book.lose(f"{type(error).__name__}: {error}")

    async def _listen(self, book: EventBook) -> None:
        import zmq
        import zmq.asyncio
        from zmq.utils.monitor import recv_monitor_message

        with zmq.asyncio.Context() as context:
            context.linger = 0
            news, replays = context.socket(zmq.SUB), context.socket(zmq.DEALER)
            with news, replays:
                for socket in (news, replays):
                    socket.maxmsgsize, socket.rcvhwm = MOST_BYTES, MOST_WAITING
                news.subscribe(b"")
                connected = news.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED)
                news.connect(self._endpoint)
                replays.connect(self._replays)
                async with asyncio.timeout(ANSWERS_WITHIN_S):
                    await recv_monitor_message(connected)
                news.disable_monitor()
                # What came before this listened.
                await self._replay(book, replays)
                shutil.rmtree(self._directory, ignore_errors=True)
                while True:
                    _, number, payload = await news.recv_multipart()
                    at = int.from_bytes(number, "big")
                    if not book.take(at, _events(payload)):
                        await self._replay(book, replays)
                        book.skip_to(at)
                        book.take(at, _events(payload))

    @staticmethod
    async def _replay(book: EventBook, replays: Any) -> None:  # noqa: ANN401 - a socket
        """Have vLLM repeat what is missing, as far as it can."""
        await replays.send_multipart([b"", book.expected.to_bytes(8, "big")])
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            while True:
                _, _, number, payload = await replays.recv_multipart()
                if number == END_OF_REPLAY:
                    return
                book.skip_to(int.from_bytes(number, "big"))
                book.take(int.from_bytes(number, "big"), _events(payload))


def _events(payload: bytes) -> Sequence[object]:
    """The events of a batch. An error of msgspec's where they are none."""
    return tuple(_decoder().decode(payload).events)


@cache
def _decoder() -> Any:  # noqa: ANN401 - msgspec's
    """Of batches as this version of vLLM writes them."""
    import msgspec
    from vllm.distributed.kv_events import KVEventBatch

    return msgspec.msgpack.Decoder(KVEventBatch)


def follow_events(config: HeadwayConfig, role: Role) -> KvEvents | None:
    """The stream of an engine that is to be made; None where the settings want none, or there is no place."""
    if not tells_events(config, role):
        return None
    try:
        return KvEvents()
    except OSError as error:
        logger.warning("what vLLM caches is not followed: %s", error)
        return None
