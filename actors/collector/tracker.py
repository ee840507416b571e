"""Follows one exposition from read to read and measures the interval between two of them. Pure.

    interval                                                     result
    a read within the tolerance of its start                     from there (or rather from the end of the
                                                                 interval before) to the last read
    none, but one 0.5 to 1.5 intervals before its end            `partial`: counts scaled to the interval
    none at all (an outage), or nothing read before its start    `starting`

Tolerance: a scrape interval, within a twentieth and a quarter of the interval. The state can be stored and
taken up again, so that an interval in which the collector itself was restarted is still measured; its reads
are then as far apart as the restart made them. A clock that is set back by more than SET_BACK_S begins all
anew: nothing that was read later than now can be told from what is still to come.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import ceil, isnan
from types import MappingProxyType
from typing import Any

from actors.collector.assembling import assemble
from actors.collector.engine_totals import EngineTotalsReader
from actors.collector.exposition import INSTANCE, Samples, SeriesId, can_be
from actors.collector.increase import (
    Counted,
    Counters,
    Ring,
    Snapshot,
    between,
    change_in_flight,
    left_uncounted,
    summed,
)
from actors.collector.interval import (
    NOTHING,
    SET_BACK_S,
    Health,
    HealthStatus,
    Measured,
    Quantity,
    noted,
    unmeasured,
)
from actors.collector.series import Group, Key, ModelSeries, Part, Parts, pool_loads
from headway.engine.observed_metrics import EngineLoad, EngineReadings, EngineTotals, gpus_of
from headway.planning.silence import Watch

GONE_S = 300.0
"""A counter without any series is not read, for as long; after that it is gone."""
FORGOTTEN_S = 3600.0
"""A series that was away for longer is a new one."""

COUNTS_REQUESTS = frozenset({Quantity.REQUESTS, Quantity.TTFT})
"""By these an engine's past is noticed: the first token counts where others than decode engines are read."""

ARRIVED: Key = (Quantity.REQUESTS, Part.COUNT)
GROWN: Key = ("in_flight", Part.COUNT)
LEFT: Key = ("left", Part.COUNT)
"""The growth of requests in flight, and those that left without being counted: parts of the arrivals."""

LEAST_SHARE, MOST_SHARE = 0.05, 0.25
"""Bounds of the tolerance, as shares of the interval."""

LEAST_STRETCH, MOST_STRETCH = 0.5, 1.5
"""Lengths between two reads, in intervals, from which counts may be scaled to the interval."""


class Tracker:
    """Reads in, intervals out."""

    def __init__(self, series: ModelSeries, scrape_interval_s: float) -> None:
        self._series = series
        self._of = [series.preset.name, series.model, *sorted(series.roles), *sorted(series.names)]
        self._scrape_interval_s = scrape_interval_s
        self._samples: Samples = {}
        self._border: Samples = {}
        self._in_flight: Mapping[Group, float] = {}
        self._counters = Counters()
        self._broken: dict[Quantity, float] = {}
        self._refused: dict[Quantity, tuple[float, str]] = {}
        self._doubts: dict[Quantity, str] = {}
        self._ring, self._set_back = Ring(), ""
        self._totals = EngineTotalsReader(series.preset, series.model)
        self._readings = EngineReadings()
        self._watch = Watch()

    @property
    def newest_s(self) -> float | None:
        """The time of the last read."""
        newest = self._ring.newest
        return newest.at_s if newest else None

    def alive(self) -> bool:
        """True if the last read had what every running system of this kind shows."""
        return self._series.shows(self._samples)

    def add(
        self,
        samples: Samples,
        at_s: float,
        *,
        begun: Collection[str] = frozenset(),
        unread: Samples = MappingProxyType({}),
    ) -> None:
        """Take in one read. The first one ever is what later ones are compared with.

        `begun` are processes (label `instance`) that began after the last read, with their counters at 0.
        `unread` are the last samples of engines that were not read this time and still stand: their requests
        in flight and load count as they did, and their counters are away.
        """
        standing = {s: value for s, value in unread.items() if self._series.is_gauge(s.name)}
        good = {**standing, **_last_good(self._samples, samples)}
        if self.newest_s is not None and at_s < self.newest_s - SET_BACK_S:
            self._set_back = "the clock was set back: "
            self._ring, self._broken, self._refused = Ring(), {}, {}
            self._readings, self._watch = EngineReadings(), Watch()
        refused, newest = self._series.refused(samples), self._ring.newest
        # What is not known of requests in flight is their change; a counter goes on from where it was.
        broken = {each.quantity for each in refused if not each.gauge}
        if newest is None:
            self._begin(good, at_s)
            # What the counters show at the first read was counted before anything was followed.
            gained: dict[Key, float] = {
                (group.quantity, part): 0.0
                for group, parts in self._counters.values().items()
                for part in parts
            }
            gained |= dict.fromkeys([(group.quantity, Part.COUNT) for group in self._in_flight], 0.0)
        else:
            groups = self._with_lost(self._series.counters(good), unread, broken, at_s)
            in_flight = self._with_lost_gauges(good, broken)
            self._follow_newcomers(groups, in_flight, begun, newest.at_s, at_s)
            ended = self._ended(groups, in_flight)
            read = self._counters.add(groups, at_s)
            gained = summed(read.by_group)
            change = change_in_flight(self._in_flight, in_flight, ended)
            left = left_uncounted(read.by_group, change, apart=not self._series.split)
            if in_flight or self._in_flight:
                gained[GROWN], gained[LEFT] = sum(change.values()), left
                gained[ARRIVED] = gained.get(ARRIVED, 0.0) + gained[GROWN] + left
            gained |= self._series.load(good, at_s - newest.at_s)
            gained |= {(_doubt_key(quantity), "count"): 1.0 for quantity in read.doubts}
            self._in_flight, self._samples = in_flight, {**unread, **good}
            self._doubts |= read.doubts
            self._counters.forget(at_s - FORGOTTEN_S)
        self._refused |= {each.quantity: (at_s, each.line) for each in refused}
        totals, loads = self._totals.read(samples), self._totals.loads(samples)
        self._look(totals, loads, at_s)
        replicas = self._series.replicas(samples).items()
        if joint := {engine: replica for engine, replica in replicas if replica != engine}:
            totals, loads = self._totals.read(samples, joint), self._totals.loads(samples, joint)
        self._readings.add(totals, at_s, loads)
        last_s = newest.at_s if newest else at_s
        self._broken = {quantity: self._broken.get(quantity, last_s) for quantity in broken}
        self._ring.add(gained, at_s, self._broken)

    def _look(self, totals: Mapping[str, EngineTotals], loads: Mapping[str, EngineLoad], at_s: float) -> None:
        """See which engines have requests and make no progress on any."""
        shown = {engine: load for engine, load in loads.items() if engine in totals}
        self._watch.keep(shown)
        for engine, load in shown.items():
            there = load.running + load.waiting
            # A long prompt fills the KV cache chunk by chunk.
            progress = (totals[engine], None if isnan(load.kv_usage) else load.kv_usage)
            self._watch.heard(at_s, engine, 0 if isnan(there) else ceil(there), progress)

    def begin_interval(self) -> None:
        """What engines show up to here belongs to no interval: one begins with the last read."""
        self._readings.take()

    def _begin(self, good: Samples, at_s: float) -> None:
        self._samples = good
        self._in_flight = self._series.in_flight(good)
        self._counters.begin(self._series.counters(good), at_s)

    def _follow_newcomers(
        self,
        groups: Counted,
        in_flight: Mapping[Group, float],
        begun: Collection[str],
        last_s: float,
        at_s: float,
    ) -> None:
        """Processes that have begun count from 0, engines with a past from what they show now."""
        begins: Counted = {group: {} for group in groups if dict(group.labels).get(INSTANCE) in begun}
        self._counters.adopt(begins, last_s)
        if late := self._seen_late(groups, at_s):
            past = {group: parts for group, parts in groups.items() if group.engine in late}
            self._counters.adopt(past, at_s)
            known = {group: value for group, value in in_flight.items() if group.engine in late}
            self._in_flight = {**self._in_flight, **known}

    def _seen_late(self, groups: Counted, at_s: float) -> set[str]:
        """The engines that are new here, but have counted more than since the last read."""
        followed = {group.engine for group in self._counters.values()}
        return {
            engine
            for group, parts in groups.items()
            if (engine := group.engine) is not None
            and engine not in followed
            and group.quantity in COUNTS_REQUESTS
            and parts.get(Part.COUNT, 0.0) > self._counters.allowed(group.quantity, at_s)
        }

    def _ended(self, groups: Counted, in_flight: Mapping[Group, float]) -> set[str]:
        """The engines whose process is gone or began anew: nothing was read of them, or less than before."""
        before = self._counters.values()
        fell = {
            group.engine
            for group, parts in groups.items()
            if parts.get(Part.COUNT, 0.0) < before.get(group, {}).get(Part.COUNT, 0.0)
        }
        gone = {group.engine for group in self._in_flight} - {group.engine for group in (*groups, *in_flight)}
        return {engine for engine in gone | fell if engine is not None}

    def _with_lost(
        self, read: dict[Group, dict[str, float]], unread: Samples, broken: set[Quantity], at_s: float
    ) -> dict[Group, Parts]:
        """With the last values of counters of which no series is left in this read: they were not read."""
        names = {group.name for group in (*read, *self._series.counters(unread))}
        whole: dict[Group, Parts] = {**read}
        for group, parts in self._counters.values().items():
            since_s = self._broken.get(group.quantity, at_s)
            if group.name not in names and self.alive() and at_s - since_s < GONE_S:
                broken.add(group.quantity)
                whole[group] = parts
        return whole

    def _with_lost_gauges(self, samples: Samples, broken: set[Quantity]) -> dict[Group, float]:
        """The requests in flight, with the last values of gauges that are gone while their counters are not.

        Without any series of a gauge nothing tells arrivals from completions: they are broken.
        """
        whole = self._series.in_flight(samples)
        shown = [set(group.labels) for group in self._series.counters(samples)]
        for group, value in self._in_flight.items():
            if group not in whole and any(labels >= set(group.labels) for labels in shown):
                broken.add(group.quantity)
                whole[group] = value
        # As read: what stands in for a gauge that is gone has broken its quantity already.
        names = {group.name for group in whole}
        if not self._series.in_flight_names <= names:
            broken.add(Quantity.REQUESTS)
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
            name, where = self._series.alive
            detail = f"no series {name}{dict(where)}"
            return unmeasured(start_s, end_s, HealthStatus.STARTING, detail)
        if start is not end and abs(start.at_s - start_s) <= tolerance_s:
            return self._measured(start, end, doubts)
        oldest = self._ring.oldest
        if oldest is None or oldest.at_s >= start_s:
            detail = f"{self._set_back}no whole interval has been read yet"
            return unmeasured(start_s, end_s, HealthStatus.STARTING, detail)
        if LEAST_STRETCH <= (end.at_s - start.at_s) / interval_s <= MOST_STRETCH:
            return _scaled(self._measured(start, end, doubts), start_s, end_s)
        detail = f"no read within {abs(start.at_s - start_s):.1f} s of the interval's start"
        return unmeasured(start_s, end_s, HealthStatus.STARTING, detail)

    def state(self) -> Mapping[str, Any]:
        """The JSON document that `restore` needs."""
        return {
            "of": self._of,
            "samples": [[name, labels, value] for (name, labels), value in self._samples.items()],
            "snapshots": [
                [border.at_s, [[*key, value] for key, value in border.totals.items()]]
                for border in self._ring.kept()
            ],
        }

    def restore(self, stored: Any) -> None:  # noqa: ANN401 - whatever JSON holds
        """Go on where `state` was taken. ValueError for what no `state` of this preset and model returned.

        So it is after an update that reads one series more: of its past nothing would be known.
        """
        try:
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
            raise ValueError("stored metrics are those of another model, preset or version")
        self._ring = Ring(snapshots)
        self._begin(samples, self.newest_s or 0.0)

    def _measured(self, start: Snapshot, end: Snapshot, known: Mapping[Quantity, str]) -> Measured:
        added = between(start, end)
        seen = {quantity: added[quantity] for quantity in Quantity if quantity in added}
        doubts = {
            quantity: self._doubts.get(quantity, f"the counter of {quantity} contradicts itself")
            for quantity in Quantity
            if added.get(_doubt_key(quantity), NOTHING).count > 0
        }
        refused = {quantity: line for quantity, (at_s, line) in self._refused.items() if at_s > start.at_s}
        doubts |= {
            quantity: line for quantity, line in refused.items() if self._refused[quantity][0] >= end.at_s
        }
        doubts |= dict(known)
        measured = assemble(
            start.at_s,
            end.at_s,
            seen,
            pool_loads(added),
            doubts,
            knows_attainment=self._series.preset.met is not None,
            in_flight=sum(self._in_flight.values()),
            grown=added.get(GROWN[0], NOTHING).count,
            left=added.get(LEFT[0], NOTHING).count,
            steps=self._ring.steps(ARRIVED, start, end),
        )
        past = dict.fromkeys(line for quantity, line in refused.items() if quantity not in doubts)
        measured = noted(measured, f"left out: {'; '.join(past)}" if past else "")
        if Quantity.REQUESTS in start.broken and Quantity.REQUESTS not in doubts:
            since = f"{datetime.fromtimestamp(start.broken[Quantity.REQUESTS], UTC):%H:%M:%S} UTC"
            measured = noted(measured, f"requests since {since} are spread evenly", HealthStatus.PARTIAL)
        # What was measured under doubt shows nothing of the engines.
        sure = measured.health.status is HealthStatus.OK
        own = [each for each in self._readings.take() if sure and each.begun_s >= start.at_s]
        named, self._border = self._series.named(self._border, self._samples), self._samples
        measured = noted(measured, self._series.not_counted(named))
        if len(gpus := gpus_of(own)) > 1:
            found = ", ".join(f"{count} of {gpu.upper()}" for gpu, count in sorted(gpus.items()))
            measured = noted(measured, f"engines run on several GPUs, planned for as one: {found}")
        return replace(measured, engines=tuple(own), silent=self._watch.silent(end.at_s))


def _last_good(old: Samples, new: Samples) -> Samples:
    """The new samples, those that cannot be replaced by the last good value, or left out without one."""
    if all(map(can_be, new.values())):
        return new
    good = {series: value if can_be(value) else old.get(series) for series, value in new.items()}
    return {series: value for series, value in good.items() if value is not None}


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
        least_requests=measured.least_requests * share,
        repeats=measured.repeats * share,
        completed=measured.completed * share,
        # Its steps are not those of the interval.
        counted=None,
    )
