"""Rows of the ledger, added up: savings and attainment with their spread, and the documents of both. Pure.

Rows of the ledger → savings and attainment with their spread. Pure.

    saved share       1 − Σ planned GPU-seconds / Σ GPU-seconds of the real fleet
                      with acted rows, whose real fleet is the plan's, the other way round
    attainment        R_planned · M / R        at most 1

R_planned and R are the shares that replays of the planned and of the real fleet say were in time, M the share
measured; M / R is of calm intervals (see `ledger`). What replays do not know (a network, a slow host) so
counts for the planned fleet as it does for the real one.

The spread is that of a block bootstrap (Künsch, 1989): the rows are put together to blocks of at least
BLOCK_S, blocks are drawn with replacement RESAMPLES times, and the ratios are those of sums. 5 % of the
outcomes lie below the range and 5 % above: so far the figure hangs on which traffic came. Wider it becomes by
what is not known besides:

    a start-up that is a guess     half of it to twice as long
    replays that are off           from R_planned alone to the figure carried over

With fewer than LEAST blocks there is no range.

Rows of the ledger as documents: windows with money, and the course of both fleets.

Of a dry run the fleet that stood there is real and the planned one replayed. Of a planner that acts (`acted`)
the planned one is real, and the one that stood there before is replayed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isnan
from operator import attrgetter
from typing import Any

import numpy as np

from headway.planning.advice.ledger import HOUR_S, SUMS, Row, total
from headway.planning.records import AdvicePoint
from headway.planning.types import NAN, FloatArray

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
