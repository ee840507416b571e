"""Requests that wait for the first replica of a pool that has none, and the planner, which hears of them.

A pool is empty because its replicas died, or because the planner let it go (`min_replicas` 0). Of the latter
the planner hears at once how many requests wait, and again every second: it orders replicas for them without
waiting for its next tick, and answers when one should serve, and whether it lacks GPUs for that. A client
whose request has waited as long as it may is told so (`Retry-After`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context

from actors.names import CallError
from headway.planning import Role
from serve_apps.gateway.backend import EmptyState, NotReady
from serve_apps.membership import Membership

TOLD_EVERY_S = 1.0
AT_LEAST_S = 0.5
"""Seconds that any request waits: long enough for the planner to hear of it, and to answer."""

Tell = Callable[[int], Awaitable[tuple[float | None, bool]]]
"""So many requests wait here → seconds until a replica should serve, from when it has its GPUs, None: not
known; and whether others hold those. CallError."""

logger = logging.getLogger("ray.serve")


class HeldRequests:
    """Those of one gateway. Made and used on one event loop; `tell` may be called as long as it runs.

    A request waits `longest_s`; in pools that `may_be_empty`, which the planner is told of, `start_wait_s`.
    """

    def __init__(
        self,
        pools: Mapping[Role, Membership],
        longest_s: float,
        may_be_empty: Iterable[Role] = (),
        start_wait_s: float = 0.0,
        tell: Tell | None = None,
    ) -> None:
        self._pools, self._tell = pools, tell
        self._longest_s = dict.fromkeys(pools, longest_s)
        self._longest_s |= dict.fromkeys(may_be_empty, max(start_wait_s, AT_LEAST_S))
        self._told_of = frozenset(may_be_empty)
        self._held, self._serves_s, self._lacks_gpus = 0, 0.0, False
        self._over = ""
        self._begun = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    async def staffed(self, *roles: Role) -> None:
        """Return when these pools have a replica each, all at one time. NotReady."""
        while empty := [role for role in roles if not len(self._pools[role])]:
            await self._first_replica(empty[0])

    @property
    def state(self) -> EmptyState:
        """What becomes of a pool that may be empty, as far as requests from here have asked for it."""
        if self._held and self._lacks_gpus:
            return "waiting"
        starts = self._held or asyncio.get_running_loop().time() < self._serves_s
        return "starting" if starts else "asleep"

    @property
    def serves_in_s(self) -> float | None:
        """Seconds until a replica that was asked for should serve; None where that is not known, or over."""
        left_s = self._serves_s - asyncio.get_running_loop().time()
        return left_s if left_s > 0.0 and not self._lacks_gpus else None

    def end(self, why: str) -> None:
        """No replica comes any more: requests that wait for one end now."""
        self._over = why
        for pool in self._pools.values():
            pool.wake()

    def close(self) -> None:
        """Tell nobody any more."""
        if self._telling is not None:
            self._telling.cancel()

    async def _first_replica(self, role: Role) -> None:
        pool, longest_s, told_of = self._pools[role], self._longest_s[role], role in self._told_of
        self._begin(told_of)
        try:
            async with asyncio.timeout(longest_s):
                while not len(pool):
                    if self._over:
                        raise NotReady(self._over)
                    await pool.change()
            self._serves_s = 0.0
        except TimeoutError:
            text = f"no {role.value} replica has been running for {longest_s:g} s"
            if not told_of:
                raise NotReady(text) from None
            left_s = max(1.0, self._serves_s - asyncio.get_running_loop().time())
            becomes = "it waits for GPUs that other models hold" if self._lacks_gpus else "one is starting"
            raise NotReady(f"{text}; {becomes}", left_s) from None
        finally:
            self._held -= told_of

    def _begin(self, told_of: bool) -> None:
        if not told_of or self._tell is None:
            return
        self._held += 1
        if self._held == 1:
            self._begun.set()
        if self._telling is None:
            # In a context of its own: Serve cancels with a request whatever was called in its context.
            self._telling = asyncio.create_task(self._report(self._tell), context=Context())

    async def _report(self, tell: Tell) -> None:
        now_s = asyncio.get_running_loop().time
        while True:
            if not self._held:
                await self._begun.wait()
            self._begun.clear()
            try:
                serves_in_s, self._lacks_gpus = await tell(self._held)
                if serves_in_s is not None:
                    self._serves_s = now_s() + serves_in_s
            except CallError as error:
                logger.warning("the planner does not hear of requests that wait for a replica: %s", error)
            try:
                async with asyncio.timeout(TOLD_EVERY_S):
                    await self._begun.wait()
            except TimeoutError:
                continue
