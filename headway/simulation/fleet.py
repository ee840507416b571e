"""The fleet: how many replicas each pool has, their life, and what they cost.

desired → starting (start-up delay) → ready → draining (finishes what it has) → gone. GPU-seconds count from
start to gone. Scaling down cancels the newest starting replicas first, then drains the emptiest ready ones
(the newest of equals), as Ray Serve does. A crashed replica is replaced at once. As many as a pool has
sleepers sleep while they are not wanted, at no cost, and take only the time to wake. An engine that is to
sleep and is not there yet (`keep`) is there after a start, which costs its GPUs.

Where the cluster has only so many GPUs (`GpuCapacity`), a replica that finds none waits for them, in the
order in which replicas were ordered; one that needs fewer may pass. It counts as starting, costs nothing, and
its start-up begins once it has them. A capacity that falls takes nothing from what has its GPUs. Scaling down
cancels those that wait first, the newest before the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heapreplace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine.kernel import layout, lifecycle
from headway.engine.kernel.layout import KernelState
from headway.engine.kernel.state import grow_replicas, handle_of, make_room
from headway.engine.replica_speeds import ReplicaSpeeds
from headway.planning.types import PoolLimits, PoolState, Role
from headway.simulation.scenario import GpuCapacity

CODES = {Role.PREFILL: layout.PREFILL, Role.DECODE: layout.DECODE, Role.MIXED: layout.MIXED}
ROLES = {code: role for role, code in CODES.items()}


# What each logged transition does to a pool's counts.
EFFECTS: Mapping[int, Mapping[str, int]] = {
    layout.SERVING: {"starting": -1, "ready": +1},
    layout.DRAINING: {"ready": -1, "draining": +1},
    layout.GONE: {"draining": -1},
    layout.CANCELLED: {"starting": -1},
    layout.CRASHED: {"ready": -1},
}


@dataclass(slots=True)
class Counts:
    """A pool's four counts."""

    desired: int = 0
    starting: int = 0
    ready: int = 0
    draining: int = 0


@dataclass(slots=True)
class ReplicaSeries:
    """A pool's four counts at each time they changed."""

    time_s: list[float] = field(default_factory=list)
    desired: list[int] = field(default_factory=list)
    starting: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    draining: list[int] = field(default_factory=list)

    def add(self, time_s: float, counts: Counts) -> None:
        """Note the counts at `time_s`: one point an instant, none where nothing changed."""
        columns = (self.desired, self.starting, self.ready, self.draining)
        values = (counts.desired, counts.starting, counts.ready, counts.draining)
        if self.time_s and self.time_s[-1] == time_s:
            for column in (self.time_s, *columns):
                column.pop()
        if self.time_s and tuple(column[-1] for column in columns) == values:
            return
        self.time_s.append(time_s)
        for column, value in zip(columns, values, strict=True):
            column.append(value)


UNBOUNDED = GpuCapacity()


class Loads:
    """Loads of models, of which at most `at_once` are under way; the others wait in their order."""

    def __init__(self, at_once: int | None = None) -> None:
        self._free_s = [0.0] * (at_once or 0)

    def ready_s(self, now_s: float, load_s: float) -> float:
        """Seconds until a load that is ordered now is done. One that is cancelled is taken to go on."""
        if not self._free_s:
            return load_s
        done_s = max(now_s, self._free_s[0]) + load_s
        heapreplace(self._free_s, done_s)
        return done_s - now_s


class Ordered(NamedTuple):
    """A replica that waits for its GPUs, and how long its start then takes."""

    role: Role
    delay_s: Callable[[], float]


class Fleet:
    """The replicas of a state, grouped in pools."""

    def __init__(
        self,
        state: KernelState,
        pools: Mapping[Role, PoolLimits],
        start_up_s: Callable[[], float],
        own_slowness: Callable[[], float] = lambda: 1.0,
        *,
        capacity: GpuCapacity = UNBOUNDED,
        wake_s: float = 0.0,
        loads: Loads | None = None,
    ) -> None:
        self.loads = loads or Loads()
        self._arrays = state
        self._handle = handle_of(state)
        self.pools = pools
        self.series = {role: ReplicaSeries() for role in pools}
        self.scale_events = dict.fromkeys(pools, 0)
        self.direction_reversals = dict.fromkeys(pools, 0)
        self._draw_start_up_s = start_up_s
        self._draw_slowness, self._slowness = own_slowness, (1.0, 1.0)
        self._own: dict[int, float] = {}
        self._capacity, self._waiting = capacity, list[Ordered]()
        self._wake_s = lambda: wake_s
        self._sleepers = {role: pool.sleepers for role, pool in pools.items()}
        self._asleep = {role: (0.0,) * pool.sleepers for role, pool in pools.items()}
        """Engines that sleep: when each of them was there."""
        self._counts = {role: Counts() for role in pools}
        self._last_direction = dict.fromkeys(pools, 0)
        self._serial = 0
        self._gpu_seconds = 0.0

    @property
    def arrays(self) -> KernelState:
        """The arrays."""
        return self._arrays

    @arrays.setter
    def arrays(self, state: KernelState) -> None:
        if state is not self._arrays:
            self._arrays = state
            self._handle = handle_of(state)

    @property
    def handle(self) -> KernelState:
        """The arrays, for compiled functions."""
        return self._handle

    @property
    def asleep(self) -> bool:
        """True while a pool shall have no replica."""
        return any(not each.desired for each in self._counts.values())

    def open(self, counts: Mapping[Role, int]) -> None:
        """Put the first replicas into service, ready at once: the system runs when the trace begins."""
        for role in self.pools:
            self._counts[role].desired = counts[role]
            self._asleep[role] = self._asleep[role][counts[role] :]
            self._start(role, counts[role], lambda: 0.0)
            self.series[role].add(0.0, self._counts[role])
        # Who found no GPU then starts as any other.
        self._waiting = [Ordered(each.role, self._start_up_s) for each in self._waiting]

    def plan_crashes(self, crashes: Sequence[tuple[Role, float]]) -> None:
        """Let the longest-ready replica of a role die at a time, for each of (role, time)."""
        self.arrays = make_room(self.arrays, len(crashes))
        for role, at_s in crashes:
            lifecycle.schedule_crash(self.handle, CODES[role], at_s)

    def scale(self, targets: Mapping[Role, int]) -> None:
        """Set desired counts; start or drain replicas to match."""
        for role in self.pools:
            change = targets[role] - self._counts[role].desired
            if change:
                direction = 1 if change > 0 else -1
                self.scale_events[role] += 1
                self.direction_reversals[role] += int(direction == -self._last_direction[role])
                self._last_direction[role] = direction
            self._counts[role].desired = targets[role]
            self._match(role, self._rest(role, change))
        self.take_transitions()

    def keep(self, sleepers: Mapping[Role, int]) -> None:
        """Let so many engines of a pool sleep while they are not wanted, from the next `scale` on."""
        self._sleepers |= sleepers

    def _rest(self, role: Role, change: int) -> int:
        """Engines that wake as a pool changes; those that sleep are then as many as shall."""
        now_s = float(self.arrays.clock[0]["now_s"])
        there = sorted(self._asleep[role])
        woken = min(max(0, change), sum(at_s <= now_s for at_s in there))
        there = there[woken:] + [now_s] * max(0, -change)
        most = max(0, self._sleepers[role] - self._counts[role].desired)
        while len(there) < most:
            start_s = self._start_up_s()
            there.append(now_s + start_s)
            self._gpu_seconds += start_s * self.pools[role].gpus_per_replica
        self._asleep[role] = tuple(there[:most])
        return woken

    def take_transitions(self) -> None:
        """Account for what happened to replicas since the last call; crashed ones are replaced."""
        clock, crashed = self.arrays.clock[0], set()
        for entry in self.arrays.transitions[: clock["transitions"]]:
            role, became, time_s = ROLES[int(entry["role"])], int(entry["state"]), float(entry["time_s"])
            counts = self._counts[role]
            for name, change in EFFECTS[became].items():
                setattr(counts, name, getattr(counts, name) + change)
            if became in (layout.GONE, layout.CRASHED, layout.CANCELLED):
                self._gpu_seconds += self.pools[role].gpus_per_replica * (time_s - float(entry["created_s"]))
            if became == layout.CRASHED:
                crashed.add(role)
            self.series[role].add(time_s, counts)
        clock["transitions"] = clock["retired"] = 0
        for role in self.pools:
            if role in crashed:
                self._match(role)
        self.place_waiting()

    def pool_state(self, role: Role) -> PoolState:
        """The pool's counts, and the load of its ready replicas with what waits for one."""
        units, counts, clock = self.arrays.replicas, self._counts[role], self.arrays.clock[0]
        ready = units[(units["role"] == CODES[role]) & (units["state"] == layout.SERVING)]
        in_prefill = int(ready["chunk_requests"][ready["phase"] == layout.PREFILLING].sum())
        capacity = float(self.arrays.settings[0]["kv_capacity_tokens"]) * max(1, len(ready))
        return PoolState(
            **asdict(counts),
            running=float(ready["running"].sum() + in_prefill),
            waiting=float(ready["waiting"].sum() - in_prefill + clock["parked"][CODES[role]]),
            kv_usage=float(ready["kv_tokens"].sum()) / capacity,
        )

    def gpu_hours(self) -> float:
        """GPU-hours up to now, replicas still up included."""
        now_s = float(self.arrays.clock[0]["now_s"])
        alive, gpus = self._alive()
        return (self._gpu_seconds + float((gpus * (now_s - alive["created_s"])).sum())) / 3600.0

    def _alive(self) -> tuple[NDArray[np.void], NDArray[np.float64]]:
        """The replicas that have GPUs, and how many each."""
        alive = self.arrays.replicas[self.arrays.replicas["state"] != layout.GONE]
        gpus = [self.pools[ROLES[int(code)]].gpus_per_replica for code in alive["role"]]
        return alive, np.array(gpus, np.float64)

    def _start_up_s(self) -> float:
        return self.loads.ready_s(float(self.arrays.clock[0]["now_s"]), self._draw_start_up_s())

    def _match(self, role: Role, asleep: int = 0) -> None:
        """Start or stop replicas, `asleep` of those that start by waking."""
        units, desired = self.arrays.replicas, self._counts[role].desired
        up = np.flatnonzero(
            (units["role"] == CODES[role]) & np.isin(units["state"], (layout.STARTING, layout.SERVING))
        )
        ordered = len(up) + sum(each.role is role for each in self._waiting)
        self._cancel_waiting(role, ordered - desired)
        missing = max(0, desired - ordered)
        self._start(role, min(missing, asleep), self._wake_s)
        self._start(role, missing - min(missing, asleep), self._start_up_s)
        self.arrays = make_room(self.arrays, len(up))
        for replica in self._victims(up)[: max(0, len(up) - desired)]:
            lifecycle.stop_replica(self.handle, int(replica))
        self.series[role].add(float(self.arrays.clock[0]["now_s"]), self._counts[role])

    def _victims(self, replicas: NDArray[np.int64]) -> NDArray[np.int64]:
        """In the order in which they go: starting ones newest first, then the emptiest, newest of equals."""
        units = self.arrays.replicas[replicas]
        serving = units["state"] == layout.SERVING
        load = np.where(serving, units["running"] + units["waiting"], 0)
        # lexsort's last key ranks first.
        return replicas[np.lexsort((-units["serial"], load, serving))]

    def _start(self, role: Role, count: int, start_up_s: Callable[[], float]) -> None:
        if count > 0:
            self._counts[role].starting += count
            self._waiting += [Ordered(role, start_up_s)] * count
            self.place_waiting()

    def place_waiting(self) -> None:
        """Give GPUs that are free to replicas that wait for them; their start-up begins."""
        if not self._waiting:
            return
        self.arrays = make_room(self.arrays, len(self._waiting))
        free = self._capacity.at(float(self.arrays.clock[0]["now_s"])) - self._alive()[1].sum()
        still = list[Ordered]()
        for each in self._waiting:
            if (needed := self.pools[each.role].gpus_per_replica) > free:
                still.append(each)
                continue
            free -= needed
            self._begin(self._free_slot(), each.role, each.delay_s())
        self._waiting = still

    def _cancel_waiting(self, role: Role, count: int) -> None:
        """Cancel at most so many of the role's replicas that wait for GPUs, newest first."""
        places = [place for place, each in enumerate(self._waiting) if each.role is role]
        for place in places[::-1][: max(0, count)]:
            del self._waiting[place]
            self._counts[role].starting -= 1

    def _begin(self, replica: int, role: Role, delay_s: float) -> None:
        """Let a replica of the role start in a free slot."""
        unit, now_s = self.arrays.replicas[replica], float(self.arrays.clock[0]["now_s"])
        unit["role"], unit["serial"] = CODES[role], self._serial
        self._serial += 1
        lifecycle.start_replica(self.handle, replica, now_s + delay_s)
        self._own[replica] = self._draw_slowness()
        self._set_slowness(replica)

    def set_slowness(self, prefill: float, decode: float) -> None:
        """Let all replicas compute so many times as slowly as profiled, those that come later too."""
        self._slowness = prefill, decode
        self.arrays = make_room(self.arrays, len(self.arrays.replicas))
        for replica in np.flatnonzero(self.arrays.replicas["state"] != layout.GONE).tolist():
            self._set_slowness(replica)

    def serials(self) -> frozenset[str]:
        """The serials of the replicas that there are."""
        units = self.arrays.replicas
        return frozenset(map(str, units["serial"][units["state"] != layout.GONE].tolist()))

    def know_speeds(self, speeds: ReplicaSpeeds, idle_requests: Mapping[Role, float]) -> None:
        """Let routing go by what is known of replicas, and of each role by what an empty batch is worth."""
        units, clock = self.arrays.replicas, self.arrays.clock[0]
        units["known_slowness"] = 1.0
        for role in self.pools:
            apart, mine = speeds.of_role(role), units["role"] == CODES[role]
            clock["uneven"][CODES[role]] = len(apart)
            clock["idle_requests"][CODES[role]] = idle_requests.get(role, 0.0)
            for replica in np.flatnonzero(mine) if apart else ():
                known = apart.get(str(units["serial"][replica]))
                units["known_slowness"][replica] = known.slowness if known else 1.0

    def known_slow(self) -> Mapping[Role, tuple[float, ...]]:
        """By role the slowness of the ready replicas that are known to differ; pools without any left out."""
        units = self.arrays.replicas
        differ = (units["state"] == layout.SERVING) & (units["known_slowness"] != 1.0)
        if not differ.any():
            return {}
        found = {
            role: units["known_slowness"][differ & (units["role"] == CODES[role])] for role in self.pools
        }
        return {role: tuple(each.tolist()) for role, each in found.items() if len(each)}

    def _set_slowness(self, replica: int) -> None:
        prefill, decode = self._slowness
        own = self._own[replica]
        lifecycle.set_slowness(self.handle, replica, prefill * own, decode * own)

    def _free_slot(self) -> int:
        free = np.flatnonzero(self.arrays.replicas["state"] == layout.GONE)
        if not len(free):
            self.arrays = grow_replicas(self.arrays, 2 * len(self.arrays.replicas))
            return len(self.arrays.replicas) // 2
        return int(free[0])
