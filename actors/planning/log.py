"""The decision log, and the way of a decision until its replicas run.

Ids of records begin at 0 and rise by one, never repeated, across any crash. A record, its id and the
planner's memory are one put under `planner/decisions/ID`: there is no second place to disagree with it. The
next id is one above the highest key, so it is used up exactly when its record is there. The oldest are
deleted beyond `keep`; since the highest always stays, no id comes back. A record may be written again under
its id, as when its targets are reached. Only the newest memory is read, and it may be large: the two newest
records have one, the second should the first become unreadable.

An entry that cannot be read any more keeps its id and is left out of answers.

A decision is reached when every pool has its target ready and none starting (`Progress`, a pure state
machine). Until then it is *open*; a later decision with other targets *supersedes* it, and it is never
reached. A replica that shows up while decisions are open belongs to the oldest open one, which asked for it
first, and its times are kept also when that decision is superseded meanwhile. `running_at` stays null for a
replica that was gone before it ran. Replicas that ran before anything was followed belong to no decision.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any

from actors.collector.interval import Measured
from actors.connectors.protocol import PoolCounts, Replica
from actors.store import Store
from actors.stored import Kind, UnreadableError, decoded, encoded, put, put_aside, read
from headway.planning import Observation, Policy, Role
from headway.planning.advice.advisor import AdvisorMemory
from headway.planning.deciding import call
from headway.planning.doubt import in_doubt, makes_sure, open_still, settled_by
from headway.planning.records import DecisionRecord, ReplicaTimes

logger = logging.getLogger(__name__)

PREFIX = "planner/decisions/"
WIDTH = 12
KEEP = 1000
MEMORIES = 2

Learn = Callable[[Observation, Any], Any]
"""A policy's state after one more observation."""

Changes = dict[int, dict[str, Any]]
"""Changed fields of records, by id."""


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A state as it was stored."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerMemory:
    """The memory that one tick leaves to the next, also to that of a restarted planner.

    `state` is that of the policy named; `ended` and `met` count the requests that have ended so far and those
    that met their SLO. `advice` is of a dry run: the fleet from which its next decision is made. `sure` is
    the state before the latest intervals where those are in doubt, which `doubted` has (`planning.doubt`).
    """

    policy: str = ""
    state: Any = None
    ended: float = 0.0
    met: float = 0.0
    advice: AdvisorMemory | None = None
    sure: Any = None
    doubted: tuple[Observation, ...] = ()

    @property
    def attainment(self) -> float | None:
        """The share of all requests that met their SLO; None before any has ended."""
        return self.met / self.ended if self.ended > 0 else None

    def counting(self, measured: Measured) -> "PlannerMemory":
        """With one more interval's requests, if it is known how many of them met the SLO."""
        ended = measured.ended
        if not isfinite(ended):
            return self
        return replace(self, ended=self.ended + ended, met=self.met + measured.attainment * ended)

    @property
    def restored(self) -> bool:
        """True while `state` is as it was stored: only its policy knows the type."""
        return isinstance(self.state, _Encoded)

    def state_for(self, policy: Policy) -> Any:  # noqa: ANN401 - each policy's state is its own
        """What that policy goes on from: its first state where this is another's, or cannot be read."""
        return self._of(policy, self.state)

    def basis(self, policy: Policy, shown: Observation, learn: Learn) -> Any:  # noqa: ANN401
        """What a decision on `shown` goes on from: once that is sure, without what was in doubt before."""
        if self.policy != policy.name or not self.doubted or not _makes_sure(shown, policy):
            return self.state_for(policy)
        state = self._of(policy, self.sure)
        for each in self.doubted:
            state = learn(settled_by(shown, each), state)
        return state

    def after(self, policy: Policy, shown: Observation, state: Any) -> "PlannerMemory":  # noqa: ANN401
        """With the state after a decision on `shown`."""
        before, doubted = (self.state, self.doubted) if self.policy == policy.name else (None, ())
        waiting = open_still([in_doubt(each.requests, each.least_requests) for each in doubted])
        if waiting and not _makes_sure(shown, policy):
            sure, doubted = self.sure, (*doubted, shown)
        elif in_doubt(shown.requests, shown.least_requests):
            sure, doubted = before, (shown,)
        else:
            sure, doubted = None, ()
        return replace(self, policy=policy.name, state=state, sure=sure, doubted=doubted)

    def _of(self, policy: Policy, state: Any) -> Any:  # noqa: ANN401
        first = call(policy.name, policy.initial_state)
        if self.policy != policy.name or state is None:
            return first
        if not isinstance(state, _Encoded):
            return state
        try:
            return decoded(state.data, type(first))
        except UnreadableError as error:
            logger.warning("the stored state of policy %s begins anew: %s", policy.name, error)
            return first

    def dump(self) -> bytes:
        """Bytes for the store. A state that is no plain data is not among them, which is logged."""
        states = self.state, self.sure
        try:
            state, sure = (each.data if isinstance(each, _Encoded) else encoded(each) for each in states)
        except TypeError as error:
            logger.warning("policy %s begins anew after a restart: of its state, %s", self.policy, error)
            state = sure = encoded(None)
        return encoded(replace(self, state=state, sure=sure))


def _makes_sure(shown: Observation, policy: Policy) -> bool:
    return makes_sure(shown.requests, shown.least_requests, shown.interval_s / policy.interval_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredMemory(PlannerMemory):
    """The memory as it is stored: what its state is, only its policy knows."""

    state: bytes = b""
    sure: bytes = b""


def load_memory(data: bytes) -> PlannerMemory:
    """The stored memory; empty when this version of Headway cannot read it, which is logged."""
    if not data:
        return PlannerMemory()
    try:
        stored: _StoredMemory = decoded(data, _StoredMemory)
    except UnreadableError as error:
        logger.warning("the planner's stored state cannot be read, it begins anew: %s", error)
        return PlannerMemory()
    parts = {item.name: getattr(stored, item.name) for item in fields(PlannerMemory)}
    return PlannerMemory(**{**parts, "state": _Encoded(stored.state), "sure": _Encoded(stored.sure)})


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record as it is stored, with the planner's memory."""

    record: Mapping[str, Any]
    memory: bytes = b""


ENTRY = Kind("decision", _Entry)


class DecisionLog:
    """Records in a store, with a copy in memory, so that reading costs nothing."""

    def __init__(self, store: Store, keep: int = KEEP) -> None:
        self._store = store
        self._keep = max(1, keep)
        ids = sorted(_ids(store))
        self.next_id = ids[-1] + 1 if ids else 0
        """The id of the next record."""
        self._ids = ids
        self._records: dict[int, DecisionRecord] = {}
        self.memory = b""
        """The memory that was stored with the newest readable record."""
        for number in ids:
            self._restore(number)
        self._prune()

    @property
    def last(self) -> DecisionRecord | None:
        """The newest record."""
        return self._records[max(self._records)] if self._records else None

    @property
    def records(self) -> Sequence[DecisionRecord]:
        """All that are kept, oldest first."""
        return list(self._records.values())

    def append(self, record: DecisionRecord, memory: bytes = b"") -> DecisionRecord:
        """Store a record under the next id, which it gets as `id`."""
        numbered = record.model_copy(update={"id": self.next_id})
        self._put(numbered, memory)
        self._records[numbered.id] = numbered
        self._ids.append(numbered.id)
        self.memory = memory
        self.next_id += 1
        # Written again to drop its memory: only the newest is read, and it may be large.
        self.update(numbered.id - MEMORIES, {})
        self._prune()
        return numbered

    def update(self, number: int, changes: Mapping[str, Any]) -> DecisionRecord | None:
        """Store a record again with changed fields; None when it is no longer kept."""
        if (record := self._records.get(number)) is None:
            return None
        changed = record.model_copy(update=changes)
        self._put(changed, self.memory if number == self.next_id - 1 else b"")
        self._records[number] = changed
        return changed

    def get(self, number: int) -> DecisionRecord | None:
        """The record of that id, None when there is none."""
        return self._records.get(number)

    def after(self, number: int, limit: int) -> list[DecisionRecord]:
        """At most `limit` records with higher ids, lowest first."""
        ids = sorted(key for key in self._records if key > number)
        return [self._records[key] for key in ids[: max(0, limit)]]

    def _put(self, record: DecisionRecord, memory: bytes) -> None:
        put(self._store, ENTRY, _key(record.id), _Entry(record.document(), memory))

    def _restore(self, number: int) -> None:
        def use(entry: _Entry) -> tuple[DecisionRecord, bytes]:
            return DecisionRecord.model_validate({**entry.record, "id": number}), entry.memory

        if (found := read(self._store, ENTRY, _key(number), use)) is not None:
            self._records[number], self.memory = found

    def _prune(self) -> None:
        while len(self._ids) > self._keep:
            self._store.delete(_key(self._ids[0]))
            self._records.pop(self._ids.pop(0), None)


def _key(number: int) -> str:
    return f"{PREFIX}{number:0{WIDTH}d}"


def _ids(store: Store) -> Iterator[int]:
    """Those that are taken; what lies beside them under another name is put aside."""
    for key in store.keys(PREFIX):
        if re.fullmatch(rf"[0-9]{{{WIDTH}}}", key.removeprefix(PREFIX)):
            yield int(key.removeprefix(PREFIX))
        else:
            put_aside(store, key, "no decision has such a key")
            store.delete(key)


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
            reached = all(
                role in pools and pools[role].ready == target and pools[role].starting == 0
                for role, target in item.targets.items()
            )
            if item.open and reached:
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
