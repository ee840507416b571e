"""Planning: observation + state → decision, pure functions of values.

    policy = make_policy("reference", policy_settings(config, profile), profile)
    state = policy.initial_state()
    decision = policy.plan(observation, state)

A new policy is one module with a maker `(settings, profile) -> Policy`, and one row in the table below.
"""

from collections.abc import Callable

from headway.planning.errors import PlanningError
from headway.planning.reference import make_reference
from headway.planning.settings import PolicySettings, policy_settings
from headway.planning.static import make_static
from headway.planning.surfaces import Surfaces
from headway.planning.threshold import make_threshold
from headway.planning.types import (
    Decision,
    LoadForecast,
    Observation,
    Policy,
    PoolLimits,
    PoolState,
    Role,
    Slo,
    Traffic,
)


def _make_headway(settings: PolicySettings, profile: Surfaces | None) -> Policy:
    """Imported when it is asked for: it brings a compiler, which engines that start fast do without."""
    from headway.planning.hindsight import make_headway

    return make_headway(settings, profile)


_MAKERS: dict[str, Callable[[PolicySettings, Surfaces | None], Policy]] = {
    "headway": _make_headway,
    "reference": make_reference,
    "static": make_static,
    "threshold": make_threshold,
}


def known() -> tuple[str, ...]:
    """The names of all policies, sorted."""
    return tuple(sorted(_MAKERS))


def make_policy(name: str, settings: PolicySettings, profile: Surfaces | None = None) -> Policy:
    """The policy of that name. PlanningError lists the known names, or says which setting does not fit."""
    if name not in _MAKERS:
        raise PlanningError(f"planner.policy: unknown policy {name!r}; known: {', '.join(known())}")
    return _MAKERS[name](settings, profile)


__all__ = [
    "Decision",
    "LoadForecast",
    "Observation",
    "PlanningError",
    "Policy",
    "PolicySettings",
    "PoolLimits",
    "PoolState",
    "Role",
    "Slo",
    "Traffic",
    "known",
    "make_policy",
    "policy_settings",
]
