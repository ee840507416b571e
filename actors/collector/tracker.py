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
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

from actors.collector.counted import with_counted
from actors.collector.counters import Counted, Counters, Group, summed
from actors.collector.exposition import (
    SeriesId,
    SeriesUse,
    absent,
    broken,
    carries,
    changed,
    counted,
    gained_load,
    instance_of,
    last_good,
    pool_loads,
    series_uses,
)
from actors.collector.measured import (
    NOTHING,
    Health,
    HealthStatus,
    Measured,
    assemble,
    unmeasured,
)
from actors.collector.presets import (
    EVERYTHING,
    Part,
    Preset,
    Quantity,
    Selection,
    channels,
    gauges,
    matched,
)
from actors.collector.snapshots import Ring, Snapshot, between

GONE_S = 300.0
"""A counter without any series is not read, for as long; after that it is gone."""
FORGOTTEN_S = 3600.0
"""A series that was away for longer is a new one."""

COUNTS_REQUESTS = frozenset({Quantity.REQUESTS, Quantity.TTFT})
"""By these an engine's past is noticed: the first token counts where others than decode engines are read."""

LEAST_SHARE, MOST_SHARE = 0.05, 0.25
"""Bounds of the tolerance, as shares of the interval."""

LEAST_STRETCH, MOST_STRETCH = 0.5, 1.5
"""Lengths between two reads, in intervals, from which counts may be scaled to the interval."""


class Tracker:
    """Reads in, intervals out."""

    def __init__(
        self, preset: Preset, model: str, scrape_interval_s: float, selection: Selection = EVERYTHING
    ) -> None:
        self._preset = preset
        self._channels = channels(preset, model, selection)
        self._gauges = gauges(preset, model, selection)
        self._of = [preset.name, preset.model(model), *sorted(selection.roles)]
        self._alive = SeriesId(preset.alive.name, matched(preset.alive, preset, model, selection))
        self._scrape_interval_s = scrape_interval_s
        self._samples: Mapping[SeriesId, float] = {}
        self._in_flight: Mapping[SeriesUse, float] = {}
        self._counters = Counters()
        self._broken: dict[Quantity, float] = {}
        self._doubts: dict[Quantity, str] = {}
        self._ring = Ring()

    @property
    def names(self) -> frozenset[str]:
        """The sample names to read."""
        return frozenset(
            {self._alive.name, *(c.name for c in self._channels), *(g.name for g in self._gauges)}
        )

    @property
    def gauges(self) -> frozenset[str]:
        """Those of them that are gauges."""
        return frozenset({*(c.name for c in self._channels if c.gauge), *(g.name for g in self._gauges)})

    @property
    def shared(self) -> frozenset[str]:
        """The names that every gateway shows alike: load of replicas, as it knows it."""
        by_gateways = self._preset.load is not None and not self._preset.load.by_model
        return frozenset(gauge.name for gauge in self._gauges) if by_gateways else frozenset()

    @property
    def newest_s(self) -> float | None:
        """The time of the last read."""
        newest = self._ring.newest
        return newest.at_s if newest else None

    def alive(self) -> bool:
        """True if the last read had what every running system of this kind shows."""
        return self.shows(self._samples)

    def shows(self, samples: Mapping[SeriesId, float]) -> bool:
        """True if these samples have it."""
        name, where = self._alive
        return any(series.name == name and carries(series.labels, where) for series in samples)

    def absent(self) -> str:
        """A line that says that the last read does not have the model, and which it has."""
        label, name = self._preset.model_label, self._alive.name
        return absent(self._of[1], {dict(s.labels).get(label, "") for s in self._samples if s.name == name})

    def add(
        self, samples: Mapping[SeriesId, float], at_s: float, begun: Collection[str] = frozenset()
    ) -> None:
        """Take in one read. The first one ever is what later ones are compared with.

        `begun` are processes (labels `instance`) that began after the last read, with their counters at 0.
        """
        good = last_good(self._samples, samples)
        uses, newest = series_uses(good, self._channels), self._ring.newest
        unread = set(broken(samples, self._channels))
        if newest is None:
            self._begin(good, at_s)
            # What the counters show at the first read was counted before anything was followed.
            gained = dict.fromkeys([use.key for use in uses], 0.0)
        else:
            groups = self._with_lost(counted(uses), unread, at_s)
            in_flight = self._with_lost_gauges(uses, unread)
            begins: Counted = {group: {} for group in groups if instance_of(group.labels) in begun}
            self._counters.adopt(begins, newest.at_s)
            if late := self._seen_late(groups, at_s):
                past = {group: parts for group, parts in groups.items() if instance_of(group.labels) in late}
                self._counters.adopt(past, at_s)
                known = {use: value for use, value in in_flight.items() if instance_of(use.labels) in late}
                self._in_flight = {**self._in_flight, **known}
            ended = self._ended(good, groups)
            read = self._counters.add(groups, at_s)
            gained = summed(read.by_group)
            for key, change in changed(self._in_flight, in_flight, ended).items():
                gained[key] = gained.get(key, 0.0) + change
            gained |= gained_load(good, self._gauges, self._preset.load, at_s - newest.at_s)
            gained |= {(_doubt_key(quantity), "count"): 1.0 for quantity in read.doubts}
            self._in_flight, self._samples = in_flight, good
            self._doubts |= read.doubts
            self._counters.forget(at_s - FORGOTTEN_S)
        last_s = newest.at_s if newest else at_s
        self._broken = {quantity: self._broken.get(quantity, last_s) for quantity in unread}
        self._ring.add(gained, at_s, self._broken)

    def _begin(self, good: Mapping[SeriesId, float], at_s: float) -> None:
        uses = series_uses(good, self._channels)
        self._samples = good
        self._in_flight = {use: value for use, value in uses.items() if use.gauge}
        self._counters.begin(counted(uses), at_s)

    def _seen_late(self, groups: Counted, at_s: float) -> set[str]:
        """The engines that are new here, but have counted more than since the last read."""
        followed = {instance_of(group.labels) for group in self._counters.values()}
        return {
            instance
            for group, parts in groups.items()
            if (instance := instance_of(group.labels)) is not None
            and instance not in followed
            and group.quantity in COUNTS_REQUESTS
            and parts.get(Part.COUNT, 0.0) > self._counters.allowed(group.quantity, at_s)
        }

    def _ended(self, samples: Mapping[SeriesId, float], groups: Counted) -> set[str]:
        """The engines whose process is not there any more, or began anew: those of which nothing was read, or
        less than before.
        """
        before = self._counters.values()
        fell = {
            instance_of(group.labels)
            for group, parts in groups.items()
            if parts.get(Part.COUNT, 0.0) < before.get(group, {}).get(Part.COUNT, 0.0)
        }
        gone = {instance_of(use.labels) for use in self._in_flight}
        gone -= {instance_of(series.labels) for series in samples}
        return {instance for instance in gone | fell if instance is not None}

    def _with_lost(
        self, read: dict[Group, dict[str, float]], unread: set[Quantity], at_s: float
    ) -> dict[Group, Mapping[str, float]]:
        """With the last values of counters of which no series is left in this read: they were not read."""
        names = {group.name for group in read}
        whole: dict[Group, Mapping[str, float]] = {**read}
        for group, parts in self._counters.values().items():
            since_s = self._broken.get(group.quantity, at_s)
            if group.name not in names and self.alive() and at_s - since_s < GONE_S:
                unread.add(group.quantity)
                whole[group] = parts
        return whole

    def _with_lost_gauges(
        self, uses: Mapping[SeriesUse, float], unread: set[Quantity]
    ) -> dict[SeriesUse, float]:
        """The requests in flight, with the last values of gauges that are gone while their counters are not.

        Without any series of a gauge nothing tells arrivals from completions: they are unread.
        """
        shown = [set(use.labels) for use in uses if not use.gauge]
        whole = {use: value for use, value in uses.items() if use.gauge}
        for use, value in self._in_flight.items():
            if use not in whole and any(labels >= set(use.labels) for labels in shown):
                unread.add(use.quantity)
                whole[use] = value
        # As read: what stands in for a gauge that is gone has made its quantity unread already.
        names = {use.name for use in whole}
        unread |= {c.quantity for c in self._channels if c.gauge and c.name not in names}
        return whole

    def measure(
        self, start_s: float, end_s: float, doubts: Mapping[Quantity, str] = MappingProxyType({})
    ) -> Measured:
        """The interval that ends with the last read; the next one is expected to begin there.

        `doubts` are those that the reader of the samples has.
        """
        interval_s = end_s - start_s
        longest_s = max(self._scrape_interval_s, LEAST_SHARE * interval_s)
        tolerance_s = min(longest_s, MOST_SHARE * interval_s)
        start, end = self._ring.nearest(start_s, tolerance_s), self._ring.newest
        if start is None or end is None:
            return unmeasured(start_s, end_s, HealthStatus.STARTING, "nothing has been read yet")
        # A border even if this interval turns out not to be measured: the next one begins here all the same.
        self._ring.mark_border(end)
        self._counters.border(end.at_s)
        if not self.alive():
            detail = f"no series {self._alive.name}{dict(self._alive.labels)}"
            return unmeasured(start_s, end_s, HealthStatus.STARTING, detail)
        if start is not end and abs(start.at_s - start_s) <= tolerance_s:
            return self._measured(start, end, doubts)
        oldest = self._ring.oldest
        if oldest is None or oldest.at_s >= start_s:
            return unmeasured(start_s, end_s, HealthStatus.STARTING, "no whole interval has been read yet")
        if LEAST_STRETCH <= (end.at_s - start.at_s) / interval_s <= MOST_STRETCH:
            return _scaled(self._measured(start, end, doubts), start_s, end_s)
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
        self._ring = Ring(snapshots)
        self._begin(samples, self.newest_s or 0.0)

    def _measured(self, start: Snapshot, end: Snapshot, known: Mapping[Quantity, str]) -> Measured:
        added = between(start, end)
        seen = {quantity: added[quantity] for quantity in Quantity if quantity in added}
        doubts = {
            quantity: self._doubts.get(quantity, f"the counter of {quantity} contradicts itself")
            for quantity in Quantity
            if added.get(_doubt_key(quantity), NOTHING).count > 0
        } | dict(known)
        knows_attainment = self._preset.met is not None
        loads = pool_loads(added)
        measured = assemble(
            start.at_s,
            end.at_s,
            seen,
            loads,
            doubts,
            knows_attainment=knows_attainment,
            in_flight=sum(self._in_flight.values()),
        )
        steps = self._ring.steps((Quantity.REQUESTS.value, Part.COUNT.value), start, end)
        return with_counted(measured, seen, steps)


def _doubt_key(quantity: Quantity) -> str:
    return f"doubt.{quantity}"


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
        # Its steps are not those of the interval.
        counted=None,
    )
