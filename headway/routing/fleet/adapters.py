"""LoRA adapters: which replicas have which, and how many homes the load of each one needs.

An engine computes a batch with at most `room` adapters (vLLM's `max_loras`). A request whose adapter is not
there waits until it is loaded, in the place of the one that was used least recently and that no request there
uses; where all are in use, until one is not. So what counts is where an adapter is, and whether a replica has
room for one more.

    loaded      by replica an LRU of the adapters of requests placed there; those in use stay. An engine's
                report takes its place, but for those in use or asked for after it may have been made
    work        of an adapter, a replica and all: tokens of the requests placed, smoothed over T = `MEMORY_S`
    homes       ceil(work of the adapter / work of all × replicas), as many as its load fills

`AdapterIndex` keeps this, `plugins.lora_affinity` scores by it. Requests without an adapter count as work
once there has been one with. Weights grow by e^(t/T) in place of all sums that decay: only ratios are asked.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, exp, inf

from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.fleet.table import FleetRow
from headway.routing.types import Figures

MEMORY_S = 60.0
"""Long against a request, short against a shift of the load."""

LATE_S = 1.0
"""A report may be so old when it comes."""

MOST_GROWTH = 40.0
"""Sums are scaled back before they have grown by e to this power."""


class AdapterIndex:
    """The adapters of all replicas, by slot; their numbers are in the fleet's table."""

    def __init__(self, fleet: RoutedFleet) -> None:
        self._fleet, self.loads = fleet, 0
        """Requests that found their adapter missing where they were placed."""
        self._at: dict[int, OrderedDict[str, int]] = {}
        self._homes: dict[str, dict[int, float]] = {}
        """By adapter the slots that have it, and when a request for it went there last."""
        self._work: dict[str, float] = {}
        self._total, self._since_s = 0.0, 0.0

    def figures(self) -> Mapping[str, Figures]:
        """The figure `adapter_loads`, once there are adapters."""
        return {"adapter_loads": {(): float(self.loads)}} if self._work else {}

    def homes(self, adapter: str) -> Sequence[int]:
        """Slots of the replicas that have it."""
        return tuple(self._homes.get(adapter, ()))

    def wanted(self, adapter: str, replicas: int) -> int:
        """Homes that its share of the work fills, at least 1."""
        work = self._work.get(adapter, 0.0)
        return max(1, ceil(work / self._total * replicas)) if work else 1

    def mean_work(self, replicas: int) -> float:
        """Work at a replica where all have alike."""
        return self._total / replicas

    def placed(self, now_s: float, adapter: str, slots: Iterable[int], tokens: float) -> None:
        """A request goes to these replicas; "" for one without an adapter."""
        if not adapter and not self._work:
            return
        work = tokens * self._growth(now_s)
        self._total += work
        if adapter:
            self._work[adapter] = self._work.get(adapter, 0.0) + work
        for slot in slots:
            self._fleet.table[FleetRow.ADAPTER_WORK, slot] += work
            if adapter:
                self._use(now_s, slot, adapter)

    def released(self, adapter: str, slots: Iterable[int]) -> None:
        """A request with an adapter leaves them."""
        for slot in slots:
            there = self._at.get(slot)
            if there is None or not there.get(adapter):
                continue
            there[adapter] -= 1
            if not there[adapter]:
                self._fleet.table[FleetRow.ADAPTERS_IN_USE, slot] -= 1.0
                self._shrink(slot, there)

    def report(self, now_s: float, slot: int, adapters: Sequence[str], room: int | None) -> None:
        """An engine says which it has, the least recently used first, and for how many it has room."""
        if room is not None:
            self._fleet.table[FleetRow.ADAPTER_ROOM, slot] = float(room)
        there, said = self._at.setdefault(slot, OrderedDict()), set(adapters)
        for adapter in [each for each, users in there.items() if not users and each not in said]:
            if self._homes[adapter][slot] < now_s - LATE_S:
                self._drop(slot, there, adapter)
        for adapter in reversed(adapters):
            if adapter not in there:
                self._add(-inf, slot, there, adapter)
                there.move_to_end(adapter, last=False)

    def forget(self, slot: int) -> None:
        """The replica is about to go."""
        there = self._at.pop(slot, OrderedDict())
        for adapter in list(there):
            self._drop(slot, there, adapter)

    def _use(self, now_s: float, slot: int, adapter: str) -> None:
        there = self._at.setdefault(slot, OrderedDict())
        if adapter not in there:
            self.loads += 1
            self._add(now_s, slot, there, adapter)
        self._homes[adapter][slot] = now_s
        if not there[adapter]:
            self._fleet.table[FleetRow.ADAPTERS_IN_USE, slot] += 1.0
        there[adapter] += 1
        there.move_to_end(adapter)
        self._shrink(slot, there)

    def _shrink(self, slot: int, there: "OrderedDict[str, int]") -> None:
        """Drop what has no room and is not in use, the least recently used first."""
        while len(there) > self._fleet.table[FleetRow.ADAPTER_ROOM, slot]:
            idle = next((adapter for adapter, users in there.items() if not users), None)
            if idle is None:
                return
            self._drop(slot, there, idle)

    def _add(self, now_s: float, slot: int, there: "OrderedDict[str, int]", adapter: str) -> None:
        there[adapter] = 0
        self._fleet.table[FleetRow.ADAPTERS, slot] += 1.0
        self._homes.setdefault(adapter, {})[slot] = now_s

    def _drop(self, slot: int, there: "OrderedDict[str, int]", adapter: str) -> None:
        del there[adapter]
        self._fleet.table[FleetRow.ADAPTERS, slot] -= 1.0
        homes = self._homes[adapter]
        del homes[slot]
        if not homes:
            del self._homes[adapter]

    def _growth(self, now_s: float) -> float:
        """The weight of work that comes now."""
        grown = (now_s - self._since_s) / MEMORY_S
        if grown > MOST_GROWTH:
            kept = exp(-grown) if grown < 700.0 else 0.0
            self._since_s, self._total, grown = now_s, self._total * kept, 0.0
            self._work = {adapter: work * kept for adapter, work in self._work.items()}
            self._fleet.table[FleetRow.ADAPTER_WORK] *= kept
        return exp(grown)
