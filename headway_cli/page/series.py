"""Columns over time from a report: one value per interval, or per change of the fleet.

A page with more intervals than `MOST_POINTS` becomes slow, so consecutive ones are merged: requests add up,
attainment is weighted by requests, and of latencies the worst is kept, so that no peak disappears.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from headway.simulation.report import Interval, PoolSeries, SimulationReport

Floats = NDArray[np.float64]

MOST_POINTS = 2000
LATENCY_LINES = ("mean", "p50", "p95", "p99")
MINUTES_FROM_S = 120.0
HOURS_FROM_S = 3 * 3600.0
DAYS_FROM_S = 3 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeUnit:
    """The unit of the time axis."""

    name: str
    seconds: float


def time_unit(span_s: float) -> TimeUnit:
    """Seconds, minutes, hours or days, by the length of the simulation."""
    if span_s >= DAYS_FROM_S:
        return TimeUnit(name="days", seconds=86400.0)
    if span_s >= HOURS_FROM_S:
        return TimeUnit(name="hours", seconds=3600.0)
    if span_s >= MINUTES_FROM_S:
        return TimeUnit(name="minutes", seconds=60.0)
    return TimeUnit(name="seconds", seconds=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalColumns:
    """One row per interval (or per group of merged ones); NaN where nothing was measured.

    `forecast_rps` is the load that was forecast for the interval after the row's: it is due from `end_s` on.
    `latencies` maps `ttft_s` and `itl_s` to one column per line.
    """

    merged: int
    start_s: Floats
    end_s: Floats
    requests: Floats
    forecast: Floats
    attainment: Floats
    latencies: Mapping[str, Mapping[str, Floats]]

    @property
    def middle_s(self) -> Floats:
        """The middle of each interval."""
        return (self.start_s + self.end_s) / 2.0

    @property
    def load_rps(self) -> Floats:
        """Requests per second."""
        return self.requests / np.maximum(self.end_s - self.start_s, 1e-9)

    @property
    def forecast_rps(self) -> Floats:
        """Requests per second expected in the interval that begins at `end_s`."""
        return self.forecast / np.maximum(self.end_s - self.start_s, 1e-9)


def steps(columns: IntervalColumns, values: Floats, *, shift: bool = False) -> tuple[Floats, Floats]:
    """A step line over the intervals, or over those that follow them."""
    if len(values) == 0:
        return np.zeros(0), np.zeros(0)
    edges = columns.end_s if shift else columns.start_s
    last = columns.end_s[-1] + (columns.end_s[-1] - columns.start_s[-1] if shift else 0.0)
    return np.append(edges, last), np.append(values, values[-1])


def interval_columns(intervals: Sequence[Interval]) -> IntervalColumns:
    """The columns of a report's intervals."""
    merged = -(-len(intervals) // MOST_POINTS) or 1
    groups = [intervals[at : at + merged] for at in range(0, len(intervals), merged)]
    return IntervalColumns(
        merged=merged,
        start_s=np.array([group[0].start_s for group in groups], np.float64),
        end_s=np.array([group[-1].end_s for group in groups], np.float64),
        requests=_column(sum, attrgetter("requests"), groups),
        forecast=_column(sum, lambda row: row.forecast.requests if row.forecast else None, groups),
        attainment=np.array([_weighted(group) for group in groups], np.float64),
        latencies={
            name: {line: _column(max, attrgetter(f"{name}.{line}"), groups) for line in LATENCY_LINES}
            for name in ("ttft_s", "itl_s")
        },
    )


def _column(
    merge: Callable[[Iterable[float]], float],
    value: Callable[[Interval], float | None],
    groups: Iterable[Sequence[Interval]],
) -> Floats:
    """What `merge` makes of the known values of each group; NaN where there is none."""
    known = ([found for row in group if (found := value(row)) is not None] for group in groups)
    return np.array([merge(values) if values else np.nan for values in known], np.float64)


def _weighted(group: Sequence[Interval]) -> float:
    known = [(row.attainment, max(1, row.requests)) for row in group if row.attainment is not None]
    total = sum(weight for _, weight in known)
    return sum(share * weight for share, weight in known) / total if total else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolColumns:
    """A pool's counts, each valid from its time on, closed at the end of the simulation."""

    time_s: Floats
    desired: Floats
    starting: Floats
    ready: Floats
    draining: Floats

    @property
    def up(self) -> Floats:
        """Replicas that cost: starting, ready and draining."""
        return self.starting + self.ready + self.draining


def pool_columns(series: PoolSeries, simulated_s: float) -> PoolColumns:
    """The columns of one pool."""
    counts = {name: getattr(series, name) for name in ("desired", "starting", "ready", "draining")}
    times = np.array([*series.time_s, simulated_s], np.float64)
    closed = {name: np.array([*values, values[-1]], np.float64) for name, values in counts.items()}
    return PoolColumns(time_s=times, **closed)


def _pools(report: SimulationReport) -> tuple[Mapping[str, PoolColumns], Floats]:
    """The columns of each pool, and every time at which one of them changes."""
    pools = {role: pool_columns(series, report.simulated_s) for role, series in report.replicas.items()}
    return pools, np.unique(np.concatenate([pool.time_s for pool in pools.values()]))


def gpu_hours(report: SimulationReport) -> tuple[Floats, Floats]:
    """Times, and the GPU-hours spent up to each."""
    pools, times = _pools(report)
    spent = np.zeros(len(times))
    for role, pool in pools.items():
        steps = np.diff(pool.time_s, append=pool.time_s[-1]) * pool.up
        total = np.concatenate([[0.0], np.cumsum(steps)[:-1]]) * report.gpus_per_replica[role] / 3600.0
        spent += np.interp(times, pool.time_s, total)
    return times, spent


def gpus_over_time(report: SimulationReport) -> tuple[Floats, Floats]:
    """Times, and the GPUs that the desired replicas occupy from each on; none after the end."""
    pools, times = _pools(report)
    counts = np.zeros(len(times))
    for role, pool in pools.items():
        at = np.searchsorted(pool.time_s, times, side="right") - 1
        counts += pool.desired[np.maximum(at, 0)] * report.gpus_per_replica[role]
    counts[-1] = 0.0
    return times, counts
