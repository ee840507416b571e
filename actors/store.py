"""Where actors keep what a restart needs: bytes under string keys, each `put` one atomic step.

The default is Ray's internal KV (0.2 ms a put), which outlives any actor, and the GCS too when that is backed
by Redis.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from actors.compat_ray import internal_kv

T = TypeVar("T")


PREFIX = "headway/"
KV_NAMESPACE = b"headway"
STORE_S = 2.0
"""Seconds that work with a store may take; some 0.2 ms is usual."""

logger = logging.getLogger(__name__)


class Store(Protocol):
    """Bytes under keys such as `planner/decisions/17`."""

    def get(self, key: str) -> bytes | None:
        """The value, None if there is none."""

    def put(self, key: str, value: bytes) -> None:
        """Replace the value, whole or not at all."""

    def delete(self, key: str) -> None:
        """Remove the value if there is one."""

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so, sorted."""


class InternalKvStore:
    """Ray's internal KV, below a prefix. Works wherever Ray is initialised: drivers, workers, actors."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = PREFIX + prefix

    def get(self, key: str) -> bytes | None:
        """The value, None if there is none."""
        value: bytes | None = internal_kv()._internal_kv_get(self._key(key), namespace=KV_NAMESPACE)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Replace the value, whole or not at all."""
        internal_kv()._internal_kv_put(self._key(key), value, overwrite=True, namespace=KV_NAMESPACE)

    def claim(self, key: str, value: bytes) -> bytes:
        """The value that is there; this one where there was none. One of several at once has its way."""
        internal_kv()._internal_kv_put(self._key(key), value, overwrite=False, namespace=KV_NAMESPACE)
        return self.get(key) or value

    def delete(self, key: str) -> None:
        """Remove the value if there is one."""
        internal_kv()._internal_kv_del(self._key(key), namespace=KV_NAMESPACE)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so, sorted."""
        found: list[bytes] = internal_kv()._internal_kv_list(self._key(prefix), namespace=KV_NAMESPACE)
        return sorted(key.decode().removeprefix(self._key("")) for key in found)

    def _key(self, key: str) -> str:
        return self._prefix + key


class StoreAway(Exception):
    """The store did not answer in time, or not well."""


class InOrder:
    """Blocking work with a store beside an event loop, one piece after the other, with a limit for each.

    Work that takes longer goes on by itself, for a write cannot be called back; what comes after it waits for
    it, so that writes keep their order, and is refused where that takes too long.
    """

    def __init__(self, within_s: float = STORE_S) -> None:
        self._within_s = within_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._newest: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """The outcome of `work`, which raises as it does; StoreAway if there is none in time."""
        from ray.exceptions import RayError

        if self._newest is not None:
            await self._waited(self._newest)
        mine: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(self._thread, work)
        self._newest = mine
        mine.add_done_callback(_looked_at)
        await self._waited(mine)
        try:
            return mine.result()
        except (RayError, OSError) as error:
            raise StoreAway(f"the store: {(str(error).strip() or repr(error)).splitlines()[0]}") from error

    async def _waited(self, work: asyncio.Future[Any]) -> None:
        await asyncio.wait({work}, timeout=self._within_s)
        if not work.done():
            raise StoreAway(f"the store does not answer within {self._within_s:g} s")


def _looked_at(work: asyncio.Future[Any]) -> None:
    """Log the failure of work that nobody may wait for any more."""
    if not work.cancelled() and (error := work.exception()) is not None:
        logger.info("work with the store failed: %s", error)


class WriteBehind:
    """Puts for values of which only the newest counts, beside the event loop: it never waits for the store.

    One put is under way at most, and the newest values wait for it. A store that fails is logged; the next
    values are tried again.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: Mapping[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    def put(self, values: Mapping[str, bytes]) -> None:
        """Have these stored soon, instead of those that still wait."""
        self._waiting = values
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._write())

    async def written(self, within_s: float) -> None:
        """Return when everything is stored, or after that time."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=within_s)

    async def _write(self) -> None:
        while self._waiting:
            values, self._waiting = self._waiting, {}
            try:
                await asyncio.to_thread(self._put, values)
            except Exception:  # Ray's client raises what its transport raises
                logger.warning("the store does not take %s", ", ".join(values), exc_info=True)

    def _put(self, values: Mapping[str, bytes]) -> None:
        for key, value in values.items():
            self._store.put(key, value)
