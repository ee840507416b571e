"""The common part of all decisions' reasons: JSON-able inputs and settings, and scaling still under way.

A float that was not measured (NaN) becomes None, so that the reasons are valid JSON.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite, isnan
from typing import Any

from headway.planning.policies import PolicySettings
from headway.planning.types import Observation, PlanningError, PoolState, Role, Traffic


def jsonable(value: Any) -> Any:  # noqa: ANN401, PLR0911 - one return per kind of value
    """Dataclasses and mappings as dicts with string keys, tuples as lists, floats not finite as None.

    Mappings over roles come in the order of `Role`, so that equal decisions have equal bytes. Of traffic
    there are only counts: its columns may hold 100,000 requests an interval.
    """
    if isinstance(value, float):
        return float(value) if isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        keys = ordered(value) if all(isinstance(key, Role) for key in value) else value
        return {str(key): jsonable(value[key]) for key in keys}
    if isinstance(value, tuple | list):
        return [jsonable(item) for item in value]
    if isinstance(value, Traffic):
        return {"arrivals": len(value.arrival_s), "completions": len(value.completed_input_tokens)}
    if is_dataclass(value):
        return {item.name: jsonable(getattr(value, item.name)) for item in fields(value)}
    return int(value)


def common(name: str, observation: Observation, settings: PolicySettings) -> dict[str, Any]:
    """Policy, inputs, settings and the roles that are still scaling."""
    return {
        "policy": name,
        "inputs": _inputs(observation),
        "settings": {
            "slo": settings.slo,
            "limits": settings.limits,
            "max_gpu_budget": settings.max_gpu_budget,
        },
        "scaling_in_progress": scaling_in_progress(observation.pools),
    }


def _inputs(observation: Observation) -> Mapping[str, Any]:
    """The observation, with the first interval of each forecast, and slow replicas if there are any."""
    inputs = {item.name: getattr(observation, item.name) for item in fields(observation)}
    ahead = inputs.pop("ahead")
    if inputs["stood"] is None:
        del inputs["stood"]
    if not observation.slow:
        del inputs["slow"]
    return {**inputs, "ahead": {name: path[0] for name, path in ahead.items()}} if ahead else inputs


def scaling_in_progress(pools: Mapping[Role, PoolState]) -> tuple[Role, ...]:
    """Roles with replicas starting or draining, or with a ready count that is not the desired one."""
    return tuple(
        role
        for role in ordered(pools)
        if pools[role].starting > 0 or pools[role].draining > 0 or pools[role].desired != pools[role].ready
    )


def progress_warnings(observation: Observation) -> list[str]:
    """One sentence per role that is still scaling."""
    return [f"{role}: a scaling action is still under way" for role in scaling_in_progress(observation.pools)]


def ordered(roles: Mapping[Role, Any]) -> tuple[Role, ...]:
    """The keys in the order of `Role`, so that no result depends on the order of a mapping."""
    return tuple(role for role in Role if role in roles)


def check(observation: Observation, settings: PolicySettings) -> None:
    """PlanningError when the observation lacks a pool, a time, or a positive interval."""
    if missing := [role for role in ordered(settings.limits) if role not in observation.pools]:
        raise PlanningError(f"observation.pools: no entry for {', '.join(missing)}")
    if not observation.interval_s > 0:
        raise PlanningError(f"observation.interval_s: {observation.interval_s} is not positive")
    if isnan(observation.now_s):
        raise PlanningError("observation.now_s: is NaN")


def describe(targets: Mapping[Role, int], observation: Observation) -> str:
    """`prefill 3 → 2, decode 4`: from the desired count to the target, or the target where it stays."""
    return ", ".join(
        f"{role} " + _change(observation.pools[role].desired, targets[role]) for role in ordered(targets)
    )


def _change(before: int, target: int) -> str:
    return f"{target}" if target == before else f"{before} → {target}"
