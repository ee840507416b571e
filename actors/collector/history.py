"""Running totals of what was read, one snapshot a read, in bounded memory. Pure.

Totals only grow by what each read
added, so that resets and new series are settled once, and any two snapshots give the interval between them.
Gauges are kept as integrals over time: their mean in an interval is exact at any spacing of the snapshots.
When the ring is full, every second snapshot of its older half goes, save the borders of the latest intervals.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from actors.collector.interval import NAN, Increase, Quantity
from actors.collector.series import Key

CAPACITY = 512
BORDERS_KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Totals at one moment; `broken` are the quantities that could not be read then, and since when."""

    at_s: float
    totals: Mapping[Key, float]
    broken: Mapping[Quantity, float] = field(default_factory=dict)


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

    def kept(self) -> list[Snapshot]:
        """The ends of the latest intervals, and the newest snapshot: what must survive."""
        return [s for s in self._snapshots if s.at_s in self._borders or s is self.newest]

    def add(self, gained: Mapping[Key, float], at_s: float, broken: Mapping[Quantity, float]) -> Snapshot:
        """Append the totals after one more read; a time before the newest one counts as the newest one."""
        newest = self.newest
        totals = dict(newest.totals) if newest else {}
        for key, value in gained.items():
            totals[key] = totals.get(key, 0.0) + value
        at_s = max(at_s, newest.at_s) if newest else at_s
        snapshot = Snapshot(at_s=at_s, totals=totals, broken=broken)
        self._snapshots.append(snapshot)
        if len(self._snapshots) > self._capacity:
            half = len(self._snapshots) // 2
            older = enumerate(self._snapshots[:half])
            kept = [s for i, s in older if i % 2 == 0 or s.at_s in self._borders]
            self._snapshots[:half] = kept
        return snapshot

    def mark_border(self, snapshot: Snapshot) -> None:
        """Keep this snapshot when others go: an interval ended here, and the next begins."""
        self._borders = [*self._borders, snapshot.at_s][-BORDERS_KEPT:]

    def steps(self, key: Key, start: Snapshot, end: Snapshot) -> list[tuple[float, float]]:
        """The time of each snapshot after `start` up to `end`, and what this total gained since the last."""
        within = [s for s in self._snapshots if start.at_s <= s.at_s <= end.at_s]
        totals = [(snapshot.at_s, snapshot.totals.get(key, 0.0)) for snapshot in within]
        return [(at_s, total - before) for (_, before), (at_s, total) in pairwise(totals)]

    def nearest(self, at_s: float, tolerance_s: float = 0.0) -> Snapshot | None:
        """The snapshot next to this moment; within the tolerance rather the end of an earlier interval.

        Of several at one time it is the last.
        """
        index = bisect_right(self._snapshots, at_s, key=lambda snapshot: snapshot.at_s)
        near = self._snapshots[max(0, index - 1) : index + 1]
        ends = [s for s in self._snapshots if s.at_s in self._borders and abs(s.at_s - at_s) <= tolerance_s]
        return min(reversed(ends or near), key=lambda snapshot: abs(snapshot.at_s - at_s), default=None)


def between(start: Snapshot, end: Snapshot) -> dict[str, Increase]:
    """The increases between two snapshots, by quantity (or gauge), without what is broken at the end.

    What was broken at the start has gained since its last good read: the interval gets its share by time.
    """
    parts: dict[str, dict[str, float]] = {}
    length_s = end.at_s - start.at_s
    shares = {quantity: length_s / (end.at_s - since_s) for quantity, since_s in start.broken.items()}
    by_name: dict[str, float] = {quantity.value: share for quantity, share in shares.items()}
    for (quantity, part), total in end.totals.items():
        gain = total - start.totals.get((quantity, part), 0.0)
        parts.setdefault(quantity, {})[part] = gain * by_name.get(quantity, 1.0)
    return {
        quantity: Increase(
            count=values.pop("count", NAN),
            total=values.pop("sum", NAN),
            buckets=tuple(sorted((float(bound), value) for bound, value in values.items())),
        )
        for quantity, values in parts.items()
        if quantity not in {*end.broken}
    }
