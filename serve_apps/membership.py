"""The running replicas of a deployment, their load, and the requests that this process has on them.

Request routers are pickled by value, so what they share with the rest of the process lives here, in a
module that is imported by name. A router writes (`update`, `sent`, `done`, `suspect`), the backend reads.
Everything happens on one event loop; there are no locks.

    RoutingError(Exception)
    ├── NoReplica          nothing runs, and nothing came to run within the wait
    ├── ReplicaGone        the replica that the caller named is not running
    └── Saturated          every replica is saturated, and none ceased to be within the wait

Load of a replica = exactly what this process has on it now, plus the requests that others have there by its
last report, which is up to some tenths of a second old. It is compared as in the simulation, by
`headway.routing.shared_rules`: prompt tokens on prefill replicas, requests on all others. No report has how
long the prompts of others are, so each of them counts as long as ours are on average. A replica that reports
that it is slower than its peers is compared by the load at which one of them would be as late.

Of equals the first is chosen, in the order in which replicas came. So a pool with little to do works with its
first replicas while the last ones idle. Several gateways agree on the order: between two reports they do not
see each other's requests, and may all choose the same replica.

A replica that is saturated (`headway.routing.shared_rules`) gets nothing while others are not. Where all
are, `room` lets requests wait in line.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headway.config import Role
from headway.routing.shared_rules import (
    FRESH_S,
    EngineWord,
    SaturationRule,
    counts_prompt_tokens,
    felt_load,
    least_loaded,
)

Profile = Literal["random", "round_robin", "least_load"]

NO_REPLICA_S = 5.0
"""Seconds that a call waits for a first replica."""

SUSPECT_S = 1.0
"""Seconds for which a replica that could not be reached is only used when there is no other."""


LOOK_S = 0.5
"""Seconds after which a saturated pool is looked at again, though nothing was heard of it."""


class RoutingError(Exception):
    """Base of why a call finds no replica."""


class NoReplica(RoutingError):
    """No replica runs."""


class ReplicaGone(RoutingError):
    """The replica that the caller named is not running."""


class Saturated(RoutingError):
    """Every replica has as much queued as it may have."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One running replica, and our requests on it: id → prompt tokens, `prompt_tokens` of them all."""

    replica: str
    stats: Mapping[str, Any] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    ours_when_reported: int = 0
    heard_s: float = 0.0
    suspect_until_s: float = 0.0
    word: EngineWord = field(default_factory=EngineWord)
    slowness: float = 1.0
    """How many times as long as its peers it takes, and by how many requests its empty batch counts."""
    idle_requests: float = 0.0

    @property
    def load(self) -> int:
        """Requests there: ours now, and those of others when it last reported."""
        return len(self.requests) + self.others

    @property
    def others(self) -> int:
        """Requests of others when it last reported."""
        reported = int(self.stats.get("running", 0)) + int(self.stats.get("waiting", 0))
        return max(0, reported - self.ours_when_reported)

    def report(self, stats: Mapping[str, Any], now_s: float, rule: SaturationRule | None) -> None:
        """Take a report of the replica."""
        # Serve repeats the last report with every change of the list: only a new one is about now.
        if stats != self.stats:
            self.ours_when_reported, self.heard_s = len(self.requests), now_s
            if rule is not None:
                waiting, kv_usage = int(stats.get("waiting", 0)), float(stats.get("kv_usage", 0.0))
                self.word.heard(now_s, waiting, kv_usage, int(stats.get("preemptions", 0)), rule)
        self.stats = stats
        self.slowness = float(stats.get("slowness", 1.0))
        self.idle_requests = float(stats.get("idle_requests", 0.0))

    def saturated(self, now_s: float, role: Role, rule: SaturationRule) -> bool:
        """True if it should get nothing more now."""
        # Others that were reported long ago may have left; ours are exact.
        there = self.load if now_s < self.heard_s + FRESH_S else len(self.requests)
        return now_s < self.word.until_s or rule.crowded(there, role)

    def felt(self, load: float, own: float) -> float:
        """`load` as that of a typical replica, for a request that itself counts `own`."""
        if self.slowness == 1.0:
            return load
        return felt_load(load, own, self.slowness, self.idle_requests)


class Membership:
    """The running replicas of one deployment. Without a `rule` none of them is ever saturated."""

    rule: SaturationRule | None = None

    def __init__(self, rng: random.Random | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._members: dict[str, Member] = {}
        self._dead: set[str] = set()
        self._rng = rng or random.Random()
        self._turn = itertools.count()
        self._prompts = self._prompt_tokens = 0
        self._watchers: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._clock, self._line, self._in_line = clock, asyncio.Lock(), 0

    def __contains__(self, replica: str) -> bool:
        return replica in self._members

    def __len__(self) -> int:
        return len(self._members)

    @property
    def members(self) -> Sequence[Member]:
        """The running replicas."""
        return tuple(self._members.values())

    def update(self, replicas: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Take the new list of running replicas with the last report of each. Who rests takes nothing new."""
        reports = {name: stats for name, stats in replicas if stats.get("rest", "awake") == "awake"}
        # Serve's list has no order to rely on: those that stay keep their places, and new ones come last.
        members = [member for member in self._members.values() if member.replica in reports]
        members += [Member(replica=replica) for replica in reports if replica not in self._members]
        self._members = {member.replica: member for member in members}
        now_s = self._clock()
        for member in members:
            member.report(reports[member.replica], now_s, self.rule)
        self._changed()

    def remove(self, replica: str) -> None:
        """The replica is dead."""
        self._dead.add(replica)
        self._members.pop(replica, None)
        self._changed()

    def died(self, replica: str) -> bool:
        """True if a replica that is no longer here is dead; else it only takes nothing new."""
        return replica in self._dead

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call this after every change: of the replicas, of their reports, and of which are suspect."""
        self._watchers.append(watcher)

    async def change(self, longest_s: float | None = None) -> bool:
        """Wait for the next change; False where none comes within `longest_s`."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(longest_s):
                await waiter
        except TimeoutError:
            return False
        return True

    def wake(self) -> None:
        """Have those look again that wait for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _changed(self) -> None:
        self.wake()
        for watcher in self._watchers:
            watcher()

    def suspect(self, replica: str, now_s: float, for_s: float = SUSPECT_S) -> None:
        """The replica could not be reached just now, or makes no progress."""
        if member := self._members.get(replica):
            member.suspect_until_s = max(member.suspect_until_s, now_s + for_s)
            self._changed()

    def has_better(self, replica: str, now_s: float) -> bool:
        """True if the replica is suspect or gone, and another runs that is not."""
        member = self._members.get(replica)
        if member is not None and member.suspect_until_s <= now_s:
            return False
        return any(other.suspect_until_s <= now_s for other in self._members.values())

    def sent(self, replica: str, request: str, prompt_tokens: int = 0) -> None:
        """A request of ours goes there; to a place where it is already, nothing changes."""
        member = self._members.get(replica)
        if member is not None and request not in member.requests:
            member.requests[request] = prompt_tokens
            member.prompt_tokens += prompt_tokens
            self._prompts += 1
            self._prompt_tokens += prompt_tokens

    def done(self, replica: str, request: str) -> None:
        """It has ended, however it did."""
        if member := self._members.get(replica):
            member.prompt_tokens -= member.requests.pop(request, 0)
            if self._in_line:
                self.wake()

    def saturated(self, now_s: float, role: Role = Role.MIXED) -> bool:
        """True if there are replicas, and all are saturated; suspects do not count beside others."""
        members = self._usable(now_s)
        return bool(members) and not self._free(members, now_s, role)

    async def room(self, role: Role, longest_s: float, most: int) -> None:
        """Return when a replica is not saturated, to those that wait in the order in which they came.

        The caller enters the request before anything else runs. Saturated where that takes longer than
        `longest_s`, or where `most` wait already.
        """
        if not self._in_line and not self.saturated(self._clock(), role):
            return
        if self._in_line >= most:
            raise Saturated(f"every {role.value} replica is saturated, and {self._in_line} requests wait")
        self._in_line += 1
        try:
            async with asyncio.timeout(longest_s), self._line:
                while self.saturated(self._clock(), role):
                    await self.change(LOOK_S)
        except TimeoutError:
            raise Saturated(f"every {role.value} replica has been saturated for {longest_s:g} s") from None
        finally:
            self._in_line -= 1

    def pick(
        self, profile: Profile, now_s: float, role: Role = Role.MIXED, prompt_tokens: int = 0
    ) -> str | None:
        """The replica of a pool of `role` for a request of so long a prompt, None when there is none.

        Suspects are chosen only when all are, and so are those that are saturated.
        """
        candidates = self._usable(now_s)
        if not candidates:
            return None
        candidates = self._free(candidates, now_s, role) or candidates
        if profile == "round_robin":
            return candidates[next(self._turn) % len(candidates)].replica
        if profile == "random":
            return self._rng.choice(candidates).replica
        return candidates[least_loaded(self._loads(candidates, role, prompt_tokens))].replica

    def _usable(self, now_s: float) -> list[Member]:
        members = list(self._members.values())
        return [member for member in members if member.suspect_until_s <= now_s] or members

    def _free(self, members: list[Member], now_s: float, role: Role) -> list[Member]:
        """Those that are not saturated."""
        if (rule := self.rule) is None:
            return members
        return [member for member in members if not member.saturated(now_s, role, rule)]

    def _loads(self, members: Iterable[Member], role: Role, prompt_tokens: int) -> Iterator[float]:
        if not counts_prompt_tokens(role):
            return (member.felt(member.load, 1.0) for member in members)
        mean_tokens = self._prompt_tokens / max(1, self._prompts)
        return (
            member.felt(member.prompt_tokens + member.others * mean_tokens, prompt_tokens)
            for member in members
        )


_deployments: dict[tuple[str, str], Membership] = {}


def membership(application: str, deployment: str) -> Membership:
    """The one list of that deployment in this process."""
    return _deployments.setdefault((application, deployment), Membership())
