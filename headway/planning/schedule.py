"""Bounds of pools by the time of the day and the week: `pools.ROLE.schedule`.

Theory. A window holds at an instant where the wall clock of its time zone reads one of its times. So days on
which clocks change need no rule: what the clock skips is in no window, what it reads twice is in one twice.
With the bounds of the last window in the list that holds at t, or else the pool's own, as min(t) and max(t)

    fewest(t)   max of min(u) for u in [t, t + start + interval]
    most(t)     max(max(t), fewest(t))

A minimum counts ahead of its window by the seconds that a replica takes to start, and by an interval, since
the next decision might be too late. A maximum counts from the beginning of its window. Where a fleet's budget
does not hold the minimums of all its deployments, those of windows give way (`deciding.fewer_by_schedule`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, tzinfo
from math import floor

from headway.config.engine import DAYS, PoolSettings, ScheduleWindow
from headway.planning.types import PoolLimits, Role

MINUTE_S = 60.0
"""Windows begin and end on whole minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledLimits(PoolLimits):
    """Limits at one time. `min_from` and `max_from` are when the windows begin that set them, empty where the
    pool's own count.
    """

    min_from: str = ""
    max_from: str = ""

    def words(self, count: int | None = None) -> str:
        """What windows set, as operators read it: of all bounds, or of those that `count` is at."""
        bounds = (("min", self.min_replicas, self.min_from), ("max", self.max_replicas, self.max_from))
        said = dict[str, list[str]]()
        for name, bound, at in bounds:
            if at and count in (None, bound):
                said.setdefault(at, []).append(f"{name} {bound}")
        return "; ".join(f"{' and '.join(each)} by schedule, from {at}" for at, each in said.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The windows of all pools.

    `epoch_s` is second 0 of the observations' clock, in seconds since 1970. A decision follows another after
    `interval_s`; a replica takes `start_s` to start where that has not been learnt.
    """

    pools: Mapping[Role, tuple[PoolSettings, PoolLimits]]
    zone: tzinfo
    interval_s: float
    start_s: float
    epoch_s: float = 0.0

    def at(self, now_s: float, starts_s: Mapping[Role, float]) -> Mapping[Role, PoolLimits]:
        """The limits in force; `starts_s` is how long replicas take to start, where that is known."""
        return {
            role: self._limits(*each, now_s, starts_s.get(role, self.start_s))
            if each[0].schedule
            else each[1]
            for role, each in self.pools.items()
        }

    def widest(self) -> Mapping[Role, PoolLimits]:
        """The highest minimum and the highest maximum of each pool."""
        return {role: _widest(*each) for role, each in self.pools.items()}

    def _limits(self, pool: PoolSettings, own: PoolLimits, now_s: float, start_s: float) -> PoolLimits:
        unix_s = self.epoch_s + now_s
        first, *later = (
            _bounds(pool, datetime.fromtimestamp(at_s, self.zone))
            for at_s in _instants(unix_s, unix_s + start_s + self.interval_s)
        )
        fewest = max((first, *later), key=lambda each: each.min_replicas)
        ahead = fewest.min_replicas > first.max_replicas
        return ScheduledLimits(
            min_replicas=fewest.min_replicas,
            max_replicas=fewest.min_replicas if ahead else first.max_replicas,
            gpus_per_replica=own.gpus_per_replica,
            sleepers=own.sleepers,
            min_from=fewest.min_from,
            max_from="" if ahead else first.max_from,
        )


def contains(window: ScheduleWindow, wall: datetime) -> bool:
    """True where `wall` is in the window, which belongs to the day on which it begins."""
    time, today = f"{wall:%H:%M}", wall.weekday()
    if window.begins < window.ends:
        return DAYS[today] in window.days and window.begins <= time < window.ends
    # Past midnight.
    tonight, last_night = window.begins <= time, time < window.ends
    return (tonight and DAYS[today] in window.days) or (last_night and DAYS[today - 1] in window.days)


def _bounds(pool: PoolSettings, wall: datetime) -> ScheduledLimits:
    """The bounds when wall clocks read `wall`."""
    window = next((each for each in reversed(pool.schedule) if contains(each, wall)), None)
    if window is None:
        return ScheduledLimits(min_replicas=pool.min_replicas, max_replicas=pool.max_replicas)
    least, most = pool.bounds_in(window)
    return ScheduledLimits(
        min_replicas=least,
        max_replicas=most,
        min_from="" if window.min_replicas is None else window.begins,
        max_from="" if window.max_replicas is None else window.begins,
    )


def _instants(first_s: float, last_s: float) -> Iterator[float]:
    """The first, and the whole minutes after it until the last."""
    yield first_s
    for minute in range(floor(first_s / MINUTE_S) + 1, floor(last_s / MINUTE_S) + 1):
        yield minute * MINUTE_S


def _widest(pool: PoolSettings, own: PoolLimits) -> PoolLimits:
    every = [(own.min_replicas, own.max_replicas), *map(pool.bounds_in, pool.schedule)]
    return PoolLimits(
        min_replicas=max(least for least, _ in every),
        max_replicas=max(most for _, most in every),
        gpus_per_replica=own.gpus_per_replica,
        sleepers=own.sleepers,
    )
