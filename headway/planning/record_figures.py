"""Figures read off decision records: why a pool has its target, what was needed, how forecasts fared.

The decision log as columns, for pictures: one row a decision, small enough to send a thousand at once.

    {"id": [6, 7], "at": [...], "pools": {"decode": {"ready": [3, 3], ...}}, "classes": {"chat": {...}}, ...}

Times are seconds since 1970, latencies seconds; what is not known is null. All lists are equally long; a pool
or an SLO class that a decision does not know has nulls there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from math import ceil
from typing import Any

from headway.config import Role
from headway.planning.documents import LastDecision
from headway.planning.records import (
    COUNTS,
    DRY_RUN,
    PENDING,
    ClassFigures,
    DecisionRecord,
    MeasuredFigures,
)

NO_DATA, LIMITED, QUEUE, MORE_LOAD = "no_data", "limited", "queue", "more_load"
LESS_LOAD, HELD, UNCHANGED = "less_load", "held", "unchanged"
FORECASTS = 60
"""As many of the last forecasts are judged."""
REASONS = (NO_DATA, LIMITED, QUEUE, MORE_LOAD, LESS_LOAD, HELD, UNCHANGED)
"""Codes of `reason_codes`."""


def reason_codes(record: DecisionRecord) -> Mapping[Role, str]:
    """Why each pool has its target, as one of REASONS; the first that fits.

    `no_data`: the interval could not be planned from. `limited`: a limit or the budget cut the targets, and
    this pool did not shrink. `queue`: replicas were added for requests that wait. `held`: fewer would do, but
    are kept for now. Policies without `needs` have only `more_load`, `less_load` and `unchanged`.
    """
    return {role: _reason_code(record, role) for role in record.targets}


def _reason_code(record: DecisionRecord, role: Role) -> str:
    target, before = record.targets[role], record.previous_targets.get(role, record.targets[role])
    need = record.reasons.get("needs", {}).get(role.value) or {}
    hold = record.reasons.get("holds", {}).get(role.value) or {}
    if not record.measured.health.plannable:
        return NO_DATA
    if record.reasons.get("limits") and target >= before:
        return LIMITED
    if target > before:
        return QUEUE if need.get("extra") else MORE_LOAD
    if target < before:
        return LESS_LOAD
    return HELD if hold.get("target", 0) > need.get("replicas", target) else UNCHANGED


def changes(record: DecisionRecord) -> bool:
    """True where a pool's target is another one than before."""
    return any(count != record.previous_targets.get(role, count) for role, count in record.targets.items())


def stood_already(record: DecisionRecord) -> bool:
    """True where a decision changed nothing, and every pool had its replicas ready when it was made."""
    pools = record.pools
    stood = all(
        role in pools and pools[role].ready == count and not pools[role].starting
        for role, count in record.targets.items()
    )
    return stood and not changes(record) and record.connector.status != PENDING


def expected_replicas(record: DecisionRecord) -> dict[str, float]:
    """The expected work by role, in replicas; empty where the policy does not give it."""
    needs: Mapping[str, Mapping[str, Any]] = record.reasons.get("needs", {})
    found = {role: (need.get("option") or {}).get("expected") for role, need in needs.items()}
    return {role: expected for role, expected in found.items() if expected is not None}


def held_replicas(record: DecisionRecord) -> dict[str, float]:
    """The same times the safety factor: the work for which the policy holds replicas."""
    needs: Mapping[str, Mapping[str, Any]] = record.reasons.get("needs", {})
    options = {role: need.get("option") or {} for role, need in needs.items()}
    return {
        role: option["expected"] * option["factor"]
        for role, option in options.items()
        if option.get("expected") is not None and option.get("factor") is not None
    }


def needed_replicas(record: DecisionRecord) -> dict[str, int]:
    """The replicas by role without limits; empty where the policy does not give them."""
    said: Mapping[str, Mapping[str, Any]] = {
        **record.reasons.get("requirement", {}),
        **record.reasons.get("needs", {}),
    }
    found = {role: each.get("replicas") for role, each in said.items()}
    return {role: ceil(replicas) for role, replicas in found.items() if replicas is not None}


def beyond_reach(record: DecisionRecord) -> float | None:
    """The share of the last requests whose SLO is unreachable; None where the policy does not give it."""
    shares = [need.get("infeasible") for need in record.reasons.get("needs", {}).values()]
    return max((share for share in shares if share is not None), default=None)


def missed_since(records: Sequence[DecisionRecord], target: float) -> float | None:
    """Since when the intervals of `records`, oldest first, are below target; None if the last is not.

    Intervals in which nothing was judged count as those before them.
    """
    since_s: float | None = None
    for record in reversed(records):
        attained = record.measured.attainment
        if attained is not None and attained >= target:
            break
        if attained is not None:
            since_s = record.interval.start_s
    return since_s


WINDOWS_S: Mapping[str, float] = {"5m": 300.0, "1h": 3600.0}
"""The windows of the verdict, as those of the fastest alert (examples/observability/rules.yaml)."""


def judged_in(records: Sequence[DecisionRecord], of_class: str | None = None) -> dict[str, dict[str, float]]:
    """`judged` requests, and of these `missed`, in the windows that end with the last of `records`."""
    found = {name: {"judged": 0.0, "missed": 0.0} for name in WINDOWS_S}
    for record in reversed(records):
        age_s = records[-1].interval.end_s - record.interval.end_s
        part = record.measured if of_class is None else record.measured.classes.get(of_class)
        if age_s >= max(WINDOWS_S.values()):
            break
        if part is not None and part.judged is not None and part.attainment is not None:
            for name in (name for name, window_s in WINDOWS_S.items() if age_s < window_s):
                found[name]["judged"] += part.judged
                found[name]["missed"] += part.judged * (1.0 - part.attainment)
    return found


def unended_since(records: Sequence[DecisionRecord]) -> float | None:
    """The begin of the latest intervals of `records`, oldest first, in which requests were under way and none
    ended; None if one did in the last.
    """
    held = list(takewhile(lambda record: record.measured.unended, reversed(records)))
    return held[-1].interval.start_s if held else None


def forecast_error(records: Sequence[DecisionRecord], interval_s: float) -> float | None:
    """The error of the last `FORECASTS` forecasts of requests: Σ |forecast − came| / Σ came.

    What came is what the next record measured, if its interval begins where the forecast's decision looked
    back to. A forecast is of `interval_s`: a shorter interval got its share. None where no forecast can be
    judged, or nothing came. `records` are ordered, the oldest first.
    """
    errors, came = 0.0, 0.0
    for made, after in pairwise(records[-FORECASTS - 1 :]):
        expected = None if made.forecast is None else made.forecast.requests
        found, span_s = after.measured.requests, after.interval.end_s - after.interval.start_s
        gap_s = after.interval.start_s - made.interval.end_s
        if expected is not None and found is not None and abs(gap_s) < 0.1 * interval_s:
            errors, came = errors + abs(expected * span_s / interval_s - found), came + found
    return errors / came if came else None


def weight(measured: MeasuredFigures) -> float | None:
    """The requests that an interval's attainment stands for, as `attainment.total` weighs it: those that
    completed or arrived, whichever are more, since nothing completes in an outage.
    """
    arrived = None if measured.requests is None else measured.requests + (measured.repeats or 0.0)
    counts = (measured.completed, arrived)
    return max((count for count in counts if count is not None), default=None)


def reached_text(decision: LastDecision | DecisionRecord) -> str:
    """Whether and when all replicas were ready; empty for a dry run."""
    if isinstance(decision, DecisionRecord):
        status, already = decision.connector.status, stood_already(decision)
    else:
        status, already = decision.status, decision.already
    if status == DRY_RUN:
        return ""
    if already:
        return "no change needed"
    if decision.reached_at is None or status == PENDING:
        return "not reached yet"
    return f"reached after {max(decision.reached_at - decision.created_at, 0.0):.1f} s"


def outcome_text(record: DecisionRecord) -> str:
    """What came of a decision: `sent, reached after 20.0 s`."""
    return "dry run" if record.dry_run else f"{record.connector.status}, {reached_text(record)}"


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
    "outcome": outcome_text,
    "summary": lambda record: record.summary,
    "stood_gpus": lambda record: None if record.advice is None else record.advice.stood_gpus,
    "planned_gpus": lambda record: None if record.advice is None else record.advice.planned_gpus,
}
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
        found[role.value] |= {state: getattr(pool, state) for state in COUNTS}
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
    names = (*COUNTS, *LOADS, "target", "before", "expected", "held", "needed", "reason")
    return {name: [row.get(name) for row in rows] for name in names}
