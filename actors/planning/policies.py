"""The policy that is in force: made from settings and surfaces, and made anew when either changes."""

from dataclasses import dataclass

from headway.config import HeadwayConfig
from headway.planning import (
    PlanningError,
    Policy,
    PolicySettings,
    Role,
    make_policy,
    policy_kind,
    policy_settings,
)
from headway.planning.budget import check_budget
from interp import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A policy, the settings that it was made from, and the version of both."""

    policy: Policy
    settings: PolicySettings
    version: tuple[int, int]
    forecasts: bool
    """Whether the policy asks for a forecast."""

    def gpus_per_replica(self, role: Role) -> int:
        """GPUs that one replica occupies."""
        return self.settings.limits[role].gpus_per_replica


def put_in_force(config: HeadwayConfig, profile: Profile, version: tuple[int, int]) -> InForce:
    """The policy of a configuration. PlanningError when it cannot be made, or engines cannot follow it."""
    refuse_simulated_only(config)
    settings = policy_settings(config, profile)
    policy = make_policy(config.planner.policy, settings, profile)
    forecasts = policy_kind(config.planner.policy).forecasts
    return InForce(policy=policy, settings=settings, version=version, forecasts=forecasts)


def check(config: HeadwayConfig, profile: Profile | None) -> None:
    """Refuse settings that no policy can be made from (PlanningError); as far as known without a profile."""
    refuse_simulated_only(config)
    if profile is not None:
        put_in_force(config, profile, (0, 0))
    else:
        check_budget(policy_settings(config).limits, config.planner.max_gpu_budget)


def refuse_simulated_only(config: HeadwayConfig) -> None:
    """PlanningError for what only the simulator's replicas can: change their role, or all be gone."""
    empty = next((role for role, pool in config.pools.items() if pool.min_replicas == 0), None)
    if empty is not None:
        raise PlanningError(f"pools.{empty}.min_replicas: live pools keep 1 at least, 0 is for simulation")
    for name, section in config.planner.sections.items():
        if (refusal := policy_kind(name).refuse_live(section)) is not None:
            raise PlanningError(refusal)
