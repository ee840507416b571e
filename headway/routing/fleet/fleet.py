"""The replicas as a struct of arrays: one row per quantity, one column per replica.

A decision reads whole rows, an event changes a few cells. Slots are taken from a free list and given back, so
the table is as wide as the fleet ever was. `ready(role)` lists slots in the order of replica ids: what is
decided does not depend on the order in which replicas came.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

import numpy as np

from headway.config import Role
from headway.routing.fleet.records import SAMPLE_S, LazyHeap, Record, Replica, UtilisationSamples
from headway.routing.fleet.table import EMPTY, FleetRow, FloatArray, SlotArray
from headway.routing.types import Figures, ReplicaId, ReplicaLoad

FIRST_SLOTS = 64


class RoutedFleet:
    """All replicas that are known."""

    def __init__(self) -> None:
        self.table: FloatArray = np.zeros((len(FleetRow), 0))
        self._free: list[int] = []
        self._names: dict[ReplicaId, Replica] = {}
        self._at: list[Replica | None] = []
        self._ready: dict[Role, SlotArray] = {role: np.empty(0, dtype=np.int64) for role in Role}
        self._ready_kinds: dict[Role, frozenset[int]] = {role: frozenset() for role in Role}
        self._kinds: dict[Role, dict[int, str]] = {role: {} for role in Role}
        self._reported: dict[Replica, tuple[float, float]] = {}
        self._sampled_s = -inf

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._names.values())

    @property
    def slots(self) -> int:
        """Columns of the table."""
        return len(self._at)

    def get(self, name: ReplicaId) -> Replica | None:
        """The replica of that name, None if it is unknown or GONE."""
        return self._names.get(name)

    def at(self, slot: int) -> Replica:
        """The replica in a taken slot."""
        replica = self._at[slot]
        assert replica is not None
        return replica

    def ready(self, role: Role) -> SlotArray:
        """Slots of the replicas of `role` that take requests, by replica id."""
        return self._ready[role]

    def ready_kinds(self, role: Role) -> frozenset[int]:
        """The profiles (Column.KIND) of those replicas."""
        return self._ready_kinds[role]

    def kinds(self, role: Role) -> Mapping[int, str]:
        """A GPU type for each profile (Column.KIND) that replicas of `role` ever had."""
        return self._kinds[role]

    def has(self, roles: Sequence[Role]) -> bool:
        """True if each of `roles` has a replica that takes requests."""
        return all(len(self._ready[role]) for role in roles)

    def add(self, name: ReplicaId, role: Role, gpu_type: str, cells: Mapping[FleetRow, float]) -> Replica:
        """A new replica, not ready yet; `cells` are what is known of it."""
        if not self._free:
            self._widen()
        replica = Replica(name, self._free.pop(), role, gpu_type)
        self.table[:, replica.slot] = [EMPTY.get(column, 0.0) for column in FleetRow]
        self.set_type(replica, gpu_type, cells)
        self._names[name] = self._at[replica.slot] = replica
        return replica

    def set_type(self, replica: Replica, gpu_type: str, cells: Mapping[FleetRow, float]) -> None:
        """It is of this type, of which `cells` are known."""
        if replica.gpu_type != gpu_type:
            replica.gpu_type, replica.safety = gpu_type, None
        for column, value in cells.items():
            self.table[column, replica.slot] = value
        self.set_caution(replica)
        self._kinds[replica.role].setdefault(int(self.table[FleetRow.KIND, replica.slot]), gpu_type)
        if replica.ready:
            self._list(replica.role)

    def is_idle(self, replica: Replica) -> bool:
        """True if no request is there or will be, as far as is known."""
        cell, row = self.table[:, replica.slot], FleetRow
        there = cell[row.WAITING] + cell[row.COMING] + cell[row.RUNNING] + cell[row.OTHER_REQUESTS]
        return replica.alive and bool(there == 0.0)

    def set_caution(self, replica: Replica) -> None:
        """Write down how safe predictions have been there, once that is known."""
        if replica.safety is not None and replica.alive:
            ttft, tpot = replica.safety
            self.table[FleetRow.TTFT_CAUTION, replica.slot] = ttft.factor - 1.0
            self.table[FleetRow.TPOT_CAUTION, replica.slot] = tpot.factor - 1.0

    def set_types(self, cells: Callable[[str], Mapping[FleetRow, float]]) -> None:
        """Set what is known of each GPU type anew, all kinds included."""
        for kinds in self._kinds.values():
            kinds.clear()
        for replica in self:
            self.set_type(replica, replica.gpu_type, cells(replica.gpu_type))

    def set_ready(self, replica: Replica, *, ready: bool) -> None:
        """Let it take requests, or no more."""
        if replica.ready != ready:
            replica.ready = ready
            self._list(replica.role)

    def remove(self, replica: Replica) -> None:
        """It is GONE: its slot is free for another."""
        self.set_ready(replica, ready=False)
        replica.alive = False
        del self._names[replica.name]
        self._reported.pop(replica, None)
        self._at[replica.slot] = None
        self.table[:, replica.slot] = 0.0
        self._free.append(replica.slot)

    def computed(self, now_s: float, replica: Replica, load: ReplicaLoad) -> None:
        """An engine says how long it has computed, if it does."""
        if load.busy_s is not None:
            if replica.utilisation is None:
                replica.utilisation = UtilisationSamples(start_s=now_s, busy_s=load.busy_s)
            self._reported[replica] = load.busy_s, load.kv_usage

    def sample(self, now_s: float) -> None:
        """Take the utilisation samples that are due. A replica without a new report has not computed
        meanwhile."""
        if now_s < self._sampled_s + SAMPLE_S:
            return
        self._sampled_s = now_s
        for replica, (busy_s, kv_usage) in self._reported.items():
            if replica.utilisation is not None:
                replica.utilisation.offer(now_s, busy_s, kv_usage)

    def busy(self) -> Figures:
        """The busy share of each replica at its last sample, by (role, replica)."""
        latest = ((each, each.utilisation.latest) for each in self if each.utilisation is not None)
        return {(each.role.value, each.name): one.busy for each, one in latest if one is not None}

    def _list(self, role: Role) -> None:
        listed = sorted((each for each in self if each.ready and each.role is role), key=lambda r: r.name)
        slots = self._ready[role] = np.array([each.slot for each in listed], dtype=np.int64)
        self._ready_kinds[role] = frozenset(self.table[FleetRow.KIND, slots].astype(int).tolist())

    def _widen(self) -> None:
        old = self.slots
        new = max(FIRST_SLOTS, 2 * old)
        table = np.zeros((len(FleetRow), new))
        table[:, :old] = self.table
        self.table = table
        self._at.extend([None] * (new - old))
        # In descending order: `pop` takes the last, so that slots are given out in ascending order.
        self._free.extend(range(new - 1, old - 1, -1))


def least_key(queue: LazyHeap[Record]) -> float:
    """The least key of a queue, infinite for an empty one."""
    first = queue.first()
    return inf if first is None else first[0]
