"""Figures read off decision records: why a pool has its target, what was needed, how forecasts fared."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

from headway.config import Role
from headway.planning.records import PENDING, DecisionRecord

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
    if record.measured.health.status not in ("ok", "partial", None):
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


def missed_since(
    records: Sequence[DecisionRecord], target: float, of_class: str | None = None
) -> float | None:
    """Since when the intervals of `records`, oldest first, are below target; None if the last is not.

    Of all requests, or of a class. Intervals in which nothing was judged count as those before them.
    """
    since_s: float | None = None
    for record in reversed(records):
        found = record.measured if of_class is None else record.measured.classes.get(of_class)
        attained = None if found is None else found.attainment
        if attained is not None and attained >= target:
            break
        if attained is not None:
            since_s = record.interval.start_s
    return since_s


def forecast_error(records: Sequence[DecisionRecord]) -> float | None:
    """The error of the last `FORECASTS` forecasts of requests: Σ |forecast − came| / Σ came.

    What came is what the next record measured, if its interval begins where the forecast's decision looked
    back to. None where no forecast can be judged, or nothing came. `records` are ordered, the oldest first.
    """
    errors, came = 0.0, 0.0
    for made, after in pairwise(records[-FORECASTS - 1 :]):
        expected = None if made.forecast is None else made.forecast.requests
        found, whole_s = after.measured.requests, made.interval.end_s - made.interval.start_s
        gap_s = after.interval.start_s - made.interval.end_s
        if expected is not None and found is not None and abs(gap_s) < 0.1 * whole_s:
            errors, came = errors + abs(expected - found), came + found
    return errors / came if came else None
