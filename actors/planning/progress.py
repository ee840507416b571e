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
from actors.planning.records import Record, targets_of
from headway.planning import Role

Changes = dict[int, dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class _Followed:
    """One decision, the entries of its replicas, and the names of those that have yet to run."""

    id: int
    targets: Mapping[Role, int]
    entries: dict[str, dict[str, Any]]
    awaited: set[str] = field(default_factory=set)
    open: bool = True

    def enter(self, replica: Replica, now_s: float) -> None:
        """A replica of this decision has shown up."""
        self.entries[replica.replica] = {
            "role": replica.role.value,
            "replica": replica.replica,
            "starting_at": min(replica.started_s, now_s),
            "running_at": None,
        }
        self.awaited.add(replica.replica)

    def advance(self, phases: Mapping[str, str], now_s: float) -> bool:
        """Note who runs now and who is gone; whether an entry has changed."""
        running = {name for name in self.awaited if phases.get(name) == "ready"}
        for name in running:
            self.entries[name]["running_at"] = now_s
        self.awaited = {name for name in self.awaited if phases.get(name) == "starting"}
        return bool(running)


class Progress:
    """Follows the decisions whose targets or replicas are still on their way."""

    def __init__(self) -> None:
        self._followed: list[_Followed] = []
        self._known: set[str] | None = None

    @property
    def unfinished(self) -> bool:
        """Whether anything is still on its way."""
        return bool(self._followed)

    def begin(self, record: Record) -> None:
        """Follow a decision that was applied; those before it with other targets are superseded."""
        targets = targets_of(record)
        for earlier in self._followed:
            earlier.open = earlier.open and earlier.targets == targets
        entries = {entry["replica"]: dict(entry) for entry in record["replicas"]}
        awaited = {name for name, entry in entries.items() if entry["running_at"] is None}
        self._followed.append(_Followed(id=record["id"], targets=targets, entries=entries, awaited=awaited))

    def see(
        self, now_s: float, pools: Mapping[Role, PoolCounts], replicas: Sequence[Replica] | None = None
    ) -> Changes:
        """Take in what the connector shows now; without `replicas` only counts are followed."""
        changed = self._see_replicas(now_s, replicas) if replicas is not None else set()
        changes: Changes = {
            item.id: {"replicas": [dict(entry) for entry in item.entries.values()]}
            for item in self._followed
            if item.id in changed
        }
        for item in self._followed:
            if item.open and reached(item.targets, pools):
                item.open = False
                changes.setdefault(item.id, {})["reached_at"] = now_s
        self._followed = [item for item in self._followed if item.open or item.awaited]
        return changes

    def _see_replicas(self, now_s: float, replicas: Sequence[Replica]) -> set[int]:
        """Ids of decisions of which an entry is new or has changed."""
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
        if any(replica.replica in item.entries for item in self._followed):
            return False
        if self._known is None:
            return replica.phase == "starting"
        return replica.replica not in self._known and replica.phase != "draining"


def reached(targets: Mapping[Role, int], pools: Mapping[Role, PoolCounts]) -> bool:
    """Whether every pool has its target ready, and none starting."""
    return all(
        role in pools and pools[role].ready == target and pools[role].starting == 0
        for role, target in targets.items()
    )
