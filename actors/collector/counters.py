"""Counters that contradict themselves: what a read may be taken for. Pure.

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
read does not excuse the next.

A new process that settles down (SETTLED reads without a fall) may pass the count of the one before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from math import exp, inf
from statistics import median
from typing import NamedTuple

from actors.collector.presets import Labels, Part, Quantity

ALLOWED_PACES, ALLOWED_FLOOR = 3.0, 20.0
PACE_S = 300.0
SETTLED = 6
EARLIER_KEPT = 4
AWAY_S = 60.0
"""Longest absence of a counter after which its whole gain counts for the interval that sees it again."""


class Group(NamedTuple):
    """The series that are reset together: a counter, or the parts of one histogram."""

    quantity: Quantity
    name: str
    labels: Labels

    def __str__(self) -> str:
        labels = ",".join(f'{key}="{value}"' for key, value in self.labels)
        return f"{self.name}{{{labels}}}"


Counted = Mapping[Group, Mapping[str, float]]
"""The parts (`count`, `sum`, bounds of buckets) of each group, as read."""


@dataclass(slots=True, kw_only=True)
class _FollowedCounter:
    """One group: its last read, the counts that it fell from, reads since then, pace, doubt since when."""

    parts: Mapping[str, float]
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

    by_group: Mapping[Group, Mapping[str, float]]
    doubts: Mapping[Quantity, str]


class Counters:
    """All groups of one source, followed from read to read."""

    def __init__(self) -> None:
        self._followed: dict[Group, _FollowedCounter] = {}
        self._paces: dict[Quantity, float] = {}
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
        gained: dict[Group, Mapping[str, float]] = {}
        doubts: dict[Quantity, str] = {}
        for group, parts in counted.items():
            doubt, base = self._judged(group, parts, at_s)
            followed = self._followed[group]
            if doubt:
                doubts.setdefault(group.quantity, doubt + _since(followed.doubted_since_s or at_s))
                base = parts
            share = self._share(followed.at_s, at_s, went_on=bool(base))
            gained[group] = {part: (value - base.get(part, 0.0)) * share for part, value in parts.items()}
            followed.parts, followed.at_s = dict(parts), at_s
        self._last_s = at_s
        return Gained(gained, doubts)

    def values(self) -> dict[Group, Mapping[str, float]]:
        """The last read of each group, those that are away included."""
        return {group: followed.parts for group, followed in self._followed.items()}

    def forget(self, before_s: float) -> None:
        """Drop what has not been seen since then."""
        self._followed = {group: known for group, known in self._followed.items() if known.at_s >= before_s}

    def _judged(
        self, group: Group, parts: Mapping[str, float], at_s: float
    ) -> tuple[str, Mapping[str, float]]:
        """The doubt, or empty, and the values that the gain begins at."""
        known = self._followed.get(group)
        if known is None:
            return self._first_seen(group, parts, at_s)
        count, before = parts.get(Part.COUNT, 0.0), known.count
        allowance = self._allowance(group.quantity, at_s - known.at_s)
        if any(value < known.parts.get(part, 0.0) for part, value in parts.items()):
            doubt = self._fallen(known, group, count, allowance)
            base: Mapping[str, float] = {}
        else:
            doubt, base = _risen(known, group, count, allowance), known.parts
        if doubt:
            known.doubted_since_s = known.doubted_since_s or at_s
        elif known.rising >= SETTLED:
            known.doubted_since_s = None
        if not doubt and base and at_s > known.at_s:
            rate = (count - before) / (at_s - known.at_s)
            known.pace += (rate - known.pace) * (1.0 - exp((known.at_s - at_s) / PACE_S))
        return doubt, base

    def _first_seen(
        self, group: Group, parts: Mapping[str, float], at_s: float
    ) -> tuple[str, Mapping[str, float]]:
        since_s = at_s if self._last_s is None else self._last_s
        self._followed[group] = _FollowedCounter(parts={}, at_s=since_s)
        count = parts.get(Part.COUNT, 0.0)
        known_pace = self._paces.get(group.quantity, 0.0) > 0
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


def summed(gained: Mapping[Group, Mapping[str, float]]) -> dict[tuple[str, str], float]:
    """The gains by quantity and part."""
    total: dict[tuple[str, str], float] = {}
    for group, parts in gained.items():
        for part, value in parts.items():
            key = (group.quantity.value, part)
            total[key] = total.get(key, 0.0) + value
    return total


Series = Mapping[Group, Sequence[tuple[float, float]]]
"""The samples of counters, as (Unix seconds, value) in the order of time."""


class Past(NamedTuple):
    """The newest doubt of each quantity, the gain of each scrape as (its time, gain), requests in flight."""

    doubts: Mapping[Quantity, str]
    steps: Sequence[tuple[float, float]]
    in_flight: float = 0.0


def follow(counters: Series, gauges: Series, since_s: float, fresh_s: float) -> Past:
    """The doubts and gains after `since_s` of samples; gauges gain their change, which may be negative.

    A counter whose first sample comes later than `fresh_s` after the first of all is first seen there.
    """
    followed, doubts = Counters(), dict[Quantity, str]()
    steps: list[tuple[float, float]] = []
    reads = _reads({**counters, **gauges})
    first_s = reads[0][0] if reads else 0.0
    begins = {
        group: samples[0][1]
        for group, samples in {**counters, **gauges}.items()
        if samples and samples[0][0] <= first_s + fresh_s
    }
    followed.begin({group: _count(value) for group, value in begins.items() if group in counters}, first_s)
    in_flight = {group: value for group, value in begins.items() if group in gauges}
    for at_s, values in reads:
        read = followed.add({group: _count(v) for group, v in values.items() if group in counters}, at_s)
        gain = sum(parts[Part.COUNT] for parts in read.by_group.values())
        for group, value in values.items():
            if group in gauges:
                gain += value - in_flight.get(group, 0.0)
                in_flight[group] = value
        if at_s > since_s:
            doubts |= read.doubts
            doubts |= {g.quantity: f"{g} is negative, {value:g}" for g, value in values.items() if value < 0}
            steps.append((at_s, gain))
    last_s = reads[-1][0] if reads else 0.0
    # A series that ended long before the others did is of a process that is gone.
    live = (samples[-1] for samples in gauges.values() if samples)
    return Past(doubts, steps, sum(value for at_s, value in live if at_s > last_s - fresh_s))


def _count(value: float) -> Mapping[str, float]:
    return {Part.COUNT.value: value}


def _reads(series: Series) -> list[tuple[float, dict[Group, float]]]:
    """The samples as if all targets were scraped together: each series in steps from its own first sample."""
    gaps_s = [b - a for samples in series.values() for (a, _), (b, _) in pairwise(samples) if b > a]
    starts_s = [samples[0][0] for samples in series.values() if samples]
    if not starts_s:
        return []
    gap_s, first_s = median(gaps_s) if gaps_s else 1.0, min(starts_s)
    reads: dict[int, tuple[float, dict[Group, float]]] = {}
    for group, samples in series.items():
        for at_s, value in samples:
            step = int((samples[0][0] - first_s) / gap_s) + round((at_s - samples[0][0]) / gap_s)
            latest_s, values = reads.get(step, (at_s, {}))
            values[group] = value
            reads[step] = max(latest_s, at_s), values
    return [reads[step] for step in sorted(reads)]
