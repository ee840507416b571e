"""Follows one exposition from read to read and measures the interval between two of them. Pure.

    interval                                                     result
    a read within the tolerance of its start                     from there (or rather from the end of the
                                                                 interval before) to the last read
    none, but one 0.5 to 1.5 intervals before its end            `partial`: counts scaled to the interval
    none at all (an outage), or nothing read before its start    `starting`

Tolerance: a scrape interval, within a twentieth and a quarter of the interval. The state can be stored and
taken up again, so that an interval in which the collector itself was restarted is still measured; its reads
are then as far apart as the restart made them.

The reads are running totals, one snapshot a read, in bounded memory. Totals only grow by what each read
added, so that resets and new series are settled once, and any two snapshots give the interval between them.
Gauges are kept as integrals over time: their mean in an interval is exact at any spacing of the snapshots.
When the ring is full, every second snapshot of its older half goes, save the borders of the latest intervals.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from actors.collector.exposition import (
    Key,
    SeriesId,
    broken,
    carries,
    gained_load,
    increments,
    last_good,
    pool_loads,
    series_uses,
)
from actors.collector.measured import NAN, Health, HealthStatus, Increase, Measured, assemble, unmeasured
from actors.collector.presets import Preset, Quantity, channels, gauges, matched

CAPACITY = 512
BORDERS_KEPT = 4

LEAST_SHARE, MOST_SHARE = 0.05, 0.25
"""Bounds of the tolerance, as shares of the interval."""

LEAST_STRETCH, MOST_STRETCH = 0.5, 1.5
"""Lengths between two reads, in intervals, from which counts may be scaled to the interval."""


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

    def kept(self) -> list[Snapshot]:
        """The ends of the latest intervals, and the newest snapshot: what must survive."""
        return [s for s in self._snapshots if s.at_s in self._borders or s is self.newest]

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
            half = len(self._snapshots) // 2
            older = enumerate(self._snapshots[:half])
            kept = [s for i, s in older if i % 2 == 0 or s.at_s in self._borders]
            self._snapshots[:half] = kept
        return snapshot

    def mark_border(self, snapshot: Snapshot) -> None:
        """Keep this snapshot when others go: an interval ended here, and the next begins."""
        self._borders = [*self._borders, snapshot.at_s][-BORDERS_KEPT:]

    def nearest(self, at_s: float, tolerance_s: float = 0.0) -> Snapshot | None:
        """The snapshot next to this moment; within the tolerance rather the end of an earlier interval."""
        index = bisect_left(self._snapshots, at_s, key=lambda snapshot: snapshot.at_s)
        near = self._snapshots[max(0, index - 1) : index + 1]
        ends = [s for s in self._snapshots if s.at_s in self._borders and abs(s.at_s - at_s) <= tolerance_s]
        return min(ends or near, key=lambda snapshot: abs(snapshot.at_s - at_s), default=None)


def between(start: Snapshot, end: Snapshot) -> dict[str, Increase]:
    """The increases between two snapshots, by quantity (or gauge), without what is broken at the end."""
    parts: dict[str, dict[str, float]] = {}
    for (quantity, part), total in end.totals.items():
        parts.setdefault(quantity, {})[part] = total - start.totals.get((quantity, part), 0.0)
    return {
        quantity: Increase(
            count=values.pop("count", NAN),
            total=values.pop("sum", NAN),
            buckets=tuple(sorted((float(bound), value) for bound, value in values.items())),
        )
        for quantity, values in parts.items()
        if quantity not in {*end.broken}
    }


class Tracker:
    """Reads in, intervals out."""

    def __init__(self, preset: Preset, model: str, scrape_interval_s: float) -> None:
        self._preset = preset
        self._channels = channels(preset, model)
        self._gauges = gauges(preset, model)
        self._of = [preset.name, preset.model(model)]
        self._alive = SeriesId(preset.alive.name, matched(preset.alive, preset, model))
        self._scrape_interval_s = scrape_interval_s
        self._samples: Mapping[SeriesId, float] = {}
        self._ring = Ring()

    @property
    def names(self) -> frozenset[str]:
        """The sample names to read."""
        return frozenset(
            {self._alive.name, *(c.name for c in self._channels), *(g.name for g in self._gauges)}
        )

    @property
    def newest_s(self) -> float | None:
        """The time of the last read."""
        newest = self._ring.newest
        return newest.at_s if newest else None

    def alive(self) -> bool:
        """True if the last read had what every running system of this kind shows."""
        name, where = self._alive
        return any(series.name == name and carries(series.labels, where) for series in self._samples)

    def replaced(self) -> None:
        """Another process answers from now on: its counters began at 0, and what was in flight is gone."""
        in_flight = {channel.name for channel in self._channels if channel.gauge}
        self._samples = {series: value for series, value in self._samples.items() if series.name in in_flight}

    def add(self, samples: Mapping[SeriesId, float], at_s: float) -> None:
        """Take in one read. The first one ever is what later ones are compared with."""
        good = last_good(self._samples, samples)
        newest = self._ring.newest
        if newest is None:
            # What the counters show at the first read was counted before anything was followed.
            gained = dict.fromkeys(increments({}, series_uses(good, self._channels)), 0.0)
        else:
            gained = increments(series_uses(self._samples, self._channels), series_uses(good, self._channels))
            gained |= gained_load(good, self._gauges, self._preset.load, at_s - newest.at_s)
        self._ring.add(gained, at_s, broken(samples, self._channels))
        self._samples = good

    def measure(self, start_s: float, end_s: float) -> Measured:
        """The interval that ends with the last read; the next one is expected to begin there."""
        interval_s = end_s - start_s
        longest_s = max(self._scrape_interval_s, LEAST_SHARE * interval_s)
        tolerance_s = min(longest_s, MOST_SHARE * interval_s)
        start, end = self._ring.nearest(start_s, tolerance_s), self._ring.newest
        if start is None or end is None:
            return unmeasured(start_s, end_s, HealthStatus.STARTING, "nothing has been read yet")
        # A border even if this interval turns out not to be measured: the next one begins here all the same.
        self._ring.mark_border(end)
        if not self.alive():
            detail = f"no series {self._alive.name}{dict(self._alive.labels)}"
            return unmeasured(start_s, end_s, HealthStatus.STARTING, detail)
        if start is not end and abs(start.at_s - start_s) <= tolerance_s:
            return self._measured(start, end)
        oldest = self._ring.oldest
        if oldest is None or oldest.at_s >= start_s:
            return unmeasured(start_s, end_s, HealthStatus.STARTING, "no whole interval has been read yet")
        if LEAST_STRETCH <= (end.at_s - start.at_s) / interval_s <= MOST_STRETCH:
            return _scaled(self._measured(start, end), start_s, end_s)
        detail = f"no read within {abs(start.at_s - start_s):.1f} s of the interval's start"
        return unmeasured(start_s, end_s, HealthStatus.STARTING, detail)

    def state(self) -> bytes:
        """The bytes that `restore` needs."""
        state = {
            "of": self._of,
            "samples": [[name, labels, value] for (name, labels), value in self._samples.items()],
            "snapshots": [
                [border.at_s, [[*key, value] for key, value in border.totals.items()]]
                for border in self._ring.kept()
            ],
        }
        return json.dumps(state).encode()

    def restore(self, state: bytes) -> None:
        """Go on where `state` was taken. ValueError for what no `state` of this preset and model returned."""
        try:
            stored = json.loads(state)
            of = stored["of"]
            samples = {
                SeriesId(str(name), tuple((str(key), str(text)) for key, text in labels)): float(value)
                for name, labels, value in stored["samples"]
            }
            snapshots = [
                Snapshot(at_s=float(at_s), totals={(str(q), str(p)): float(v) for q, p, v in totals})
                for at_s, totals in stored["snapshots"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"stored metrics cannot be read: {error}") from None
        if of != self._of:
            raise ValueError(f"stored metrics are those of {of}")
        self._samples, self._ring = samples, Ring(snapshots)

    def _measured(self, start: Snapshot, end: Snapshot) -> Measured:
        added = between(start, end)
        seen = {quantity: added[quantity] for quantity in Quantity if quantity in added}
        knows_attainment = self._preset.met is not None
        return assemble(start.at_s, end.at_s, seen, pool_loads(added), knows_attainment=knows_attainment)


def _scaled(measured: Measured, start_s: float, end_s: float) -> Measured:
    """As if the reads had been as far apart as the interval is long; means are what they are."""
    length_s = measured.end_s - measured.start_s
    share = (end_s - start_s) / length_s
    detail = f"counted over {length_s:.1f} s, scaled to {end_s - start_s:.1f} s"
    known = f"{measured.health.detail}; {detail}" if measured.health.detail else detail
    return replace(
        measured,
        start_s=start_s,
        end_s=end_s,
        health=Health(status=HealthStatus.PARTIAL, detail=known),
        requests=measured.requests * share,
        completed=measured.completed * share,
    )
