"""Planning: observation + state → decision, pure functions of values.

    policy = make_policy("reference", policy_settings(config, profile), profile)
    state = policy.initial_state()
    decision = policy.plan(observation, state)

A new policy is one module that ends in a `PolicyKind`, and one line in `headway.config.POLICIES` or an entry
point of the group `headway.policies`.
"""

from headway.planning.policies import (
    PolicyKind,
    PolicySettings,
    decision_interval_s,
    interval_key,
    known,
    make_policy,
    policy_kind,
    policy_settings,
)
from headway.planning.types import (
    Decision,
    LoadForecast,
    Observation,
    PlanningError,
    Policy,
    PoolLimits,
    PoolState,
    Role,
    Slo,
    Traffic,
)

__all__ = [
    "Decision",
    "LoadForecast",
    "Observation",
    "PlanningError",
    "Policy",
    "PolicyKind",
    "PolicySettings",
    "PoolLimits",
    "PoolState",
    "Role",
    "Slo",
    "Traffic",
    "decision_interval_s",
    "interval_key",
    "known",
    "make_policy",
    "policy_kind",
    "policy_settings",
]
