r"""What measured outcomes justify: how far a prediction may be from the profile's, and what it may refuse.

A predictor that refuses requests takes its own samples away: where it is wrong, nothing says so, and it stays
wrong. So refusals have to be paid for by outcomes that are fresh:

    idle ratio      measured / prior of requests that had a replica to themselves: the median of the latest
                    RECENT, none older than FRESH_S. An idle replica's prediction stays within 1 / b and b of
                    prior × ratio, b = IDLE_TTFT or IDLE_TPOT. One that is less than half of the median begins
                    anew: good news counts at once, bad news by the median
    ratio bounds    the 1 % and 99 % quantile of measured / prior of all requests, a quarter wider, and never
                    beyond [1 / 8, 8]: what curves say of loads that they have not seen stays within. A TPOT
                    below the prior, which is that of a load that stays, is mostly that of a load that fell;
                    no lower than the 90 % quantile, and 1, is promised: a burst that begins does not fall
    weight          0.5 ^ (starved / 30 s), starved the time in which requests were refused and no outcome
                    came, less 10 s. A correction is prior × (corrected / prior) ^ weight
    forced probes   where the learned prediction refuses a request, prior × idle ratio is asked as well. It
                    may place `window` such requests at a time, for each kind of replica. The window begins at
                    1; each of them that keeps its SLO adds 1, which doubles it each time round (as TCP
                    starts); one that misses sets it back to 1, and any other request that misses halves
                    it. After a miss the next waits 1 s, 2 s,
                    … up to 4 s where the replica is idle, else 16 s

A window of 1 is paid for by refusals: a fiftieth of a request each, and a thirtieth per second.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isnan, nan

import numpy as np

from headway.routing.fleet.records import Record, RequestPhase
from headway.routing.fleet.table import FloatArray

MOST_RATIO = 8.0
"""Beyond this a profile is not imprecise but of another engine."""

RECENT, FRESH_S = 5, 60.0
REFRESHED = 64
"""Outcomes after which the bounds are taken anew."""

IDLE_TTFT, IDLE_TPOT = 1.5, 1.25
"""b: the spread that requests on an idle replica have anyway."""

REMEMBERED, FEWEST, ROOM = 1024, 20, 1.25
"""Ratios from which bounds are taken, how many there must be, and how much wider bounds are."""

GRACE_S, HALF_LIFE_S = 10.0, 30.0
"""A request takes some seconds, so none comes for a while at any start. A half-life is a few of those."""

DOUBT_S = 1.0
"""Seconds of that from which each refused request is asked about, not only the first of its like."""

EXPIRED = 1.0 / 64.0
"""The weight below which a model is dropped."""

LONGEST_GAP_S = 5.0
"""Time between two refusals counts as starved up to this: nobody asked in a quiet night."""

LASTING = 0.9
"""The quantile of measured / prior TPOT that a load which lasts has at least."""

KEPT = 0.7
"""Share of the starved time that is left after an outcome."""

EARNED, EARNED_PER_S, MOST_EARNED = 0.02, 1.0 / 30.0, 2.0
FIRST_WAIT_S, IDLE_WAIT_S, BUSY_WAIT_S = 1.0, 4.0, 16.0
JUSTIFIED_S = 10.0
"""A refusal by an idle ratio that is younger than this needs no probe."""


class IdleRatio:
    """The idle ratio of one target at one kind of replica."""

    __slots__ = ("_recent",)

    def __init__(self) -> None:
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    @property
    def newest_s(self) -> float:
        """The time of the newest; −inf without any."""
        return self._recent[-1][0] if self._recent else -inf

    def observe(self, now_s: float, prior_s: float, measured_s: float) -> None:
        """A request that was alone; one without a prior or a measurement says nothing."""
        if not (0.0 < prior_s < inf and 0.0 < measured_s < inf):
            return
        ratio = measured_s / prior_s
        if 2.0 * ratio < self.at(now_s):
            self._recent.clear()
        self._recent.append((now_s, ratio))

    def at(self, now_s: float) -> float:
        """The ratio, within [1 / MOST_RATIO, MOST_RATIO]; NaN where none is fresh."""
        fresh = sorted(ratio for at_s, ratio in self._recent if at_s > now_s - FRESH_S)
        if not fresh:
            return nan
        return min(max(fresh[len(fresh) // 2], 1.0 / MOST_RATIO), MOST_RATIO)


class RatioBounds:
    """The bounds of measured / prior of one target."""

    __slots__ = ("_ascending", "_ratios")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque()
        self._ascending: list[float] = []
        """The same in order: to sort them for each outcome takes 50 times as long."""

    def observe(self, prior_s: float, measured_s: float) -> None:
        """A pair; one without a prior or a measurement says nothing."""
        if not (0.0 < prior_s < inf and 0.0 < measured_s < inf):
            return
        if len(self._ratios) == REMEMBERED:
            del self._ascending[bisect_left(self._ascending, self._ratios.popleft())]
        self._ratios.append(measured_s / prior_s)
        insort(self._ascending, measured_s / prior_s)

    def bounds(self, least: float | None = None) -> tuple[float, float]:
        """The least and the most, as they are now; the least is the quantile `least` itself, if given."""
        if len(self._ratios) < FEWEST:
            return 1.0 / MOST_RATIO, MOST_RATIO
        low, high = _quantile(self._ascending, 0.01) / ROOM, _quantile(self._ascending, 0.99) * ROOM
        if least is not None:
            low = _quantile(self._ascending, least)
        return min(max(low, 1.0 / MOST_RATIO), 1.0), min(max(high, 1.0), MOST_RATIO)


def _quantile(ascending: Sequence[float], share: float) -> float:
    """The quantile of at least two values, between neighbours in proportion, to the bit as in numpy."""
    place = share * (len(ascending) - 1)
    below = int(place)
    part, low, high = place - below, ascending[below], ascending[below + 1]
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1.0 - part)


class Freshness:
    """The weight that corrections have, by the time for which no outcome came."""

    __slots__ = ("_asked_s", "starved_s")

    def __init__(self) -> None:
        self._asked_s, self.starved_s = -inf, 0.0

    @property
    def weight(self) -> float:
        """In (0, 1]; 1 while outcomes come. Without it an hour-old model is believed at a restart."""
        return float(0.5 ** (max(0.0, self.starved_s - GRACE_S) / HALF_LIFE_S))

    @property
    def doubtful(self) -> bool:
        """True while predictions refuse, and no outcome has come for a while."""
        return self.starved_s > DOUBT_S

    def refused(self, now_s: float) -> None:
        """Predictions refuse a request."""
        self.starved_s += min(max(now_s - self._asked_s, 0.0), LONGEST_GAP_S)
        self._asked_s = now_s

    def outcome(self, now_s: float) -> None:
        """A request has its outcome. What is old is not trusted at once, but after some of them."""
        self.starved_s = KEPT * self.starved_s if self.starved_s > GRACE_S else 0.0
        self._asked_s = now_s

    def aged(self, age_s: float) -> None:
        """The model's newest sample is so old."""
        self.starved_s = max(self.starved_s, min(age_s, GRACE_S + 8.0 * HALF_LIFE_S))


@dataclass(slots=True)
class _Window:
    """The probes of one kind of replica. `room`: how many at a time.

    One at a time keeps a third where engines had been slow for two minutes; without `wait_s` and the halving
    3 % is lost where they are slow for one.
    """

    room: float = 1.0
    wait_s: float = FIRST_WAIT_S
    next_s: float = -inf
    missed_s: float = -inf
    flying: list[Record] = field(default_factory=list)


class Probes:
    """Requests that are placed although predictions refuse them."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}
        self._earned, self._asked_s = 0.0, -inf
        self.placed = self.kept = 0
        """Those with an outcome that predictions had refused, and those of them that kept their SLO."""

    def refused(self, now_s: float, *, newcomer: bool) -> None:
        """Predictions refuse a request, the first time if it is a newcomer."""
        gap_s = min(max(now_s - self._asked_s, 0.0), LONGEST_GAP_S)
        self._earned = min(self._earned + EARNED * newcomer + EARNED_PER_S * gap_s, MOST_EARNED)
        self._asked_s = now_s

    def may(self, now_s: float, kind: int) -> bool:
        """True if one may go to a replica of this kind now."""
        window = self._windows.get(kind)
        if window is None:
            return self._earned >= 1.0
        # A record is queued again once it has left its replicas, for whatever reason.
        window.flying = [each for each in window.flying if each.phase is not RequestPhase.QUEUED]
        if len(window.flying) >= int(window.room):
            return False
        return window.room > 1.0 or (self._earned >= 1.0 and now_s >= window.next_s)

    def chosen(self, now_s: float, kind: int, record: Record, *, idle: bool) -> None:
        """This one goes to a replica of this kind, which is idle or not."""
        window = self._windows.setdefault(kind, _Window())
        if window.room <= 1.0:
            self._earned -= 1.0
        window.next_s = now_s + min(window.wait_s, IDLE_WAIT_S if idle else BUSY_WAIT_S)
        window.flying.append(record)

    def outcome(self, now_s: float, kind: int, record: Record, *, kept: bool) -> None:
        """A request that predictions judged has ended; `record.refused` says how."""
        if record.refused:
            self.placed, self.kept = self.placed + 1, self.kept + kept
        elif kept:
            return
        window = self._windows.get(kind)
        if window is None and (not record.refused or not kept):
            return
        window = self._windows.setdefault(kind, _Window())
        if kept:
            window.room, window.wait_s = window.room + 1.0, max(0.5 * window.wait_s, FIRST_WAIT_S)
        elif record.placed_s >= window.missed_s:
            # Those that were under way at a miss say nothing of what came after it.
            window.room, window.missed_s = (1.0 if record.refused else max(1.0, 0.5 * window.room)), now_s
            window.wait_s = min(2.0 * window.wait_s, BUSY_WAIT_S)


class Evidence:
    """The evidence of one router for `kinds` kinds of replicas; with the probes of `before`, if given."""

    def __init__(self, kinds: int, before: "Evidence | None" = None) -> None:
        self.probes: Probes = before.probes if before else Probes()
        self.freshness: Freshness = before.freshness if before else Freshness()
        self._idle = [(IdleRatio(), IdleRatio()) for _ in range(kinds)]
        self._ratios, self._seen = (RatioBounds(), RatioBounds()), 0
        self._limits = np.empty((4, kinds + 1))
        self._limits[0::2], self._limits[1::2] = 1.0 / MOST_RATIO, MOST_RATIO
        self._until_s = inf
        self.contradicts = False
        """True where an idle ratio, spread included, is not that of the prior."""

    def idle_factor(self, kind: int, now_s: float) -> tuple[float, float]:
        """Idle ratios of TTFT and TPOT; 1 where none is fresh."""
        ttft, tpot = (each.at(now_s) for each in self._idle[kind])
        return (1.0 if isnan(ttft) else ttft), (1.0 if isnan(tpot) else tpot)

    def justified(self, kind: int, now_s: float) -> bool:
        """True if a replica of this kind has just been measured idle."""
        return min(each.newest_s for each in self._idle[kind]) > now_s - JUSTIFIED_S

    def limits(self, now_s: float) -> FloatArray:
        """Least and most of TTFT / prior, and of TPOT / prior, f8[4, kinds + 1].

        A column for an idle replica of each kind, and the last for all that are not idle.
        """
        if now_s >= self._until_s:
            self._refresh(now_s)
        return self._limits

    def alone(
        self, now_s: float, kind: int, prior: tuple[float, float], measured: tuple[float, float]
    ) -> None:
        """TTFT and TPOT of a request that had a replica to itself; NaN for what it shared."""
        for ratio, prior_s, measured_s in zip(self._idle[kind], prior, measured, strict=True):
            ratio.observe(now_s, prior_s, measured_s)
        self._refresh(now_s)

    def outcome(self, now_s: float, prior: tuple[float, float], measured: tuple[float, float]) -> None:
        """TTFT and TPOT of any request that was predicted; NaN where unknown."""
        for ratios, prior_s, measured_s in zip(self._ratios, prior, measured, strict=True):
            ratios.observe(prior_s, measured_s)
        self.freshness.outcome(now_s)
        self._seen += 1
        if self._seen % REFRESHED == 0:
            self._refresh(now_s)

    def _refresh(self, now_s: float) -> None:
        limits, self.contradicts = self._limits, False
        limits[:, -1] = [*self._ratios[0].bounds(), *self._ratios[1].bounds(least=LASTING)]
        for kind, ratios in enumerate(self._idle):
            limits[:, kind] = limits[:, -1]
            for row, each, spread in zip((0, 2), ratios, (IDLE_TTFT, IDLE_TPOT), strict=True):
                ratio = each.at(now_s)
                if not isnan(ratio):
                    limits[row : row + 2, kind] = ratio / spread, ratio * spread
                    self.contradicts |= not 1.0 / spread <= ratio <= spread
        newest_s = (each.newest_s + FRESH_S for pair in self._idle for each in pair)
        self._until_s = min((until_s for until_s in newest_s if until_s > now_s), default=inf)
