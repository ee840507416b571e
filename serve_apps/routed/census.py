"""What the router has yet to be told of the replicas: the difference between what runs and what it knows.

READY      runs, with the load that it last reported
DRAINING   cannot be reached just now (suspect), or has left the list while requests of ours run there
GONE       died, or has left the list with nothing of ours on it
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headway.planning import Role
from headway.routing.types import ReplicaLoad, ReplicaState, ReplicaUpdate
from serve_apps.membership import Member, Membership

InUse = Callable[[str], bool]
"""Whether requests of ours are on that replica."""


class Census:
    """Follows the pools of one application."""

    def __init__(self, pools: Mapping[Role, Membership], in_use: InUse) -> None:
        self._pools = pools
        self._in_use = in_use
        self._told: dict[str, ReplicaUpdate] = {}
        self.stale = True
        """Whether there may be news."""
        for pool in pools.values():
            pool.watch(self._change)

    def all(self, now_s: float) -> Sequence[ReplicaUpdate]:
        """Every replica, for a router that knows none."""
        self._told = {}
        return [update for update in self._difference(now_s) if update.state is not ReplicaState.GONE]

    def news(self, now_s: float) -> Sequence[ReplicaUpdate]:
        """What has changed since the last call."""
        return self._difference(now_s) if self.stale else ()

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
                if self._told.get(member.replica) != update:
                    self._told[member.replica] = update
                    updates.append(update)
        for replica in sorted(self._told.keys() - seen):
            updates += self._left(self._told[replica])
        return updates

    def _left(self, told: ReplicaUpdate) -> list[ReplicaUpdate]:
        """What becomes of a replica that is no longer listed, where that is new."""
        if self._pools[told.role].died(told.replica) or not self._in_use(told.replica):
            del self._told[told.replica]
            return [ReplicaUpdate(replica=told.replica, role=told.role, state=ReplicaState.GONE)]
        self.stale = True
        left = ReplicaUpdate(replica=told.replica, role=told.role, state=ReplicaState.DRAINING)
        self._told[told.replica] = left
        return [] if left == told else [left]


def _update(role: Role, member: Member, now_s: float) -> ReplicaUpdate:
    suspect = member.suspect_until_s > now_s
    return ReplicaUpdate(
        replica=member.replica,
        role=role,
        state=ReplicaState.DRAINING if suspect else ReplicaState.READY,
        gpu_type=str(member.stats.get("gpu_type", "")),
        load=_load(member.stats),
    )


def _load(stats: Mapping[str, Any]) -> ReplicaLoad | None:
    if not stats:
        return None
    return ReplicaLoad(
        running=int(stats.get("running", 0)),
        waiting=int(stats.get("waiting", 0)),
        kv_usage=float(stats.get("kv_usage", 0.0)),
        busy_s=stats.get("busy_s"),
    )
