"""From decision to RUNNING: what became of the targets, replica by replica.

A decision is reached when every pool has its target ready and none starting. Until then it is *open*; a later
decision with other targets *supersedes* it, and it is never reached. A replica that shows up while decisions
are open belongs to the oldest open one, which asked for it first, and its times are kept also when that
decision is superseded meanwhile. `running_at` stays null for a replica that was gone before it ran. Replicas
that ran before anything was followed belong to no decision.

A pure state machine: `see` returns the changed fields of records by id, for the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.connectors.protocol import PoolCounts, Replica
from headway.planning import Role
from headway.planning.records import DecisionRecord, ReplicaTimes

Changes = dict[int, dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class _Followed:
    """One decision, the times of its replicas, and the names of those that have yet to run."""

    id: int
    targets: Mapping[Role, int]
    replicas: dict[str, ReplicaTimes]
    awaited: set[str] = field(default_factory=set)
    open: bool = True

    def enter(self, replica: Replica, now_s: float) -> None:
        """Add a replica that has shown up."""
        self.replicas[replica.replica] = ReplicaTimes(
            role=replica.role,
            replica=replica.replica,
            starting_at=min(replica.started_s, now_s),
            running_at=None,
        )
        self.awaited.add(replica.replica)

    def advance(self, phases: Mapping[str, str], now_s: float) -> bool:
        """Note which replicas run now and which are gone; True if any has begun to run."""
        running = {name for name in self.awaited if phases.get(name) == "ready"}
        for name in running:
            self.replicas[name] = self.replicas[name].model_copy(update={"running_at": now_s})
        self.awaited = {name for name in self.awaited if phases.get(name) == "starting"}
        return bool(running)


class Progress:
    """Follows the decisions whose targets or replicas are still on their way."""

    def __init__(self) -> None:
        self._followed: list[_Followed] = []
        self._known: set[str] | None = None

    @property
    def unfinished(self) -> bool:
        """True while anything is still on its way."""
        return bool(self._followed)

    def begin(self, record: DecisionRecord) -> None:
        """Follow a decision that was applied; those before it with other targets are superseded."""
        for earlier in self._followed:
            earlier.open = earlier.open and earlier.targets == record.targets
        replicas = {entry.replica: entry for entry in record.replicas}
        awaited = {name for name, entry in replicas.items() if entry.running_at is None}
        self._followed.append(
            _Followed(id=record.id, targets=record.targets, replicas=replicas, awaited=awaited)
        )

    def see(
        self, now_s: float, pools: Mapping[Role, PoolCounts], replicas: Sequence[Replica] | None = None
    ) -> Changes:
        """Take in what the connector shows now; without `replicas` only counts are followed."""
        changed = self._see_replicas(now_s, replicas) if replicas is not None else set()
        changes: Changes = {
            item.id: {"replicas": tuple(item.replicas.values())}
            for item in self._followed
            if item.id in changed
        }
        for item in self._followed:
            if item.open and _reached(item.targets, pools):
                item.open = False
                changes.setdefault(item.id, {})["reached_at"] = now_s
        self._followed = [item for item in self._followed if item.open or item.awaited]
        return changes

    def _see_replicas(self, now_s: float, replicas: Sequence[Replica]) -> set[int]:
        """Ids of decisions of which a replica is new or has changed."""
        phases = {replica.replica: replica.phase for replica in replicas}
        owner = next((item for item in self._followed if item.open), None)
        fresh = [replica for replica in replicas if self._is_new(replica)]
        self._known = set(phases)
        changed: set[int] = set()
        if owner is not None:
            for replica in fresh:
                owner.enter(replica, now_s)
                changed.add(owner.id)
        return changed | {item.id for item in self._followed if item.advance(phases, now_s)}

    def _is_new(self, replica: Replica) -> bool:
        if any(replica.replica in item.replicas for item in self._followed):
            return False
        # At the first look everything is unknown: what already runs was there before any decision.
        if self._known is None:
            return replica.phase == "starting"
        return replica.replica not in self._known and replica.phase != "draining"


def _reached(targets: Mapping[Role, int], pools: Mapping[Role, PoolCounts]) -> bool:
    return all(
        role in pools and pools[role].ready == target and pools[role].starting == 0
        for role, target in targets.items()
    )
