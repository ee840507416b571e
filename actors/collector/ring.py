"""Running totals of what was counted, one snapshot a read, in bounded memory.

Totals only grow by what each read added (`increments`), so that resets and new series are settled once, and
any two snapshots give the interval between them. Gauges are kept as integrals over time (value x seconds,
seconds): their mean in an interval is exact at any spacing of the snapshots. When the ring is full, every
second snapshot of its older half goes, save the borders of the latest intervals.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from actors.collector.channels import Quantity
from actors.collector.histogram import Increase
from actors.collector.increments import Key

CAPACITY = 512
BORDERS_KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Totals at one moment; `broken` names the quantities that could not be read then."""

    at_s: float
    totals: Mapping[Key, float]
    broken: frozenset[Quantity] = frozenset()


class Ring:
    """Snapshots in the order of time."""

    def __init__(self, snapshots: Iterable[Snapshot] = (), capacity: int = CAPACITY) -> None:
        self._snapshots = list(snapshots)
        self._borders: list[float] = [snapshot.at_s for snapshot in self._snapshots][-BORDERS_KEPT:]
        self._capacity = capacity

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def newest(self) -> Snapshot | None:
        """The latest snapshot."""
        return self._snapshots[-1] if self._snapshots else None

    @property
    def oldest(self) -> Snapshot | None:
        """The earliest snapshot that is kept."""
        return self._snapshots[0] if self._snapshots else None

    def borders(self) -> list[Snapshot]:
        """The ends of the latest intervals."""
        return [snapshot for snapshot in self._snapshots if snapshot.at_s in self._borders]

    def kept(self) -> list[Snapshot]:
        """The borders and the newest snapshot: what must survive."""
        return [*(s for s in self.borders() if s is not self.newest), *self._snapshots[-1:]]

    def add(self, gained: Mapping[Key, float], at_s: float, broken: frozenset[Quantity]) -> Snapshot:
        """Append the totals after one more read; a time before the newest one counts as the newest one."""
        newest = self.newest
        totals = dict(newest.totals) if newest else {}
        for key, value in gained.items():
            totals[key] = totals.get(key, 0.0) + value
        at_s = max(at_s, newest.at_s) if newest else at_s
        snapshot = Snapshot(at_s=at_s, totals=totals, broken=broken)
        self._snapshots.append(snapshot)
        if len(self._snapshots) > self._capacity:
            self._thin()
        return snapshot

    def mark_border(self, snapshot: Snapshot) -> None:
        """Keep this snapshot when others go: an interval ended here, and the next begins."""
        self._borders = [*self._borders, snapshot.at_s][-BORDERS_KEPT:]

    def nearest(self, at_s: float, tolerance_s: float = 0.0) -> Snapshot | None:
        """The snapshot next to this moment; within the tolerance rather the end of an earlier interval."""
        index = bisect_left(self._snapshots, at_s, key=lambda snapshot: snapshot.at_s)
        near = self._snapshots[max(0, index - 1) : index + 1]
        ends = [s for s in self.borders() if abs(s.at_s - at_s) <= tolerance_s]
        return min(ends or near, key=lambda snapshot: abs(snapshot.at_s - at_s), default=None)

    def _thin(self) -> None:
        half = len(self._snapshots) // 2
        kept = set(self._borders)
        older = [s for i, s in enumerate(self._snapshots[:half]) if i % 2 == 0 or s.at_s in kept]
        self._snapshots = older + self._snapshots[half:]


def between(start: Snapshot, end: Snapshot) -> dict[str, Increase]:
    """What was added between two snapshots, by quantity (or gauge), without what is broken at the end."""
    parts: dict[str, dict[str, float]] = {}
    for (quantity, part), total in end.totals.items():
        parts.setdefault(quantity, {})[part] = total - start.totals.get((quantity, part), 0.0)
    return {quantity: _increase(part) for quantity, part in parts.items() if quantity not in {*end.broken}}


def _increase(parts: Mapping[str, float]) -> Increase:
    buckets = tuple(
        sorted((float(part), value) for part, value in parts.items() if part not in ("count", "sum"))
    )
    nan = float("nan")
    return Increase(count=parts.get("count", nan), total=parts.get("sum", nan), buckets=buckets)
