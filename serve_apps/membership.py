"""Who serves, as this process knows it: running replicas, their load, and our requests on them.

Request routers are pickled by value, so what they share with the rest of the process lives here, in a
module that is imported by name. A router writes (`update`, `sent`, `done`, `suspect`), the backend reads.
Everything happens on one event loop; there are no locks.

    RoutingError(Exception)
    ├── NoReplica          nothing runs, and nothing came to run within the wait
    └── ReplicaGone        the replica that the caller named is not running

Load of a replica = what it reported of itself (some tenths of a second old) as far as others put it there,
plus exactly the requests that this process has on it now. Only what routers know belongs here.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Profile = Literal["random", "round_robin", "least_load"]

NO_REPLICA_S = 5.0
"""Seconds that a call waits for a first replica."""

SUSPECT_S = 1.0
"""Seconds for which a replica that could not be reached is only used when there is no other."""


class RoutingError(Exception):
    """Base of why a call finds no replica."""


class NoReplica(RoutingError):
    """No replica runs."""


class ReplicaGone(RoutingError):
    """The replica that the caller named is not running."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One running replica and the ids of our requests on it."""

    replica: str
    stats: Mapping[str, Any] = field(default_factory=dict)
    requests: set[str] = field(default_factory=set)
    ours_when_reported: int = 0
    suspect_until_s: float = 0.0

    @property
    def load(self) -> int:
        """Requests there: ours now, and those of others when it last reported."""
        reported = int(self.stats.get("running", 0)) + int(self.stats.get("waiting", 0))
        return len(self.requests) + max(0, reported - self.ours_when_reported)

    def report(self, stats: Mapping[str, Any]) -> None:
        """Take what the replica says of itself."""
        if stats != self.stats:
            self.ours_when_reported = len(self.requests)
        self.stats = stats


class Membership:
    """The running replicas of one deployment."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._members: dict[str, Member] = {}
        self._dead: set[str] = set()
        self._rng = rng or random.Random()
        self._turn = itertools.count()
        self._watchers: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []

    def __contains__(self, replica: str) -> bool:
        return replica in self._members

    def __len__(self) -> int:
        return len(self._members)

    @property
    def members(self) -> Sequence[Member]:
        """The running replicas."""
        return tuple(self._members.values())

    def update(self, replicas: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Take the new list of running replicas with what each last said of itself."""
        before, self._members = self._members, {}
        for replica, stats in replicas:
            member = before.get(replica) or Member(replica=replica)
            member.report(stats)
            self._members[replica] = member
        self._changed()

    def remove(self, replica: str) -> None:
        """The replica is dead."""
        self._dead.add(replica)
        self._members.pop(replica, None)
        self._changed()

    def died(self, replica: str) -> bool:
        """Whether a replica that is no longer here is dead; else it only takes nothing new."""
        return replica in self._dead

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this after every change of who runs, of what they report, and of who is suspect."""
        self._watchers.append(watcher)

    async def change(self) -> None:
        """Wait for the next change."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        for watcher in self._watchers:
            watcher()

    def suspect(self, replica: str, now_s: float) -> None:
        """The replica could not be reached just now."""
        if member := self._members.get(replica):
            member.suspect_until_s = now_s + SUSPECT_S
            self._changed()

    def has_better(self, replica: str, now_s: float) -> bool:
        """Whether the replica is suspect or gone, and another runs that is not."""
        member = self._members.get(replica)
        if member is not None and member.suspect_until_s <= now_s:
            return False
        return any(other.suspect_until_s <= now_s for other in self._members.values())

    def sent(self, replica: str, request: str) -> None:
        """A request of ours goes there."""
        if member := self._members.get(replica):
            member.requests.add(request)

    def done(self, replica: str, request: str) -> None:
        """It has ended, however it did."""
        if member := self._members.get(replica):
            member.requests.discard(request)

    def pick(self, profile: Profile, now_s: float) -> str | None:
        """The replica for the next request, None when there is none; suspects only when all are."""
        members = list(self._members.values())
        candidates = [member for member in members if member.suspect_until_s <= now_s] or members
        if not candidates:
            return None
        if profile == "round_robin":
            return candidates[next(self._turn) % len(candidates)].replica
        if profile == "least_load":
            least = min(member.load for member in candidates)
            candidates = [member for member in candidates if member.load == least]
        return self._rng.choice(candidates).replica


_deployments: dict[tuple[str, str], Membership] = {}


def membership(application: str, deployment: str) -> Membership:
    """The one list of that deployment in this process."""
    return _deployments.setdefault((application, deployment), Membership())
