"""The law of what was added since: counters and requests in flight, from read to read. Pure.

Every source goes by it: own scrapes of gateways and engines, and the raw samples of a Prometheus
(`raw_samples`). PromQL's `increase()` would not do: it stretches the samples to the borders of its range, and
does not see the first value of a series that begins inside it.

A counter rises until its process begins anew. Everything else is a doubt, and a quantity in doubt is unknown
for the interval, never zero and never a peak:

    a counter                                              is taken as
    rises                                                  what it gained
    falls to no more than the time since the last read     a process that began anew: the new value
      can have counted (`allowance`)
    falls to more than that                                a doubt: a restart did not do this
    comes to where it was before an earlier fall           a doubt: it went back and returned, or two
                                                           processes answer in turns (n, 0.6 n, n ...)
    rises by more, in the first reads after a doubt        a doubt: the same goes on
    is first seen with more than the allowance             a doubt: it was counted before it was seen
    was away (no sample, NaN, negative) for a while        its gain, spread over the time that it was away
    was away when an interval ended                        of its gain the share of the time since that end

    allowance = 3 x the pace x seconds since the last read + 20

Pace: the gain per second of the quantity's busiest counter, smoothed over PACE_S from 0, so that one wild
read does not excuse the next. A new process that settles down (SETTLED reads without a fall) may pass the
count of the one before it. The counters of one process contradict themselves together: while its counters of
requests are in order, its others may rise and fall by any amount.

Requests in flight are gauges: they gain their change, and one that is gone has fallen to 0. What an engine
that ended had in flight did arrive, and is not taken back; nor is what left it without being counted, where
more leave than come between two reads.

Gains become running totals, one snapshot a read (`Ring`): resets and new series are settled once, and any two
snapshots give the interval between them (`between`). Gauges are kept as integrals over time: their mean in an
interval is exact at any spacing of the snapshots. Memory is bounded: when the ring is full, every second
snapshot of its older half goes, save the borders of the latest intervals.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from math import exp, inf
from typing import NamedTuple

from actors.collector.interval import NAN, Increase, Quantity
from actors.collector.series import Group, Key, Part, Parts

ALLOWED_PACES, ALLOWED_FLOOR = 3.0, 20.0
PACE_S = 300.0
SETTLED = 6
EARLIER_KEPT = 4
AWAY_S = 60.0
"""Longest absence of a counter after which its whole gain counts for the interval that sees it again."""


Counted = Mapping[Group, Parts]
"""The parts of each group, as read."""


@dataclass(slots=True, kw_only=True)
class _FollowedCounter:
    """One group: its last read, the counts that it fell from, reads since then, pace, doubt since when."""

    parts: Parts
    at_s: float
    earlier: list[float] = field(default_factory=list)
    rising: int = 0
    pace: float = 0.0
    doubted_since_s: float | None = None

    @property
    def count(self) -> float:
        return self.parts.get(Part.COUNT, 0.0)


class Gained(NamedTuple):
    """What one read added by group and part, and one line for each quantity that is in doubt."""

    by_group: Mapping[Group, Parts]
    doubts: Mapping[Quantity, str]


class Counters:
    """All groups of one source, followed from read to read."""

    def __init__(self) -> None:
        self._followed: dict[Group, _FollowedCounter] = {}
        self._paces: dict[Quantity, float] = {}
        self._in_order: set[str | None] = set()
        self._last_s: float | None = None
        self._border_s = -inf

    def begin(self, counted: Counted, at_s: float) -> None:
        """Follow these from here on: what they show was counted before."""
        self._followed = {
            group: _FollowedCounter(parts=dict(parts), at_s=at_s) for group, parts in counted.items()
        }
        self._last_s = at_s

    def adopt(self, counted: Counted, at_s: float) -> None:
        """Follow these too from here on, as `begin` does."""
        self._followed |= {
            group: _FollowedCounter(parts=dict(parts), at_s=at_s) for group, parts in counted.items()
        }

    def allowed(self, quantity: Quantity, at_s: float) -> float:
        """The most that one counter of it can have counted since the last read."""
        paces = [known.pace for group, known in self._followed.items() if group.quantity is quantity]
        elapsed_s = 0.0 if self._last_s is None else at_s - self._last_s
        return ALLOWED_PACES * max(paces, default=0.0) * elapsed_s + ALLOWED_FLOOR

    def border(self, at_s: float) -> None:
        """An interval ended here: gains since then are the next one's."""
        self._border_s = at_s

    def add(self, counted: Counted, at_s: float) -> Gained:
        """One more read."""
        self._paces = {}
        for group, known in self._followed.items():
            self._paces[group.quantity] = max(known.pace, self._paces.get(group.quantity, 0.0))
        self._in_order = set()
        requests = {group: parts for group, parts in counted.items() if group.quantity is Quantity.REQUESTS}
        gained, doubts = self._take(requests, at_s)
        self._in_order = {group.engine for group in requests} - {group.engine for group in doubts}
        others = {group: parts for group, parts in counted.items() if group not in requests}
        more, more_doubts = self._take(others, at_s)
        self._last_s = at_s
        lines: dict[Quantity, str] = {}
        for group, line in (doubts | more_doubts).items():
            lines.setdefault(group.quantity, line)
        return Gained(gained | more, lines)

    def _take(self, counted: Counted, at_s: float) -> tuple[dict[Group, Parts], dict[Group, str]]:
        """What these groups gained, and a line for each that is in doubt."""
        gained: dict[Group, Parts] = {}
        doubts: dict[Group, str] = {}
        for group, parts in counted.items():
            doubt, base = self._judged(group, parts, at_s)
            followed = self._followed[group]
            if doubt:
                doubts[group] = doubt + _since(followed.doubted_since_s or at_s)
                base = parts
            share = self._share(followed.at_s, at_s, went_on=bool(base))
            gained[group] = {
                # A part that was not read with the others before has no base but itself.
                part: (value - base.get(part, value if base else 0.0)) * share
                for part, value in parts.items()
            }
            followed.parts, followed.at_s = {**(followed.parts if base else {}), **parts}, at_s
        return gained, doubts

    def values(self) -> dict[Group, Parts]:
        """The last read of each group, those that are away included."""
        return {group: followed.parts for group, followed in self._followed.items()}

    def forget(self, before_s: float) -> None:
        """Drop what has not been seen since then."""
        self._followed = {group: known for group, known in self._followed.items() if known.at_s >= before_s}

    def _judged(self, group: Group, parts: Parts, at_s: float) -> tuple[str, Parts]:
        """The doubt, or empty, and the values that the gain begins at."""
        known = self._followed.get(group)
        if known is None:
            return self._first_seen(group, parts, at_s)
        count, before = parts.get(Part.COUNT, 0.0), known.count
        allowance = self._allowance(group.quantity, at_s - known.at_s)
        fell = any(value < known.parts.get(part, 0.0) for part, value in parts.items())
        base = {} if fell else known.parts
        if group.engine in self._in_order:
            doubt, known.earlier, known.rising = "", [], SETTLED
        elif fell:
            doubt = self._fallen(known, group, count, allowance)
        else:
            doubt = _risen(known, group, count, allowance)
        if doubt:
            known.doubted_since_s = known.doubted_since_s or at_s
        elif known.rising >= SETTLED:
            known.doubted_since_s = None
        if not doubt and base and at_s > known.at_s:
            rate = (count - before) / (at_s - known.at_s)
            known.pace += (rate - known.pace) * (1.0 - exp((known.at_s - at_s) / PACE_S))
        return doubt, base

    def _first_seen(self, group: Group, parts: Parts, at_s: float) -> tuple[str, Parts]:
        since_s = at_s if self._last_s is None else self._last_s
        self._followed[group] = _FollowedCounter(parts={}, at_s=since_s)
        count = parts.get(Part.COUNT, 0.0)
        known_pace = self._paces.get(group.quantity, 0.0) > 0 and group.engine not in self._in_order
        if known_pace and count > self._allowance(group.quantity, at_s - since_s):
            self._followed[group].doubted_since_s = at_s
            return f"{group} is first seen with {count:g}, counted before", {}
        return "", {}

    def _fallen(self, known: _FollowedCounter, group: Group, count: float, allowance: float) -> str:
        before, returned = known.count, [value for value in known.earlier if value <= count]
        known.earlier = [value for value in known.earlier if value not in returned[-1:]]
        known.rising = 0
        if before > allowance:
            known.earlier = sorted([*known.earlier, before][-EARLIER_KEPT:])
        if returned:
            return (
                f"{group} went from {before:g} to {count:g}: two processes answer in turns, read each of them"
            )
        if count > allowance:
            return f"{group} fell from {before:g} to {count:g}, which no restart explains"
        return ""

    def _share(self, seen_s: float, at_s: float, *, went_on: bool) -> float:
        """The part of a gain that belongs to the time since the last read, or since the last interval."""
        away_s, elapsed_s = at_s - seen_s, at_s - (seen_s if self._last_s is None else self._last_s)
        if went_on and seen_s < self._border_s < at_s:
            return (at_s - self._border_s) / away_s
        return 1.0 if away_s <= max(AWAY_S, elapsed_s) else elapsed_s / away_s

    def _allowance(self, quantity: Quantity, elapsed_s: float) -> float:
        return ALLOWED_PACES * self._paces.get(quantity, 0.0) * elapsed_s + ALLOWED_FLOOR


def _risen(known: _FollowedCounter, group: Group, count: float, allowance: float) -> str:
    before = known.count
    passed = [value for value in known.earlier if before < value <= count]
    known.rising += 1
    unsettled = known.doubted_since_s is not None and count - before > allowance
    if not passed and not unsettled:
        return ""
    known.earlier = [value for value in known.earlier if value not in passed]
    if known.rising >= SETTLED and count - before <= allowance:
        return ""
    known.rising = 0
    known.earlier = sorted([*known.earlier, before][-EARLIER_KEPT:])
    return f"{group} went back and returned, from {before:g} to {count:g}"


def _since(at_s: float) -> str:
    return f" (since {datetime.fromtimestamp(at_s, UTC):%H:%M:%S} UTC)"


def summed(gained: Mapping[Group, Parts]) -> dict[Key, float]:
    """The gains by quantity and part."""
    total: dict[Key, float] = {}
    for group, parts in gained.items():
        for part, value in parts.items():
            key = (group.quantity, part)
            total[key] = total.get(key, 0.0) + value
    return total


def change_in_flight(
    before: Mapping[Group, float], now: Mapping[Group, float], ended: Collection[str] = ()
) -> dict[str | None, float]:
    """The change of requests in flight by engine; `ended` are engines of which nothing is taken back."""
    left = {group: value for group, value in before.items() if group.engine not in ended}
    change: dict[str | None, float] = {}
    for group in dict.fromkeys([*now, *left]):
        change[group.engine] = change.get(group.engine, 0.0) + now.get(group, 0.0) - left.get(group, 0.0)
    return change


def left_uncounted(ended: Mapping[Group, Parts], change: Mapping[str | None, float], *, apart: bool) -> float:
    """Requests that are in flight no more, and that no counter shows as ended.

    `apart`: each engine's requests end where they ran; else they pass from engine to engine.
    """
    balance = dict(change)
    for group, parts in ended.items():
        if group.quantity is Quantity.REQUESTS:
            balance[group.engine] = balance.get(group.engine, 0.0) + parts.get(Part.COUNT, 0.0)
    return sum(max(0.0, -each) for each in (balance.values() if apart else [sum(balance.values())]))


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
