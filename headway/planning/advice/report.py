"""Rows of the ledger as documents: windows with money, and the course of both fleets.

Of a dry run the fleet that stood there is real and the planned one replayed. Of a planner that acts (`acted`)
the planned one is real, and the one that stood there before is replayed.
"""

from collections.abc import Sequence
from itertools import groupby
from math import isnan
from typing import Any

from headway.planning.advice.ledger import Row, total
from headway.planning.advice.summary import Estimate, summarise
from headway.planning.records import AdvicePoint

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
