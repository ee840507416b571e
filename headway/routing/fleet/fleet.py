"""The replicas as a struct of arrays: one row per quantity, one column per replica.

A decision reads whole rows, an event changes a few cells. Slots are taken from a free list and given back, so
the table is as wide as the fleet ever was. `ready(role)` lists slots in the order of replica ids: what is
decided does not depend on the order in which replicas came.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf, isnan

import numpy as np

from headway.config import Role
from headway.routing.fleet.records import Replica
from headway.routing.fleet.table import EMPTY, Columns, FleetRow, SlotArray
from headway.routing.types import Figures, ReplicaId


class RoutedFleet:
    """All replicas that are known. A batch uses `adapter_room` adapters until an engine says otherwise."""

    def __init__(self, adapter_room: float = inf) -> None:
        empty = {**EMPTY, FleetRow.ADAPTER_ROOM: adapter_room}
        self._columns = Columns(np.array([empty.get(row, 0.0) for row in FleetRow]))
        self.table = self._columns.values
        self._names: dict[ReplicaId, Replica] = {}
        self._at: dict[int, Replica] = {}
        self._ready: dict[Role, SlotArray] = {role: np.empty(0, dtype=np.int64) for role in Role}
        self._ready_kinds: dict[Role, frozenset[int]] = {role: frozenset() for role in Role}
        self._kinds: dict[Role, dict[int, str]] = {role: {} for role in Role}

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._names.values())

    @property
    def slots(self) -> int:
        """Columns of the table."""
        return int(self.table.shape[1])

    def get(self, name: ReplicaId) -> Replica | None:
        """The replica of that name, None if it is unknown or GONE."""
        return self._names.get(name)

    def at(self, slot: int) -> Replica:
        """The replica in a taken slot."""
        return self._at[slot]

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
        replica = Replica(name, self._columns.take(), role, gpu_type)
        self.table = self._columns.values
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
        del self._at[replica.slot]
        self._columns.give_back(replica.slot)

    def busy_s(self) -> Figures:
        """Seconds that each replica has computed, by (role, replica), of those whose engines say so."""
        return {(it.role.value, it.name): it.busy_s for it in self if not isnan(it.busy_s)}

    def _list(self, role: Role) -> None:
        listed = sorted((each for each in self if each.ready and each.role is role), key=lambda r: r.name)
        slots = self._ready[role] = np.array([each.slot for each in listed], dtype=np.int64)
        self._ready_kinds[role] = frozenset(self.table[FleetRow.KIND, slots].astype(int).tolist())
