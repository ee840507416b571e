"""From settings to a router.


Scheduling profiles: those built in, and those of the settings, made into pipelines.

The settings have document 002's form: `plugins` names plugins with their parameters, `scheduling_profiles`
refers to them by name (else by type) with weights. A reference may also name a type that `plugins` leaves
out; it has its defaults then. Built-in profiles have defaults whatever the settings say. Whatever is unknown
is a RoutingError that names the place and what there is.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from headway.config import HeadwayConfig
from headway.config.roles import Role
from headway.config.routing import PluginSettings, RoutingSettings, SchedulingProfile
from headway.engine.rules import EngineRules
from headway.routing.affinity import PrefixIndex, Sessions
from headway.routing.context import RoutingState
from headway.routing.corrections import Handovers
from headway.routing.fleet import RoutedFleet
from headway.routing.gpu_profiles import GpuProfile, surfaces_in
from headway.routing.latency import LatencyForecaster
from headway.routing.offloading import Offloading
from headway.routing.plugins import Picker, ProfileHandler, TakesSettings
from headway.routing.plugins.pickers import (
    MaxScorePicker,
    RandomPicker,
    RoundRobinPicker,
    WeightedRandomPicker,
)
from headway.routing.plugins.scorers import (
    BinPack,
    CapacityFilter,
    KvCacheScorer,
    LeastLoad,
    PrefixCacheScorer,
    QueueScorer,
    SessionAffinityScorer,
)
from headway.routing.plugins.slo_scorer import SloScorer
from headway.routing.router import Router
from headway.routing.scheduler import Pipeline, Scheduler, make_pipeline
from headway.routing.surface_capacity import capacity_table
from headway.routing.types import RequestSlo, RouteRequest, RoutingError
from interp.jit import drop_stale_cache


def make_router(
    config: HeadwayConfig,
    profiles: Mapping[str, GpuProfile],
    rules: EngineRules,
    generator: np.random.Generator,
) -> Router:
    """The router of a deployment.

    `profiles` are the engines' by GPU type, "" for replicas whose type has none of its own; those of AIBrix
    say nothing of latencies. Raises RoutingError for settings that cannot be routed by.
    """
    drop_stale_cache("headway.routing.plugins", "headway.routing", "headway.engine", "interp")
    settings = config.routing
    pipelines = make_pipelines(settings)
    fleet = RoutedFleet()
    latency = LatencyForecaster(surfaces_in(profiles), rules, quantile=settings.prediction.use == "quantile")
    state = RoutingState(
        roles=(Role.MIXED,) if Role.MIXED.value in config.pools else (Role.PREFILL, Role.DECODE),
        fleet=fleet,
        rules=rules,
        prefixes=PrefixIndex(rules.prefix_cache_tokens // rules.block_tokens),
        sessions=Sessions(),
        latency=latency,
        handovers=Handovers(fleet, rules, latency),
        capacity=capacity_table(profiles, rules),
        slo=RequestSlo(ttft_s=config.slo.ttft_s, tpot_s=config.slo.itl_s),
        generator=generator,
    )
    offloading = Offloading(state, settings.offload)
    scheduler = Scheduler(state, pipelines, settings.fallback, offloading)
    return Router(settings, pipelines, make_handler(settings, pipelines), state, scheduler)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloRequestTracker:
    """Asks the router to track what the profile places."""

    records_outcomes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SloAwareProfileHandler:
    """Chooses by the request's flag."""

    prediction: str = "slo"

    def profile(self, request: RouteRequest, default: str) -> str:
        """The profile's name."""
        return self.prediction if request.prediction_based else default


PLUGINS: Mapping[str, type[Any]] = {
    "bin-pack": BinPack,
    "capacity-filter": CapacityFilter,
    "kv-cache-utilization-scorer": KvCacheScorer,
    "least-load": LeastLoad,
    "max-score-picker": MaxScorePicker,
    "prefix-cache-scorer": PrefixCacheScorer,
    "queue-scorer": QueueScorer,
    "random": RandomPicker,
    "round-robin": RoundRobinPicker,
    "session-affinity-scorer": SessionAffinityScorer,
    "slo-aware-profile-handler": SloAwareProfileHandler,
    "slo-request-tracker": SloRequestTracker,
    "slo-scorer": SloScorer,
    "weighted-random-picker": WeightedRandomPicker,
}
"""Plugin types: dataclasses whose fields are the parameters."""

BUILT_IN: Mapping[str, Mapping[str, float]] = {
    "random": {"random": 1},
    "round_robin": {"round-robin": 1},
    "least_load": {"least-load": 1, "max-score-picker": 1},
    "bin_pack": {"bin-pack": 1, "max-score-picker": 1},
    "prefix": {
        "prefix-cache-scorer": 3,
        "session-affinity-scorer": 1,
        "least-load": 2,
        "max-score-picker": 1,
    },
    "default": {
        "slo-request-tracker": 1,
        "queue-scorer": 1,
        "kv-cache-utilization-scorer": 1,
        "prefix-cache-scorer": 1,
        "max-score-picker": 1,
    },
    "slo": {
        "prefix-cache-scorer": 0,
        "slo-request-tracker": 1,
        "slo-scorer": 1,
        "weighted-random-picker": 1,
    },
    "pull": {"capacity-filter": 1, "least-load": 1, "max-score-picker": 1},
    "pull_bin_pack": {"capacity-filter": 1, "bin-pack": 1, "max-score-picker": 1},
}
"""Profiles that need no settings: plugin types and their weights, in order."""


def make_pipelines(settings: RoutingSettings) -> Mapping[str, Pipeline]:
    """All profiles by name; one of the settings replaces a built-in of the same name.

    Raises RoutingError.
    """
    named = _named_plugins(settings)
    pipelines = {
        name: _pipeline(name, weights.items(), _defaults(weights, settings), "built-in")
        for name, weights in BUILT_IN.items()
    }
    for profile in settings.scheduling_profiles:
        pipelines[profile.name] = _own_pipeline(profile, named)
    for key, name in (("profile", settings.profile), ("fallback", settings.fallback)):
        if name not in pipelines:
            raise RoutingError(f"routing.{key}: no profile {name!r}; known: {_listed(pipelines)}")
    if pipelines[settings.fallback].uses_predictions:
        others = _listed(name for name, pipeline in pipelines.items() if not pipeline.uses_predictions)
        raise RoutingError(
            f"routing.fallback: {settings.fallback!r} needs predictions itself; those that do not: {others}"
        )
    return pipelines


def make_handler(settings: RoutingSettings, profiles: Collection[str]) -> ProfileHandler:
    """The profile handler of the settings, or the built-in one. Raises RoutingError."""
    named, given = _named_plugins(settings), list[tuple[str, ProfileHandler]]()
    for place, each in enumerate(settings.plugins):
        plugin = named[each.reference]
        if isinstance(plugin, ProfileHandler):
            given.append((f"routing.plugins.{place}", plugin))
    if len(given) > 1:
        raise RoutingError(f"{given[1][0]}: a second slo-aware-profile-handler; {given[0][0]} is one")
    where, handler = given[0] if given else ("built-in", SloAwareProfileHandler())
    if handler.prediction not in profiles:
        raise RoutingError(
            f"{where}.parameters.prediction: no profile {handler.prediction!r}; known: {_listed(profiles)}"
        )
    return handler


def _own_pipeline(profile: SchedulingProfile, named: Mapping[str, Any]) -> Pipeline:
    where = f"routing.scheduling_profiles.{profile.name}"
    if not profile.plugins:
        raise RoutingError(f"{where}: no plugins; known: {_listed(named)}")
    weights = [(each.plugin_ref, each.weight) for each in profile.plugins]
    return _pipeline(profile.name, weights, named, where)


def _pipeline(
    name: str, weights: Collection[tuple[str, float]], named: Mapping[str, Any], where: str
) -> Pipeline:
    chosen = []
    for reference, weight in weights:
        if reference not in named:
            raise RoutingError(f"{where}: no plugin {reference!r}; known: {_listed(named)}")
        chosen.append((named[reference], weight))
    pickers = [reference for reference, _ in weights if isinstance(named[reference], Picker)]
    if len(pickers) > 1:
        raise RoutingError(f"{where}: one picker decides, not {' and '.join(pickers)}")
    return make_pipeline(name, chosen, MaxScorePicker())


def _named_plugins(settings: RoutingSettings) -> Mapping[str, Any]:
    """Plugins by the names that profiles use: those of the settings, and every type with its defaults."""
    named: dict[str, Any] = {}
    for place, each in enumerate(settings.plugins):
        where = f"routing.plugins.{place}"
        if each.reference in named:
            raise RoutingError(f"{where}: a second plugin named {each.reference!r}")
        named[each.reference] = _plugin(each, where, settings)
    return {**_defaults(PLUGINS, settings), **named}


def _defaults(types: Iterable[str], settings: RoutingSettings) -> Mapping[str, Any]:
    return {name: _complete(PLUGINS[name](), settings) for name in types}


def _plugin(given: PluginSettings, where: str, settings: RoutingSettings) -> object:
    if given.type not in PLUGINS:
        raise RoutingError(f"{where}.type: no plugin {given.type!r}; known: {_listed(PLUGINS)}")
    kind = PLUGINS[given.type]
    known = [field.name for field in fields(kind) if field.init]
    for name in given.parameters:
        if name not in known:
            raise RoutingError(
                f"{where}.parameters: {given.type} has no {name!r}; known: {_listed(known) or 'none'}"
            )
    try:
        plugin: object = TypeAdapter(kind).validate_python(dict(given.parameters))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise RoutingError(f"{where}.parameters.{name}: {first['msg']}") from error
    return _complete(plugin, settings)


def _complete(plugin: object, settings: RoutingSettings) -> object:
    """The plugin with what it takes from elsewhere in the settings."""
    return plugin.with_settings(settings) if isinstance(plugin, TakesSettings) else plugin


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
