"""Follows one exposition from read to read and measures the interval between two of them. Pure.

    interval                                                     result
    a read within the tolerance of its start                     from there (or rather from the end of the
                                                                 interval before) to the last read
    none, but one 0.5 to 1.5 intervals before its end            `partial`: counts scaled to the interval
    none at all (an outage), or nothing read before its start    `starting`

Tolerance: a scrape interval, within a twentieth and a quarter of the interval. The state can be stored and
taken up again, so that an interval in which the collector itself was restarted is still measured; its reads
are then as far apart as the restart made them.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from actors.collector.assembly import Reading, measured, unmeasured
from actors.collector.channels import Quantity, channels, gauges, matched
from actors.collector.exposition import SeriesId, names_of
from actors.collector.increments import Key, broken, increments, settled, slots
from actors.collector.loads import gained_load, pool_loads
from actors.collector.presets import Preset
from actors.collector.ring import Ring, Snapshot, between
from actors.collector.values import Health, HealthStatus, Measured

LEAST_SHARE = 0.05
MOST_SHARE = 0.25
LEAST_STRETCH = 0.5
MOST_STRETCH = 1.5


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
        return names_of(self._channels, self._gauges) | {self._alive.name}

    @property
    def newest_s(self) -> float | None:
        """When the last read was."""
        newest = self._ring.newest
        return newest.at_s if newest else None

    def alive(self) -> bool:
        """Whether the last read had what every running system of this kind shows."""
        name, where = self._alive
        return any(series.name == name and set(where) <= set(series.labels) for series in self._samples)

    def replaced(self) -> None:
        """Another process answers from now on: its counters began at 0, and what was in flight is gone."""
        in_flight = {channel.name for channel in self._channels if channel.gauge}
        self._samples = {series: value for series, value in self._samples.items() if series.name in in_flight}

    def add(self, samples: Mapping[SeriesId, float], at_s: float) -> None:
        """Take in one read. The first one ever is what later ones are compared with."""
        good = settled(self._samples, samples)
        newest = self._ring.newest
        gained: dict[Key, float] = {}
        if newest is not None:
            gained = increments(slots(self._samples, self._channels), slots(good, self._channels))
            gained |= gained_load(good, self._gauges, self._preset.load, at_s - newest.at_s)
        else:
            gained = dict.fromkeys(increments({}, slots(good, self._channels)), 0.0)
        self._ring.add(gained, at_s, broken(samples, self._channels))
        self._samples = good

    def measure(self, start_s: float, end_s: float) -> Measured:
        """The interval that ends with the last read; the next one is expected to begin there."""
        tolerance_s = self._tolerance_s(end_s - start_s)
        start, end = self._ring.nearest(start_s, tolerance_s), self._ring.newest
        if start is None or end is None:
            return unmeasured(start_s, end_s, HealthStatus.STARTING, "nothing has been read yet")
        self._ring.mark_border(end)
        if not self.alive():
            detail = f"no series {self._alive.name}{dict(self._alive.labels)}"
            return unmeasured(start_s, end_s, HealthStatus.STARTING, detail)
        if start is not end and abs(start.at_s - start_s) <= tolerance_s:
            return self._measured(start, end)
        stretch = (end.at_s - start.at_s) / (end_s - start_s)
        if self._knows(start_s) and LEAST_STRETCH <= stretch <= MOST_STRETCH:
            return _scaled(self._measured(start, end), start_s, end_s)
        return unmeasured(start_s, end_s, HealthStatus.STARTING, self._why_not_whole(start, start_s))

    def state(self) -> bytes:
        """What `restore` needs."""
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
            samples = {_series(name, labels): float(value) for name, labels, value in stored["samples"]}
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
        known = {quantity: added[quantity] for quantity in Quantity if quantity in added}
        reading = Reading(start_s=start.at_s, end_s=end.at_s, increases=known, load=pool_loads(added))
        return measured(reading, knows_attainment=self._preset.met is not None)

    def _tolerance_s(self, interval_s: float) -> float:
        longest = max(self._scrape_interval_s, LEAST_SHARE * interval_s)
        return min(longest, MOST_SHARE * interval_s)

    def _knows(self, at_s: float) -> bool:
        """Whether anything was read up to then."""
        oldest = self._ring.oldest
        return oldest is not None and oldest.at_s < at_s

    def _why_not_whole(self, start: Snapshot, start_s: float) -> str:
        if not self._knows(start_s):
            return "no whole interval has been read yet"
        return f"no read within {abs(start.at_s - start_s):.1f} s of the interval's start"


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


def _series(name: Any, labels: Any) -> SeriesId:  # noqa: ANN401 - whatever JSON holds
    return SeriesId(str(name), tuple((str(key), str(value)) for key, value in labels))
