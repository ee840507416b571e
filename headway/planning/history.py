"""The decision log as columns, for pictures: one row a decision, small enough to send a thousand at once.

    {"id": [6, 7], "at": [...], "pools": {"decode": {"ready": [3, 3], ...}}, "classes": {"chat": {...}}, ...}

Times are seconds since 1970, latencies seconds; what is not known is null. All lists are equally long; a pool
or an SLO class that a decision does not know has nulls there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headway.planning.record_figures import (
    expected_replicas,
    held_replicas,
    needed_replicas,
    reason_codes,
    stood_already,
)
from headway.planning.records import ClassFigures, DecisionRecord, MeasuredFigures


def weight(measured: MeasuredFigures) -> float | None:
    """The requests that an interval's attainment stands for, as `attainment.total` weighs it: those that
    completed or arrived, whichever are more, since nothing completes in an outage.
    """
    counts = (measured.completed, measured.requests)
    return max((count for count in counts if count is not None), default=None)


Column = Callable[[DecisionRecord], Any]

COLUMNS: Mapping[str, Column] = {
    "id": lambda record: record.id,
    "at": lambda record: record.created_at,
    "start": lambda record: record.interval.start_s,
    "end": lambda record: record.interval.end_s,
    "requests": lambda record: record.measured.requests,
    "attainment": lambda record: record.measured.attainment,
    "judged": lambda record: weight(record.measured),
    "health": lambda record: record.measured.health.status,
    "ttft_p50": lambda record: record.measured.ttft_s.p50,
    "ttft_p95": lambda record: record.measured.ttft_s.p95,
    "itl_p50": lambda record: record.measured.itl_s.p50,
    "itl_p95": lambda record: record.measured.itl_s.p95,
    "ttft_mean": lambda record: record.measured.ttft_s.mean,
    "queue_mean": lambda record: record.measured.queue_s,
    "isl": lambda record: record.measured.isl_tokens,
    "osl": lambda record: record.measured.osl_tokens,
    "cached": lambda record: record.measured.cached_tokens,
    "forecast": lambda record: None if record.forecast is None else record.forecast.requests,
    "forecast_low": lambda record: None if record.forecast is None else record.forecast.requests_low,
    "forecast_high": lambda record: None if record.forecast is None else record.forecast.requests_high,
    "status": lambda record: record.connector.status,
    "dry_run": lambda record: record.dry_run,
    "reached_at": lambda record: record.reached_at,
    "already": stood_already,
    "summary": lambda record: record.summary,
    "stood_gpus": lambda record: None if record.advice is None else record.advice.stood_gpus,
    "planned_gpus": lambda record: None if record.advice is None else record.advice.planned_gpus,
}
STATES = ("desired", "starting", "ready", "draining")
LOADS = ("running", "waiting", "kv_usage")
OF_CLASS: Mapping[str, Callable[[ClassFigures], Any]] = {
    "requests": lambda found: found.requests,
    "judged": lambda found: found.judged,
    "attainment": lambda found: found.attainment,
    "ttft_p95": lambda found: found.ttft_s.p95,
    "itl_p95": lambda found: found.itl_s.p95,
}


def history(records: Sequence[DecisionRecord]) -> dict[str, Any]:
    """The columns of `records`, oldest first."""
    roles = sorted({role.value for record in records for role in (*record.pools, *record.targets)})
    found: dict[str, Any] = {name: [read(record) for record in records] for name, read in COLUMNS.items()}
    found["pools"] = {role: _columns(rows) for role, rows in _by_role(records, roles).items()}
    found["classes"] = _by_class(records)
    return found


def _by_class(records: Sequence[DecisionRecord]) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    names = dict.fromkeys(name for record in records for name in record.measured.classes)
    unknown = ClassFigures()
    return {
        name: {
            column: [read(record.measured.classes.get(name, unknown)) for record in records]
            for column, read in OF_CLASS.items()
        }
        for name in names
    }


def _by_role(
    records: Sequence[DecisionRecord], roles: Iterable[str]
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    parts = [_pools(record) for record in records]
    return {role: [part.get(role, {}) for part in parts] for role in roles}


def _pools(record: DecisionRecord) -> Mapping[str, Mapping[str, Any]]:
    """Of each pool: counts and load as observed, the target, and what it was decided from."""
    expected, needed, held = expected_replicas(record), needed_replicas(record), held_replicas(record)
    reasons = {role.value: code for role, code in reason_codes(record).items()}
    found: dict[str, dict[str, Any]] = {role.value: {} for role in (*record.pools, *record.targets)}
    for role, pool in record.pools.items():
        found[role.value] |= {state: getattr(pool, state) for state in STATES}
    for role, load in record.measured.load.items():
        if role.value in found:
            found[role.value] |= {name: getattr(load, name) for name in LOADS}
    for role, target in record.targets.items():
        found[role.value] |= {
            "target": target,
            "before": record.previous_targets.get(role),
            "expected": expected.get(role.value),
            "held": held.get(role.value),
            "needed": needed.get(role.value),
            "reason": reasons.get(role.value),
        }
    return found


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = (*STATES, *LOADS, "target", "before", "expected", "held", "needed", "reason")
    return {name: [row.get(name) for row in rows] for name in names}
