"""The replicas as the router has to hear of them: changes since the last report.

READY      runs, with the load that it last reported
DRAINING   cannot be reached just now (suspect), or has left the list while requests of ours run there
GONE       died, or has left the list with nothing of ours on it

What engines say of their prefix caches goes from replicas to the router as differences, when there are any:

    replica's report of its load    blocks_at: the number of changes of its cache so far     every half second
    gateway, where that has grown   known_blocks(since what it passed on last) ──▶ replica
    gateway ──▶ Router              Changed, with the difference; all of it at the beginning of a session

Every gateway does that for every replica. The router takes each change once, from whichever gateway brings it
first, and names the replicas whose news it could not use, of which it then gets all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any

from headway.planning import Role
from headway.routing.types import (
    KnownBlocks,
    ReplicaLoad,
    ReplicaState,
    ReplicaUpdate,
)
from serve_apps.gateway.backend import BackendError
from serve_apps.membership import Member, Membership

logger = logging.getLogger("ray.serve")
InUse = Callable[[str], bool]
"""Replica → True if requests of ours are there."""


class ReplicaDiff:
    """The difference between the pools of one application and what the router was last sent."""

    def __init__(self, pools: Mapping[Role, Membership], in_use: InUse) -> None:
        self._pools = pools
        self._in_use = in_use
        self._reported: dict[str, ReplicaUpdate] = {}
        self.stale = True
        """True while there may be changes."""
        for pool in pools.values():
            pool.watch(self._change)

    def all(self, now_s: float) -> Sequence[ReplicaUpdate]:
        """Every replica, for a router that has none."""
        self._reported = {}
        return [update for update in self._difference(now_s) if update.state is not ReplicaState.GONE]

    def news(self, now_s: float) -> Sequence[ReplicaUpdate]:
        """The changes since the last call."""
        return self._difference(now_s) if self.stale else ()

    def reported(self, replica: str) -> ReplicaUpdate | None:
        """What the router was last sent of a replica, None if nothing."""
        return self._reported.get(replica)

    def _change(self) -> None:
        self.stale = True

    def _difference(self, now_s: float) -> list[ReplicaUpdate]:
        updates, seen = [], set()
        self.stale = False
        for role, pool in self._pools.items():
            for member in pool.members:
                seen.add(member.replica)
                self.stale |= member.suspect_until_s > now_s
                update = _update(role, member, now_s)
                if self._reported.get(member.replica) != update:
                    self._reported[member.replica] = update
                    updates.append(update)
        for replica in sorted(self._reported.keys() - seen):
            updates += self._left(self._reported[replica])
        return updates

    def _left(self, reported: ReplicaUpdate) -> list[ReplicaUpdate]:
        """The update for a replica that is no longer listed, where that is new."""
        if self._pools[reported.role].died(reported.replica) or not self._in_use(reported.replica):
            del self._reported[reported.replica]
            return [ReplicaUpdate(replica=reported.replica, role=reported.role, state=ReplicaState.GONE)]
        self.stale = True
        left = ReplicaUpdate(replica=reported.replica, role=reported.role, state=ReplicaState.DRAINING)
        self._reported[reported.replica] = left
        return [] if left == reported else [left]


def _update(role: Role, member: Member, now_s: float) -> ReplicaUpdate:
    suspect = member.suspect_until_s > now_s
    return ReplicaUpdate(
        replica=member.replica,
        role=role,
        state=ReplicaState.DRAINING if suspect else ReplicaState.READY,
        gpu_type=str(member.stats.get("gpu_type", "")),
        load=_load(member.stats),
        blocks_at=member.stats.get("blocks_at"),
    )


def _load(stats: Mapping[str, Any]) -> ReplicaLoad | None:
    if not stats:
        return None
    adapters = stats.get("adapters")
    return ReplicaLoad(
        running=int(stats.get("running", 0)),
        waiting=int(stats.get("waiting", 0)),
        kv_usage=float(stats.get("kv_usage", 0.0)),
        busy_s=stats.get("busy_s"),
        preemptions=int(stats.get("preemptions", 0)),
        adapters=None if adapters is None else tuple(adapters),
        adapter_room=stats.get("adapter_room"),
    )


AskBlocks = Callable[[Role, str, int | None], Awaitable[KnownBlocks | None]]
"""Role, replica, and the number of changes that is known → what changed since. BackendError."""

AT_ONCE = 16
"""Replicas that are asked side by side: in a new session they all are."""

ANSWER_WITHIN_S, RETRY_S = 10.0, 1.0
"""Seconds that a replica has, and until it is asked again."""


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
