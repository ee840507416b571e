"""What a policy is made from: SLO, limits per role, interval, budget, and the simple policies' numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headway.config import (
    HeadwayConfig,
    HeadwaySettings,
    PoolSettings,
    StaticFleet,
    TargetOngoing,
    ThresholdSettings,
)
from headway.engine import EngineRules, engine_rules
from headway.planning.errors import PlanningError
from headway.planning.surfaces import Surfaces
from headway.planning.types import PoolLimits, Role, Slo
from interp import Profile

T = TypeVar("T")


def by_role(settings: StaticFleet | TargetOngoing, kind: Callable[[Any], T]) -> Mapping[Role, T]:
    """A settings model with one field per role, as a mapping."""
    return {role: kind(getattr(settings, role)) for role in Role}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Settings of every policy; each reads what concerns it.

    `limits` names the pools there are. `interval_s` lies between two decisions. `max_gpu_budget` bounds the
    GPUs of all pools together, None does not. `attainment` is the share of requests that shall meet the SLO.
    `engine` says how engines batch, None where no profile tells.
    """

    slo: Slo
    limits: Mapping[Role, PoolLimits]
    interval_s: float = 180.0
    max_gpu_budget: int | None = None
    no_correction: bool = False
    static: Mapping[Role, int] = field(default_factory=lambda: by_role(StaticFleet(), int))
    threshold: ThresholdSettings = field(default_factory=ThresholdSettings)
    headway: HeadwaySettings = field(default_factory=HeadwaySettings)
    attainment: float = 0.99
    engine: EngineRules | None = None

    @property
    def loss_budget(self) -> float:
        """Share of the requests that may miss the SLO."""
        chosen = self.headway.loss_budget
        return 1.0 - self.attainment if chosen is None else chosen

    def __post_init__(self) -> None:
        if not self.limits:
            raise PlanningError("pools: at least one pool is needed")
        if not self.interval_s > 0:
            raise PlanningError(f"planner.adjustment_interval_s: {self.interval_s} is not positive")


def policy_settings(config: HeadwayConfig, profile: Surfaces | None = None) -> PolicySettings:
    """The settings of a configuration; GPUs per replica left open are as profiled, or 1."""
    return PolicySettings(
        slo=Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s),
        limits={Role(name): pool_limits(Role(name), pool, profile) for name, pool in config.pools.items()},
        interval_s=config.planner.interval_s,
        max_gpu_budget=config.planner.max_gpu_budget,
        no_correction=config.planner.no_correction,
        static=by_role(config.planner.static, int),
        threshold=config.planner.threshold,
        headway=config.planner.headway,
        attainment=config.slo.attainment,
        engine=engine_rules(config, profile) if isinstance(profile, Profile) else None,
    )


def pool_limits(role: Role, pool: PoolSettings, profile: Surfaces | None) -> PoolLimits:
    """One pool's limits. A mixed replica is the engine of the decode profile."""
    profiled = {} if profile is None else {Role.PREFILL: profile.prefill.gpus_per_engine}
    fallback = 1 if profile is None else profile.decode.gpus_per_engine
    return PoolLimits(
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        gpus_per_replica=pool.gpus_per_replica or profiled.get(role, fallback),
    )
