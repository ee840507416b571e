"""Policies: the settings that one is made from, its declaration, making one by name, and common reasons.

A policy is one file that ends in its declaration, a `PolicyKind`, and one line that names it: in
`headway.config.POLICIES`, or as an entry point of the group `headway.policies` in any installed package.

All decisions' reasons have a common part: JSON-able inputs and settings, and scaling still under way. A float
that was not measured (NaN) becomes None, so that the reasons are valid JSON.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from math import isfinite, isnan
from typing import Any, TypeVar

from headway.config import (
    POLICIES,
    HeadwayConfig,
    PlannerSettings,
    PoolSettings,
    Settings,
    SloSettings,
    time_zone,
)
from headway.engine import EngineRules, engine_rules
from headway.extensions import ExtensionError
from headway.planning.deciding import GPU_BUDGET, Bounds, call, check_budget
from headway.planning.schedule import Schedule
from headway.planning.sleeping import Engine
from headway.planning.types import (
    Observation,
    PlanningError,
    Policy,
    PoolLimits,
    PoolState,
    Promise,
    Role,
    Slo,
    Traffic,
)
from interp import Profile

S = TypeVar("S", bound=Settings)

PUBLISHED_INTERVAL_S = 180.0
"""Seconds between two decisions in the documents that `reference` follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Settings of every policy; each reads what concerns it.

    `limits` names the pools there are; `schedule` changes them, None does not. `interval_s` lies between two
    decisions. `max_gpu_budget` bounds the GPUs of all pools together, None does not. `max_step` bounds the
    change of a pool by one decision. To the schedule and the steps the caller of the policy sees
    (`headway.planning.deciding`). `attainment` is the share of requests that shall meet the SLO, `classes`
    what single classes are promised, in the order of `slo.classes`. `engine` says how engines batch, None
    where no profile tells. `sections` are the settings of single policies, by policy, as far as they were
    given.
    """

    slo: Slo
    limits: Mapping[Role, PoolLimits]
    interval_s: float = PUBLISHED_INTERVAL_S
    max_gpu_budget: int | None = None
    budget_name: str = GPU_BUDGET
    """Of that budget among the limits of a decision."""
    max_step: int | None = None
    no_correction: bool = False
    attainment: float = 0.99
    classes: Sequence[Promise] = ()
    engine: EngineRules | None = None
    sections: Mapping[str, Settings] = field(default_factory=dict)
    schedule: Schedule | None = None
    sleeping: Mapping[Role, Engine] = field(default_factory=dict)
    """By pool whose engines may sleep, what one takes."""

    def __post_init__(self) -> None:
        if not self.limits:
            raise PlanningError("pools: at least one pool is needed")
        if not self.interval_s > 0:
            raise PlanningError(f"planner.adjustment_interval_s: {self.interval_s} is not positive")
        if self.schedule is not None:
            check_budget(self.widest, self.max_gpu_budget, " at the highest of their schedules")

    @property
    def bounds(self) -> Bounds:
        """The bounds of each decision."""
        return Bounds(
            limits=self.limits,
            max_gpu_budget=self.max_gpu_budget,
            max_step=self.max_step,
            schedule=self.schedule,
        )

    @property
    def widest(self) -> Mapping[Role, PoolLimits]:
        """The highest minimum and the highest maximum that each pool has at any time."""
        return self.limits if self.schedule is None else self.schedule.widest()

    @property
    def tightest_ttft_s(self) -> float:
        """The shortest TTFT that anybody is promised."""
        return min([self.slo.ttft_s, *(each.slo.ttft_s for each in self.classes)])

    def section(self, policy: str, model: type[S]) -> S:
        """A policy's own settings: the section given, or its defaults."""
        given = self.sections.get(policy)
        return given if isinstance(given, model) else model()


def _none(section: Any) -> None:  # noqa: ANN401 - each policy's section is its own
    del section


def _no_names(section: Any) -> tuple[str, ...]:  # noqa: ANN401 - each policy's section is its own
    del section
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyKind:
    """A policy as the rest of Headway sees it before one is made."""

    build: Callable[[PolicySettings, Any], Policy]
    """From the settings and the profile (or None unless `needs_surfaces`).

    PlanningError where they do not fit."""
    settings: type[Settings] | None = None
    """The model of the section `planner.NAME`, every key with a default; None: the policy has no section."""
    interval_s: float = PUBLISHED_INTERVAL_S
    """Seconds between two decisions where nothing is set."""
    interval_key: str | None = None
    """The key of its own section that sets the interval; None: `planner.adjustment_interval_s` does."""
    forecasts: bool = False
    """True if its observations shall bring a forecast of the load."""
    ahead: Callable[[Any], tuple[str, ...]] = _no_names
    """Section → the predictors whose forecasts of requests its observations shall bring."""
    needs_surfaces: bool = False
    """True if it cannot be made without a profile."""
    classes: bool = False
    """True if it plans for the promises of `slo.classes`."""
    fixed_fleet: Callable[[PolicySettings], Mapping[Role, int]] | None = None
    """The counts that it keeps, with which a simulation then begins; None: they follow the load."""
    refuse_live: Callable[[Any], str | None] = _none
    """Section → why it cannot be used in live operation, `planner.NAME.KEY: …`; None: it can."""


def known() -> tuple[str, ...]:
    """The names of all policies, sorted."""
    return POLICIES.names()


def policy_kind(name: str) -> PolicyKind:
    """The declaration of a policy. PlanningError lists the known names."""
    try:
        kind = POLICIES.load(name)
    except ExtensionError as error:
        raise PlanningError(f"planner.policy: {error}") from error
    if not isinstance(kind, PolicyKind):
        raise PlanningError(
            f"planner.policy: {name!r} is declared by {type(kind).__name__}, not by a PolicyKind"
        )
    return kind


def refuse_simulated_only(config: HeadwayConfig) -> None:
    """PlanningError for what only the simulator's replicas can: change their role, or all be gone where
    nobody holds the requests until one is back; and for a budget that other policies cannot share.
    """
    if config.fleet.gpus is not None and config.planner.policy != "headway":
        raise PlanningError(
            "fleet.gpus: live, it is divided by the losses that only the policy headway states; "
            f"planner.policy is {config.planner.policy}"
        )
    asleep = next((role for role, pool in config.pools.items() if pool.sleepers), None)
    named = config.connector.ray_serve
    if asleep is not None and (
        config.connector.kind != "ray_serve" or named.deployments or named.application
    ):
        raise PlanningError(f"pools.{asleep}.sleepers: live, only engines that Headway starts sleep")
    empty = next((role for role, pool in config.pools.items() if pool.min_replicas == 0), None)
    if empty is not None and (wrong := _never_empty(config)):
        raise PlanningError(
            f"pools.{empty}.min_replicas: live, 0 needs what tells of requests while no engine runs: our "
            f"gateway and our engines, or metrics.wake, a query for what waits at another router; {wrong}"
        )
    for name, section in config.planner.sections.items():
        if (refusal := policy_kind(name).refuse_live(section)) is not None:
            raise PlanningError(refusal)


def _never_empty(config: HeadwayConfig) -> str:
    """The setting by which live pools keep a replica; empty where they may have none."""
    connector, metrics = config.connector, config.metrics
    if config.planner.policy != "headway":
        return f"planner.policy is {config.planner.policy}"
    if metrics.wake is not None:
        # A RayService takes no 0.
        refuses = connector.kind == "kubernetes" and connector.kubernetes.target == "kuberay"
        return "connector.kubernetes.target is kuberay" if refuses else ""
    if connector.kind != "ray_serve":
        return f"connector.kind is {connector.kind}"
    if connector.ray_serve.deployments or connector.ray_serve.application:
        return "connector.ray_serve names another's application"
    if metrics.source != "gateway" or metrics.url is not None:
        return f"metrics come from {metrics.url or metrics.source}"
    return ""


def make_policy(name: str, settings: PolicySettings, profile: Profile | None = None) -> Policy:
    """The policy of that name. PlanningError lists the known names, or says which setting does not fit."""
    kind = policy_kind(name)
    if kind.needs_surfaces and profile is None:
        raise PlanningError(f"planner.policy: {name} needs a profile (engine.profile)")
    return call(name, kind.build, settings, profile)


def policy_settings(
    config: HeadwayConfig, profile: Profile | None = None, epoch_s: float = 0.0
) -> PolicySettings:
    """The settings of a configuration; GPUs per replica left open are as profiled, or 1.

    `epoch_s` is second 0 of the observations' clock, in seconds since 1970.
    """
    limits = {Role(name): pool_limits(Role(name), pool, profile) for name, pool in config.pools.items()}
    return PolicySettings(
        slo=Slo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s),
        limits=limits,
        interval_s=decision_interval_s(config.planner),
        max_gpu_budget=config.planner.max_gpu_budget,
        max_step=config.planner.max_step,
        no_correction=config.planner.no_correction,
        attainment=config.slo.attainment,
        classes=class_promises(config.slo),
        engine=engine_rules(config, profile) if isinstance(profile, Profile) else None,
        sections=config.planner.sections,
        schedule=_schedule(config, limits, epoch_s),
        sleeping={
            role: Engine(
                limits[role].gpus_per_replica / config.engine.sleep.per_gpu, config.engine.sleep.memory or 0.0
            )
            for role in limits
            if limits[role].sleepers
        },
    )


def _schedule(config: HeadwayConfig, limits: Mapping[Role, PoolLimits], epoch_s: float) -> Schedule | None:
    guess = config.planner.section("headway")
    if guess is None or not any(pool.schedule for pool in config.pools.values()):
        return None
    return Schedule(
        pools={role: (config.pools[role.value], own) for role, own in limits.items()},
        zone=time_zone(config.planner.time_zone),
        interval_s=decision_interval_s(config.planner),
        start_s=guess.model_dump()["lead_s"],
        epoch_s=epoch_s,
    )


def class_promises(settings: SloSettings) -> tuple[Promise, ...]:
    """The promises of the classes, in their order; what a class leaves open is the deployment's."""
    return tuple(
        Promise(
            name=name,
            slo=Slo(
                ttft_s=settings.ttft_s if each.ttft_ms is None else each.ttft_ms / 1e3,
                itl_s=settings.itl_s if each.tpot_ms is None else each.tpot_ms / 1e3,
            ),
            attainment=each.attainment,
            critical=each.critical,
        )
        for name, each in settings.classes.items()
    )


def pool_limits(role: Role, pool: PoolSettings, profile: Profile | None) -> PoolLimits:
    """One pool's limits. A mixed replica is the engine of the decode profile."""
    profiled = {} if profile is None else {Role.PREFILL: profile.prefill.gpus_per_engine}
    fallback = 1 if profile is None else profile.decode.gpus_per_engine
    return PoolLimits(
        min_replicas=pool.min_replicas,
        max_replicas=pool.max_replicas,
        gpus_per_replica=pool.gpus_per_replica or profiled.get(role, fallback),
        sleepers=pool.sleepers,
    )


def interval_key(policy: str) -> str:
    """The configuration key that sets the interval of a policy."""
    own = policy_kind(policy).interval_key
    return "planner.adjustment_interval_s" if own is None else f"planner.{policy}.{own}"


def predictors_asked(planner: PlannerSettings) -> tuple[str, ...]:
    """The predictors that the policy set asks, none if it plans without. PlanningError for an unknown one."""
    kind = policy_kind(planner.policy)
    named = kind.ahead(planner.section(planner.policy))
    return named or ((planner.predictor,) if kind.forecasts else ())


def decision_interval_s(planner: PlannerSettings) -> float:
    """Seconds between two decisions of the policy that is set. PlanningError for an unknown one."""
    kind = policy_kind(planner.policy)
    if kind.interval_key is None:
        return planner.adjustment_interval_s or kind.interval_s
    return float(getattr(planner.section(planner.policy), kind.interval_key))


def jsonable(value: Any) -> Any:  # noqa: ANN401, PLR0911 - one return per kind of value
    """Dataclasses and mappings as dicts with string keys, tuples as lists, floats not finite as None.

    Mappings over roles come in the order of `Role`, so that equal decisions have equal bytes. Of traffic
    there are only counts: its columns may hold 100,000 requests an interval. Fields without a repr are left
    out.
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
        return {item.name: jsonable(getattr(value, item.name)) for item in fields(value) if item.repr}
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
    """The observation, with the first interval of each forecast; what is rare only where there is some."""
    inputs = {item.name: getattr(observation, item.name) for item in fields(observation)}
    ahead = inputs.pop("ahead")
    rare = {
        "stood": observation.stood is not None,
        "least_requests": not isnan(observation.least_requests),
        "slow": observation.slow,
        "repeats": observation.repeats,
    }
    inputs = {name: value for name, value in inputs.items() if rare.get(name, True)}
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
