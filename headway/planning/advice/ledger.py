"""The ledger of advice: what both fleets took and served, by interval, and what its rows add up to.

All figures of a row are sums, so rows add up to hours, which they are after two days, and hours to windows.
Rows exist for intervals whose real counts were known; a gap between rows is time of which nothing is said. At
most FINE rows and COARSE hours are kept: at 30 s two days and ten weeks.

`measured` are requests that ended and of which it is known whether they kept their SLO, `stood` and `planned`
the same by replay of the real fleet and of the planned one. `calm_*` are of intervals in which the replay of
the real fleet has long lost few of those that can be kept and that fleet has not changed: only there do
replay and measurement speak of the engine rather than of a queue.

What rows add up to, with its spread:

    saved share       1 − Σ planned GPU-seconds / Σ GPU-seconds of the real fleet
                      with acted rows, whose real fleet is the plan's, the other way round
    attainment        R_planned · M / R        at most 1

R_planned and R are the shares that replays of the planned and of the real fleet say were in time, M the share
measured; M / R is of calm intervals. What replays do not know (a network, a slow host) so
counts for the planned fleet as it does for the real one.

The spread is that of a block bootstrap (Künsch, 1989): the rows are put together to blocks of at least
BLOCK_S, blocks are drawn with replacement RESAMPLES times, and the ratios are those of sums. 5 % of the
outcomes lie below the range and 5 % above: so far the figure hangs on which traffic came. Wider it becomes by
what is not known besides:

    a start-up that is a guess     half of it to twice as long
    replays that are off           from R_planned alone to the figure carried over

With fewer than LEAST blocks there is no range.

As documents rows are windows with money, and the course of both fleets. Of a dry run the fleet that stood
there is real and the planned one replayed. Of a planner that acts (`acted`) the planned one is real, and the
one that stood there before is replayed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from math import isnan
from operator import attrgetter
from typing import Any

import numpy as np

from headway.planning.records import AdvicePoint
from headway.planning.types import NAN, FloatArray, Role

HOUR_S = 3600.0
FINE, COARSE = 5760, 1680

SUMS = (
    "seconds", "requests", "stood_gpu_s", "planned_gpu_s", "starting_gpu_s", "measured", "measured_met",
    "stood", "stood_met", "planned", "planned_met",
    "calm_measured", "calm_measured_met", "calm_replayed", "calm_replayed_met",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One interval, or several: GPU-seconds, numbers of requests, replica-seconds ready by role.

    `seconds` is the time covered, `starting_gpu_s` the part of `planned_gpu_s` that went into starts.
    """

    start_s: float
    end_s: float
    seconds: float
    requests: float = 0.0
    stood_gpu_s: float = 0.0
    planned_gpu_s: float = 0.0
    starting_gpu_s: float = 0.0
    measured: float = 0.0
    measured_met: float = 0.0
    stood: float = 0.0
    stood_met: float = 0.0
    planned: float = 0.0
    planned_met: float = 0.0
    calm_measured: float = 0.0
    calm_measured_met: float = 0.0
    calm_replayed: float = 0.0
    calm_replayed_met: float = 0.0
    stood_replica_s: Mapping[Role, float] = field(default_factory=dict)
    planned_replica_s: Mapping[Role, float] = field(default_factory=dict)

    def plus(self, later: "Row") -> "Row":
        """Both together."""
        sums = {name: getattr(self, name) + getattr(later, name) for name in SUMS}
        return Row(
            start_s=min(self.start_s, later.start_s),
            end_s=max(self.end_s, later.end_s),
            stood_replica_s=_added(self.stood_replica_s, later.stood_replica_s),
            planned_replica_s=_added(self.planned_replica_s, later.planned_replica_s),
            **sums,
        )

    def dump(self) -> dict[str, Any]:
        """JSON data."""
        replicas = (self.stood_replica_s, self.planned_replica_s)
        return {
            "t": [round(self.start_s, 3), round(self.end_s, 3)],
            "sums": [round(getattr(self, name), 3) for name in SUMS],
            "replicas": [{str(role): round(each, 3) for role, each in part.items()} for part in replicas],
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> "Row":
        """What `dump` wrote. ValueError, KeyError or TypeError for something else."""
        (start_s, end_s), sums = data["t"], [float(value) for value in data["sums"]]
        stood, planned = ({Role(role): float(n) for role, n in part.items()} for part in data["replicas"])
        return cls(
            start_s=float(start_s),
            end_s=float(end_s),
            stood_replica_s=stood,
            planned_replica_s=planned,
            **dict(zip(SUMS, sums, strict=True)),
        )


assert {item.name for item in fields(Row)} >= set(SUMS)


def _added(one: Mapping[Role, float], other: Mapping[Role, float]) -> dict[Role, float]:
    return {role: one.get(role, 0.0) + other.get(role, 0.0) for role in Role if role in one or role in other}


def total(rows: Iterable[Row]) -> Row | None:
    """All together; None of none."""
    found: Row | None = None
    for row in rows:
        found = row if found is None else found.plus(row)
    return found


def hour_of(row: Row) -> int:
    """The hour that a row ends in, since 1970."""
    return int(row.end_s // HOUR_S)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Rows of single intervals, and before those of whole hours, in order of time."""

    hours: Sequence[Row] = ()
    rows: Sequence[Row] = ()

    def add(self, row: Row, fine: int = FINE) -> "Ledger":
        """With one more interval; the oldest hour is put together once there are more than `fine`."""
        rows = [*self.rows, row]
        if len(rows) <= fine:
            return replace(self, rows=rows)
        first = hour_of(rows[0])
        count = next((n for n, each in enumerate(rows) if hour_of(each) != first), len(rows) - 1) or 1
        summed = total(rows[:count])
        assert summed is not None
        hours = list(self.hours)
        if hours and hour_of(hours[-1]) == first:
            summed = hours.pop().plus(summed)
        return Ledger(hours=[*hours, summed][-COARSE:], rows=rows[count:])

    def since(self, at_s: float) -> list[Row]:
        """Rows of which the larger part is later, hours first."""
        return [row for row in (*self.hours, *self.rows) if (row.start_s + row.end_s) / 2.0 >= at_s]


BLOCK_S = 600.0
LEAST = 4
RESAMPLES = 400
RANGE = (0.05, 0.95)
CALM = 0.97
"""Share of the requests that can be kept which the replay of the real fleet keeps in a calm interval."""
_SUMS_OF = attrgetter(*SUMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure and its range; NaN where not known."""

    value: float
    low: float = NAN
    high: float = NAN

    def times(self, factor: float) -> "Estimate":
        """Scaled."""
        return Estimate(value=self.value * factor, low=self.low * factor, high=self.high * factor)

    def covering(self, low: float, high: float) -> "Estimate":
        """With a range, where it has one, that reaches to these as well."""
        if isnan(self.low):
            return self
        return Estimate(value=self.value, low=min(self.low, low), high=max(self.high, high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A window: sums of both fleets, and what the plan would have saved and kept.

    `seconds` of the window are covered. `stood_attainment` is measured, or where nothing was, by replay
    (`is_measured` False); `replay_error` is the measured share less the replayed one in calm intervals.
    `saved_share` is of `base_gpu_hours`, those of the fleet that nothing is changed of.
    """

    start_s: float
    end_s: float
    seconds: float
    requests: float
    stood_gpu_hours: float
    planned_gpu_hours: float
    base_gpu_hours: float
    stood_attainment: float
    is_measured: bool
    planned_attainment: Estimate
    saved_share: Estimate
    replay_error: float

    @property
    def saved_gpu_hours(self) -> Estimate:
        """GPU-hours saved."""
        return self.saved_share.times(self.base_gpu_hours)


def summarise(
    rows: Sequence[Row], *, start_up_known: bool, acted: bool = False, seed: int = 0
) -> Summary | None:
    """The window that these rows make up; None without rows.

    `acted`: the real fleet is that of a plan that acts, and the one beside it has not been there.
    """
    if not rows:
        return None
    columns = _columns(rows)
    sums = {name: column.sum(keepdims=True) for name, column in columns.items()}
    drawn = _resampled(_blocks(columns), seed)
    whole = {name: float(column[0]) for name, column in sums.items()}
    unsure = 0.0 if start_up_known else whole["starting_gpu_s"] / max(whole["stood_gpu_s"], 1e-9)
    taken, base = ("stood_gpu_s", "planned_gpu_s") if acted else ("planned_gpu_s", "stood_gpu_s")
    saved = _estimate(*(1.0 - _shares(each[taken], each[base]) for each in (sums, drawn)))
    replayed = _share(whole["planned_met"], whole["planned"])
    is_measured = whole["measured"] > 0.0
    stood = "measured" if is_measured else "stood"
    return Summary(
        start_s=min(row.start_s for row in rows),
        end_s=max(row.end_s for row in rows),
        seconds=whole["seconds"],
        requests=whole["requests"],
        stood_gpu_hours=whole["stood_gpu_s"] / HOUR_S,
        planned_gpu_hours=whole["planned_gpu_s"] / HOUR_S,
        base_gpu_hours=whole[base] / HOUR_S,
        stood_attainment=_share(whole[f"{stood}_met"], whole[stood]),
        is_measured=is_measured,
        planned_attainment=_estimate(_attained(sums), _attained(drawn)).covering(replayed, replayed),
        saved_share=saved.covering(saved.low - unsure, saved.high + unsure / 2.0),
        replay_error=_share(whole["calm_measured_met"], whole["calm_measured"])
        - _share(whole["calm_replayed_met"], whole["calm_replayed"]),
    )


Columns = Mapping[str, FloatArray]


def _columns(rows: Sequence[Row]) -> Columns:
    values = np.array([_SUMS_OF(row) for row in rows], np.float64)
    return dict(zip(SUMS, values.T, strict=True))


def _blocks(columns: Columns) -> Columns:
    """Rows put together, in order, to blocks of at least BLOCK_S covered seconds, as many as there are."""
    ends_s = np.cumsum(columns["seconds"])
    count = max(1, int(ends_s[-1] / BLOCK_S))
    # A row belongs where its middle lies; a long row, as of an hour, is a block of its own.
    place = ((ends_s - columns["seconds"] / 2.0) / max(ends_s[-1], 1e-9) * count).astype(np.int64)
    _, place = np.unique(np.minimum(place, count - 1), return_inverse=True)
    return {name: np.bincount(place, weights=column).astype(np.float64) for name, column in columns.items()}


def _resampled(of: Columns, seed: int) -> Columns:
    """Sums of blocks drawn with replacement, f8[RESAMPLES] each; none of fewer than LEAST blocks."""
    count = len(of["seconds"])
    if count < LEAST:
        return {name: np.zeros(0) for name in of}
    generator, sums = np.random.default_rng(seed), []
    matrix = np.stack(list(of.values()), axis=1)
    for _ in range(RESAMPLES):
        drawn = np.bincount(generator.integers(0, count, count), minlength=count)
        sums.append(drawn @ matrix)
    return dict(zip(of, np.array(sums).T, strict=True))


def _attained(sums: Columns) -> FloatArray:
    replayed = _shares(sums["planned_met"], sums["planned"])
    measured = _shares(sums["calm_measured_met"], sums["calm_measured"])
    expected = _shares(sums["calm_replayed_met"], sums["calm_replayed"])
    kept = measured / np.where(expected > 0.0, expected, np.nan)
    # Nothing to compare with: replays are believed.
    return np.minimum(1.0, replayed * np.where(np.isnan(kept), 1.0, kept))


def _estimate(figure: FloatArray, outcomes: FloatArray) -> Estimate:
    """The figure f8[1] with the range of its outcomes."""
    value, known = float(figure[0]), outcomes[np.isfinite(outcomes)]
    if len(known) == 0 or isnan(value):
        return Estimate(value=value)
    low, high = (float(each) for each in np.quantile(known, RANGE))
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def _shares(part: FloatArray, whole: FloatArray) -> FloatArray:
    shares: FloatArray = np.where(whole > 0.0, part / np.where(whole > 0.0, whole, 1.0), np.nan)
    return shares


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else NAN


MOST_POINTS = 240


def window(
    rows: Sequence[Row], *, price: float | None, start_up_known: bool, acted: bool = False
) -> dict[str, Any] | None:
    """The data of an `AdviceWindow`; None without rows. `price` is that of a GPU-hour."""
    found = summarise(rows, start_up_known=start_up_known, acted=acted)
    if found is None:
        return None
    saved = found.saved_gpu_hours
    real = _fleet(found.stood_gpu_hours, Estimate(value=found.stood_attainment), price)
    replayed = _fleet(found.planned_gpu_hours, found.planned_attainment, price)
    return {
        "start_at": found.start_s,
        "end_at": found.end_s,
        "covered_s": found.seconds,
        "requests": found.requests,
        "stood": replayed if acted else real,
        "planned": real if acted else replayed,
        "saved_gpu_hours": _spread(saved),
        "saved_share": _spread(found.saved_share),
        "saved_cost": None if price is None else _spread(saved.times(price)),
        "measured": found.is_measured,
        "replay_error": _known(found.replay_error),
    }


def _fleet(gpu_hours: float, attainment: Estimate, price: float | None) -> dict[str, Any]:
    cost = None if price is None else gpu_hours * price
    return {"gpu_hours": gpu_hours, "attainment": _spread(attainment), "cost": cost}


def _spread(estimate: Estimate) -> dict[str, float | None]:
    return {name: _known(getattr(estimate, name)) for name in ("value", "low", "high")}


def points(rows: Sequence[Row], *, acted: bool = False) -> tuple[AdvicePoint, ...]:
    """The course, in at most MOST_POINTS points of about the same length."""
    if not rows:
        return ()
    begins_s = rows[0].start_s
    span_s = max(rows[-1].end_s - begins_s, 1e-9) / MOST_POINTS
    parts = groupby(rows, lambda row: int(((row.start_s + row.end_s) / 2.0 - begins_s) / span_s))
    summed = (total(part) for _, part in parts)
    return tuple(point(part, acted=acted) for part in summed if part is not None)


def point(row: Row, *, acted: bool = False) -> AdvicePoint:
    """One row as means."""
    seconds = max(row.seconds, 1e-9)
    met = (row.measured_met, row.measured) if row.measured else (row.stood_met, row.stood)
    real: dict[str, Any] = {
        "gpus": row.stood_gpu_s / seconds,
        "attainment": met[0] / met[1] if met[1] else None,
        "replicas": {role: each / seconds for role, each in row.stood_replica_s.items()},
    }
    replayed: dict[str, Any] = {
        "gpus": row.planned_gpu_s / seconds,
        "attainment": row.planned_met / row.planned if row.planned else None,
        "replicas": {role: each / seconds for role, each in row.planned_replica_s.items()},
    }
    stood, planned = (replayed, real) if acted else (real, replayed)
    return AdvicePoint(
        start_at=row.start_s,
        end_at=row.end_s,
        requests=row.requests,
        **{f"stood_{name}": value for name, value in stood.items()},
        **{f"planned_{name}": value for name, value in planned.items()},
    )


def _known(value: float) -> float | None:
    return None if isnan(value) else value
