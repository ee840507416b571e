"""What engines say of their prefix caches, from replicas to the router: differences, when there are any.

    replica's report of its load    blocks_at: the number of changes of its cache so far     every half second
    gateway, where that has grown   known_blocks(since what it passed on last) ──▶ replica
    gateway ──▶ Router              Changed, with the difference; all of it at the beginning of a session

Every gateway does that for every replica: the router takes each change once, whoever brings it first, and
says which replicas' news it could not use, of which it then gets all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import Context

from headway.config import Role
from headway.routing.types import KnownBlocks
from serve_apps.gateway.backend import BackendError
from serve_apps.membership import Member, Membership

AskBlocks = Callable[[Role, str, int | None], Awaitable[KnownBlocks | None]]
"""Role, replica, and the number of changes that is known → what changed since. BackendError."""

AT_ONCE = 16
"""Replicas that are asked side by side: in a new session they all are."""

ANSWER_WITHIN_S, RETRY_S = 10.0, 1.0
"""Seconds that a replica has, and until it is asked again."""

logger = logging.getLogger("ray.serve")


class KnownBlocksFeed:
    """Passes it on from the first `restart` on. One event loop."""

    def __init__(
        self,
        pools: Mapping[Role, Membership],
        ask: AskBlocks,
        tell: Callable[[str, KnownBlocks], None],
    ) -> None:
        """`tell` is called with a replica's name and its news."""
        self._pools, self._ask, self._tell = pools, ask, tell
        self._told: dict[str, int] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._begun = False
        for pool in pools.values():
            pool.watch(self._look)

    def restart(self) -> None:
        """The router knows nothing."""
        self._begun = True
        self._told.clear()
        self._look()

    def unread(self, replicas: Iterable[str]) -> None:
        """The router could not use the news of these."""
        for replica in replicas:
            self._told.pop(replica, None)
            self._look()

    async def close(self) -> None:
        """Ask no more."""
        self._begun = False
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self) -> None:
        if not self._begun:
            return
        for role, pool in self._pools.items():
            for member in pool.members:
                if len(self._asking) < AT_ONCE and self._has_news(member):
                    self._begin(role, member.replica)

    def _has_news(self, member: Member) -> bool:
        at = member.stats.get("blocks_at")
        if at is None:
            self._told.pop(member.replica, None)
            return False
        return member.replica not in self._asking and at > self._told.get(member.replica, -1)

    def _begin(self, role: Role, replica: str) -> None:
        # In a context of its own: Serve cancels with a request whatever was called in the request's context.
        work = self._fetch(role, replica, self._told.get(replica))
        self._asking[replica] = task = asyncio.create_task(work, context=Context())
        task.add_done_callback(lambda _: self._asked(replica))

    def _asked(self, replica: str) -> None:
        del self._asking[replica]
        self._look()

    async def _fetch(self, role: Role, replica: str, since: int | None) -> None:
        said = None
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                said = await self._ask(role, replica, since)
        except (BackendError, TimeoutError) as error:
            logger.debug("%s does not say what it caches: %s", replica, error)
        if said is None:
            await asyncio.sleep(RETRY_S)
        elif self._told.get(replica) == since:
            self._told[replica] = said.sequence
            self._tell(replica, said)
