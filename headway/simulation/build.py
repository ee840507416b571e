"""Settings + trace → everything that `simulate` needs. No printing: the command and the benchmarks share it.

The profile's facts fill what the settings leave open: batch limit, KV bytes per token, GPUs per replica. The
fleet at time 0 is, unless told otherwise, what the reference formulas ask for the first interval's load, so
that every policy begins alike; a static fleet begins as itself.

What cannot be simulated is refused as early as it is known: `check_plan` before any trace is read,
`check_decisions` when its span is known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from headway.config import ClientSettings, HeadwayConfig, PlannerSettings, RoleName, resolve_profile
from headway.engine import EngineRules, engine_profile, engine_rules
from headway.engine.kernel.layout import Routing
from headway.engine.rules import simulated_profile, simulated_speeds
from headway.planning import (
    PlanningError,
    Policy,
    PolicyKind,
    PolicySettings,
    PoolLimits,
    Role,
    interval_key,
    make_policy,
    policy_kind,
    policy_settings,
)
from headway.planning.deciding import fit
from headway.planning.forecasting import (
    Forecaster,
    LearnsFromPast,
    PastRequests,
    first_state,
    forecaster_for,
    read_past,
)
from headway.planning.hindsight import COMPILED_FROM
from headway.planning.policies import PUBLISHED_INTERVAL_S, predictors_asked
from headway.planning.replay import ReplayEngine
from headway.routing import Router, RoutingError, make_router
from headway.routing.fleet.gpu_profiles import GpuProfile, named_profiles
from headway.simulation.clients import Clients
from headway.simulation.demand import IdleEngine, first_interval, replayed_fleet, size_fleet
from headway.simulation.observing import PerformanceLearner
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import (
    GpuCapacity,
    PlannedCrash,
    Scenario,
    ScenarioRouter,
    StartUp,
    request_classes,
)
from headway.simulation.simulate import Watchers, simulate
from headway.workload import Trace, TraceError, TraceOptions, interval_series, open_trace
from headway.workload.generators import looks_generated, parse_generator
from interp import Profile, ProfileError
from interp.jit import drop_stale_cache
from predictors import PredictorError

MOST_DECISIONS = 1_000_000
"""Decisions in one simulation, or intervals of a warm-up trace; each is kept in the result."""

ADJUSTMENT_INTERVAL = "planner.adjustment_interval_s"
WARM_UP_TRACE = "planner.load_predictor_warmup_trace"

COMPILED = {"random": Routing.RANDOM, "round_robin": Routing.ROUND_ROBIN, "least_load": Routing.LEAST_LOAD}
"""Scheduling profiles that the kernel itself knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A deployment as configured, checked before any trace is read."""

    config: HeadwayConfig
    profile_name: str
    profile: Profile
    settings: PolicySettings
    policy: Policy
    forecaster: Forecaster
    engine: EngineRules
    gpu_profiles: Mapping[str, GpuProfile]
    """Those that routing names, by GPU type."""
    past: PastRequests | None = None
    """What came before, if there is a warm-up trace."""
    past_notes: tuple[str, ...] = ()
    """How that trace was read."""

    @property
    def kind(self) -> PolicyKind:
        """The declaration of the policy."""
        return policy_kind(self.config.planner.policy)

    @property
    def asked_forecaster(self) -> Forecaster | None:
        """The forecaster if the policy asks for a forecast."""
        return self.forecaster if predictors_asked(self.config.planner) else None

    def first_state(self) -> Any:  # noqa: ANN401 - each policy's state is its own
        """The policy's state before its first decision."""
        return first_state(self.policy, self.past, self.config.planner, ends_s=0.0)

    def learner(self, scrape_s: float | None = None) -> PerformanceLearner | None:
        """How policies and routers learn of the engines; None where that is off, or neither predicts.

        `scrape_s`: by the engines' metrics, read every so many seconds.
        """
        predicts = self.kind.needs_surfaces or isinstance(_routing(self), ScenarioRouter)
        if not (self.config.engine.refinement.enabled and predicts):
            return None

        def make(profile: Profile) -> Policy:
            # Limits of a batch may be learnt, too.
            settings = replace(self.settings, engine=engine_rules(self.config, profile))
            return make_policy(self.config.planner.policy, settings, profile)

        return PerformanceLearner(self.profile, make, scrape_s)

    @property
    def idle(self) -> IdleEngine:
        """A replica on which nothing waits, as profiled."""
        return IdleEngine(profile=self.profile, rules=self.engine, mixed=Role.MIXED in self.settings.limits)


def make_plan(config: HeadwayConfig) -> Plan:
    """Load the profile, make policy and predictors, and check them together.

    Raises ConfigError, ProfileError or PlanningError, each one line that names the field.
    """
    drop_stale_cache(*COMPILED_FROM)
    directory = resolve_profile(config.engine.profile)
    profile = engine_profile(config)
    rules = _engine_rules(directory, config, profile)
    settings = policy_settings(config, profile, config.begins_s)
    plan = Plan(
        config=config,
        profile_name=directory.resolve().name,
        profile=profile,
        settings=settings,
        policy=make_policy(config.planner.policy, settings, profile),
        forecaster=_forecaster(config.planner, settings.interval_s),
        engine=rules,
        gpu_profiles=named_profiles(config),
    )
    check_plan(plan)
    _check_routing(plan)
    return plan


def check_plan(plan: Plan) -> None:
    """Refuse what `simulate` would refuse later and what can be told without reading a trace.

    That is a first fleet outside its pools' limits, and a warm-up trace that does not exist or, if it is
    generated, cannot be. Raises PlanningError naming the key.
    """
    wanted = plan.config.simulation.initial
    if isinstance(wanted, Mapping):
        _named_fleet(wanted, plan.settings.limits)
    source = plan.config.planner.load_predictor_warmup_trace
    if source is not None and not Path(source).is_file():
        _check_source(source)


def _check_routing(plan: Plan) -> None:
    """Refuse settings that no router can be made of, and classes without requests."""
    try:
        _make_router(plan, np.random.default_rng(0))
    except RoutingError as error:
        raise PlanningError(str(error)) from error
    request_classes(plan.config)


def _routing(plan: Plan) -> Routing | ScenarioRouter:
    """The compiled form where the profile has one and nothing else asks for the router."""
    settings, name = plan.config.routing, _profile(plan)
    own = name in [profile.name for profile in settings.scheduling_profiles]
    offloads = settings.offload.mode != "never" and Role.MIXED in plan.settings.limits
    if name in COMPILED and not own and not offloads and plan.config.spillover is None:
        return COMPILED[name]
    return ScenarioRouter(
        name=name,
        make=partial(_make_router, plan),
        most_tokens=plan.config.engine.max_model_tokens,
        learn=settings.prediction if settings.prediction.learn else None,
        gpu_type=plan.config.engine.gpu_type or "",
        reports=plan.config.simulation.reports,
    )


def _profile(plan: Plan) -> str:
    """The scheduling profile; where requests spill over, which takes a router, that of live ones."""
    routing = plan.config.routing
    return routing.simulated_profile if plan.config.spillover is None else routing.live_profile


def _make_router(plan: Plan, generator: np.random.Generator) -> Router:
    routing = plan.config.routing.model_copy(update={"profile": _profile(plan)})
    config = plan.config.model_copy(update={"routing": routing})
    return make_router(config, {"": plan.profile, **plan.gpu_profiles}, plan.engine, generator)


def _check_source(source: str) -> None:
    """A warm-up trace that is no file."""
    if Path(source).exists() or not looks_generated(source):
        fault = "is not a file" if Path(source).exists() else "no such file"
        raise PlanningError(f"{WARM_UP_TRACE}: {source}: {fault}")
    try:
        parse_generator(source, seed=0)
    except TraceError as error:
        raise PlanningError(f"{WARM_UP_TRACE}: {error}") from error


def _forecaster(planner: PlannerSettings, interval_s: float) -> Forecaster:
    try:
        return forecaster_for(planner, interval_s)
    except PredictorError as error:
        several = policy_kind(planner.policy).ahead(planner.section(planner.policy))
        key = f"planner.{planner.policy}.predictors" if several else "planner.predictor"
        raise PlanningError(f"{key}: {error}") from error


def _engine_rules(directory: Path, config: HeadwayConfig, profile: Profile) -> EngineRules:
    try:
        return engine_rules(config, profile)
    except ProfileError as error:
        raise ProfileError(f"{directory}: {error}") from error


def make_scenario(plan: Plan, trace: Trace) -> Scenario:
    """The deployment of `plan` when `trace` begins.

    Raises PlanningError naming a fleet that is not allowed, or an interval too short for the trace.
    """
    config, simulation = plan.config, plan.config.simulation
    check_decisions(plan, trace)
    return Scenario(
        profile=simulated_profile(config),
        speeds=simulated_speeds(config),
        clients=_clients(simulation.clients),
        queueing_s=simulation.engine.queueing_s,
        slo=plan.settings.slo,
        pools=plan.settings.limits,
        initial=initial_fleet(plan, trace),
        max_gpu_budget=plan.settings.max_gpu_budget,
        max_step=plan.settings.max_step,
        schedule=plan.settings.schedule,
        capacity=_capacity(simulation.capacity_gpus),
        gpus_per_node=simulation.gpus_per_node,
        engine=plan.engine,
        start_up=StartUp(
            delay_s=simulation.start_up_delay_s,
            cv=simulation.start_up_delay_cv,
            wake_s=config.engine.sleep.wake_up_s,
            at_once=simulation.loads_at_once,
        ),
        routing=_routing(plan),
        classes=request_classes(config),
        spills=config.spillover is not None,
        crashes=tuple(PlannedCrash(at_s=crash.at_s, role=Role(crash.role)) for crash in simulation.crashes),
        seed=simulation.seed,
        drain_limit_s=simulation.drain_limit_s,
    )


def _clients(settings: ClientSettings) -> Clients:
    patience_s = inf if settings.patience_s is None else settings.patience_s
    return Clients(patience_s=patience_s, retries=settings.retries, retry_after_s=settings.retry_after_s)


def _capacity(gpus: int | Mapping[float, int] | None) -> GpuCapacity:
    if gpus is None:
        return GpuCapacity()
    steps = gpus if isinstance(gpus, Mapping) else {0.0: gpus}
    return GpuCapacity(steps=tuple(sorted(steps.items())))


def check_decisions(plan: Plan, trace: Trace) -> None:
    """Refuse a trace in which the policy would decide more than `MOST_DECISIONS` times (PlanningError)."""
    _check_intervals(trace, plan.policy.interval_s, interval_key(plan.config.planner.policy))


def _check_intervals(trace: Trace, interval_s: float, key: str) -> None:
    if trace.duration_s > interval_s * MOST_DECISIONS:
        raise PlanningError(
            f"{key}: {interval_s:g} s divides the {trace.duration_s:g} s of {trace.name} "
            f"into more than {MOST_DECISIONS:,} intervals"
        )


def initial_fleet(plan: Plan, trace: Trace) -> Mapping[Role, int]:
    """Replicas per role that are ready at time 0, as `simulation.initial` says."""
    wanted, bounds = plan.config.simulation.initial, plan.settings.bounds
    if isinstance(wanted, Mapping):
        return _named_fleet(wanted, bounds.limits)
    limits = bounds.at(0.0).limits
    settings = replace(plan.settings, limits=limits)
    if wanted == "min":
        return {role: pool.min_replicas for role, pool in limits.items()}
    if plan.kind.fixed_fleet is not None:
        return fit(plan.kind.fixed_fleet(settings), limits, settings.max_gpu_budget).targets
    interval_s = plan.config.planner.adjustment_interval_s or PUBLISHED_INTERVAL_S
    if Role.MIXED in limits:
        engine = ReplayEngine.of(plan.profile, settings.slo, plan.engine)
        return replayed_fleet(trace, interval_s, settings, engine, 1.0 - plan.config.slo.attainment)
    load, span_s = first_interval(trace, interval_s)
    return size_fleet(load, span_s, settings, plan.profile)


def _named_fleet(wanted: Mapping[RoleName, int], limits: Mapping[Role, PoolLimits]) -> Mapping[Role, int]:
    return {role: _named_count(role, wanted.get(role.value), pool) for role, pool in limits.items()}


def _named_count(role: Role, count: int | None, pool: PoolLimits) -> int:
    if count is None:
        return pool.min_replicas
    if not pool.min_replicas <= count <= pool.max_replicas:
        allowed = f"{pool.min_replicas} to {pool.max_replicas}"
        raise PlanningError(
            f"simulation.initial.{role}: {count} is outside what pools.{role} allows, {allowed}"
        )
    return count


def warm_up(plan: Plan, rate_scale: float = 1.0) -> Plan:
    """Show the predictors the configured warm-up trace, if any, as often superposed; the plan with that past.

    Raises PlanningError naming the key when the trace cannot be read, or is shorter than one interval.
    """
    source = plan.config.planner.load_predictor_warmup_trace
    if source is None:
        return plan
    interval_s = plan.settings.interval_s
    try:
        with open_trace(source, TraceOptions(rate_scale=rate_scale)) as trace:
            _check_intervals(trace, interval_s, ADJUSTMENT_INTERVAL)
            series = interval_series(trace, interval_s)
            most = plan.policy.past_intervals if isinstance(plan.policy, LearnsFromPast) else 0
            past = read_past(trace, interval_s, most)
    except TraceError as error:
        raise PlanningError(f"{WARM_UP_TRACE}: {error}") from error
    plan.forecaster.warm_start(
        *(column.tolist() for column in (series.requests, series.isl_tokens, series.osl_tokens))
    )
    return replace(plan, past=past, past_notes=trace.notes)


def run(plan: Plan, scenario: Scenario, trace: Trace, watchers: Watchers | None = None) -> SimulationResult:
    """Simulate; the forecaster works only for policies that ask for a forecast."""
    return simulate(
        scenario,
        trace,
        plan.policy,
        plan.asked_forecaster,
        watchers,
        learner=plan.learner(),
        state=plan.first_state(),
    )
