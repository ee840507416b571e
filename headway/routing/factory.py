"""From settings to a router: its scheduling profiles, those built in and those of the settings, and the rest.

The settings have the form of llm-d's EndpointPickerConfig: `plugins` names plugins with their parameters,
`scheduling_profiles` refers to them by name (else by type) with weights. A reference may also name a type
that `plugins` leaves out; it has its defaults then. Built-in profiles have defaults whatever the settings
say. Whatever is unknown is a RoutingError that names the place and what there is.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import inf

import numpy as np
from pydantic import TypeAdapter, ValidationError

from headway.config import HeadwayConfig, Role
from headway.config.routing import PluginSettings, RoutingSettings
from headway.engine.rules import EngineRules
from headway.extensions import ExtensionError, ExtensionPoint
from headway.routing.decide.candidates import SaturationFilter
from headway.routing.decide.context import RoutingState
from headway.routing.decide.offload import Offloading
from headway.routing.decide.plugins import PLUGINS, Picker, checked, said
from headway.routing.decide.scheduler import Pipeline, Scheduler, make_pipeline
from headway.routing.decide.slo_scorer import SloAwareProfileHandler
from headway.routing.fleet.adapters import AdapterIndex
from headway.routing.fleet.affinity import PrefixIndex, Sessions
from headway.routing.fleet.fleet import RoutedFleet
from headway.routing.fleet.gpu_profiles import GpuProfile, surfaces_in
from headway.routing.predict.corrections import LEVEL, MOST_LEVEL, Handovers
from headway.routing.predict.latency import LatencyForecaster
from headway.routing.predict.reports import EngineReports
from headway.routing.queue.fair_shares import TenantShares
from headway.routing.router import Router
from headway.routing.shared_rules import SaturationRule
from headway.routing.types import PluginFault, RequestSlo, RoutingError
from interp.jit import drop_stale_cache

BUILT_IN: Mapping[str, Mapping[str, float]] = {
    "random": {"random": 1},
    "round_robin": {"round-robin": 1},
    "least_load": {"least-load": 1, "first-max-picker": 1},
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
}
"""Profiles that need no settings: plugin types and their weights, in order."""

PROFILES = ExtensionPoint("headway.routing_profiles", "scheduling profile", {})
"""The same, of installed packages."""

COMPILED = (
    *(f"headway.routing.{room}" for room in ("dispatch", "decide", "queue", "predict", "fleet")),
    "headway.routing",
    "headway.engine",
    "interp",
)
"""Packages with compiled code that the router uses, each built on those after it."""


def make_router(
    config: HeadwayConfig,
    profiles: Mapping[str, GpuProfile],
    rules: EngineRules,
    generator: np.random.Generator,
    *,
    live: bool = False,
) -> Router:
    """The router of a deployment. Where it is `live`, requests whose plugins fail are placed by least load.

    `profiles` are the engines' by GPU type, "" for replicas whose type has none of its own; those of AIBrix
    say nothing of latencies. Raises RoutingError for settings that cannot be routed by; the router raises
    PluginFault at a request whose plugins fail, unless it is `live`.
    """
    settings = config.routing
    pipelines = make_pipelines(settings)
    state = make_state(config, profiles, rules, generator)
    scheduler = make_scheduler(config, state, pipelines, live=live)
    return Router(settings, pipelines, prediction_profile(settings, pipelines), state, scheduler)


def make_state(
    config: HeadwayConfig,
    profiles: Mapping[str, GpuProfile],
    rules: EngineRules,
    generator: np.random.Generator,
) -> RoutingState:
    """What a router goes by, before it has heard of any replica. The arguments are those of `make_router`."""
    drop_stale_cache(*COMPILED)
    settings, fleet = config.routing, RoutedFleet(config.engine.adapters_at_once or inf)
    level = LEVEL if config.spillover is None else min(max(LEVEL, config.slo.attainment), MOST_LEVEL)
    latency = LatencyForecaster(surfaces_in(profiles), rules, level)
    return RoutingState(
        roles=(Role.MIXED,) if Role.MIXED.value in config.pools else (Role.PREFILL, Role.DECODE),
        fleet=fleet,
        reports=EngineReports(fleet, latency, SaturationRule.of(config, rules.max_batch_size)),
        rules=rules,
        prefixes=PrefixIndex(rules.prefix_cache_tokens // rules.block_tokens, rules.block_tokens),
        sessions=Sessions(),
        adapters=AdapterIndex(fleet),
        latency=latency,
        handovers=Handovers(fleet, rules, latency.joining_s),
        profiles=profiles,
        shares=TenantShares(lambda tenant: settings.tenant(tenant).weight),
        slo=RequestSlo(ttft_s=config.slo.ttft_s, tpot_s=config.slo.itl_s),
        generator=generator,
    )


def make_scheduler(
    config: HeadwayConfig, state: RoutingState, pipelines: Mapping[str, Pipeline], *, live: bool = False
) -> Scheduler:
    """The scheduler of a router that goes by `state`."""
    settings = config.routing
    saturation = SaturationFilter(SaturationRule.of(config, state.rules.max_batch_size).limits)
    least_load = BUILT_IN["least_load"].items()
    rescue = _PluginSet(()).pipeline("least_load", least_load) if live else None
    offloading = Offloading(state, settings.offload)
    return Scheduler(state, pipelines, settings.fallback, offloading, saturation=saturation, rescue=rescue)


def make_pipelines(settings: RoutingSettings) -> Mapping[str, Pipeline]:
    """All profiles by name; one of the settings replaces a built-in of the same name.

    Raises RoutingError.
    """
    given, defaults = _PluginSet(settings.plugins), _PluginSet(())
    pipelines = {name: defaults.pipeline(name, weights.items()) for name, weights in BUILT_IN.items()}
    # Those of other packages only where they are named: loading one imports its package.
    named = {settings.live_profile, settings.fallback}
    named |= {str(each.parameters.get("prediction")) for each in settings.plugins}
    for name in named & set(PROFILES.names()) - set(pipelines):
        try:
            weights = PROFILES.load(name)
        except ExtensionError as error:
            raise RoutingError(f"routing: {error}") from error
        pipelines[name] = defaults.pipeline(name, weights.items(), f"profile {name}")
    for profile in settings.scheduling_profiles:
        chosen = [(each.plugin_ref, each.weight) for each in profile.plugins]
        where = f"routing.scheduling_profiles.{profile.name}"
        pipelines[profile.name] = given.pipeline(profile.name, chosen, where)
    for key, name in (("profile", settings.live_profile), ("fallback", settings.fallback)):
        _known(f"routing.{key}", "profile", name, {*pipelines, *PROFILES.names()}, pipelines)
    if pipelines[settings.fallback].uses_predictions:
        others = _listed(name for name, pipeline in pipelines.items() if not pipeline.uses_predictions)
        raise RoutingError(
            f"routing.fallback: {settings.fallback!r} needs predictions itself; those that do not: {others}"
        )
    return pipelines


def prediction_profile(settings: RoutingSettings, profiles: Collection[str]) -> str:
    """The profile of requests that ask for prediction-based scheduling. Raises RoutingError."""
    named = _PluginSet(settings.plugins)
    plugins = [(f"routing.plugins.{n}", named.find(it.reference)) for n, it in enumerate(settings.plugins)]
    given = [(where, plugin) for where, plugin in plugins if isinstance(plugin, SloAwareProfileHandler)]
    if len(given) > 1:
        raise RoutingError(f"{given[1][0]}: a second slo-aware-profile-handler; {given[0][0]} is one")
    where, handler = given[0] if given else ("built-in", SloAwareProfileHandler())
    place = f"{where}.parameters.prediction"
    _known(place, "profile", handler.prediction, {*profiles, *PROFILES.names()}, profiles)
    return handler.prediction


class _PluginSet:
    """Plugins by the names that profiles use: those of the settings, and every type with its defaults."""

    def __init__(self, given: Sequence[PluginSettings]) -> None:
        self._made: dict[str, object] = {}
        for place, each in enumerate(given):
            where = f"routing.plugins.{place}"
            if each.reference in self._made:
                raise RoutingError(f"{where}: a second plugin named {each.reference!r}")
            _known(f"{where}.type", "plugin", each.type, PLUGINS.names())
            self._made[each.reference] = _plugin(each, where)

    def find(self, reference: str, where: str = "built-in") -> object:
        """The plugin of that name; RoutingError if there is none."""
        if reference not in self._made:
            _known(where, "plugin", reference, {*PLUGINS.names(), *self._made})
            self._made[reference] = _plugin(PluginSettings(type=reference), where)
        return self._made[reference]

    def pipeline(
        self, name: str, weights: Collection[tuple[str, float]], where: str = "built-in"
    ) -> Pipeline:
        """The profile of the named plugins with their weights, in order."""
        if not weights:
            raise RoutingError(f"{where}: no plugins; known: {_listed({*PLUGINS.names(), *self._made})}")
        chosen = [(reference, self.find(reference, where), weight) for reference, weight in weights]
        pickers = [reference for reference, plugin, _ in chosen if isinstance(plugin, Picker)]
        if len(pickers) > 1:
            raise RoutingError(f"{where}: one picker decides, not {' and '.join(pickers)}")
        default = PLUGINS.load("max-score-picker")()
        return make_pipeline(name, [(plugin, weight) for _, plugin, weight in chosen], default)


def _plugin(given: PluginSettings, where: str) -> object:
    """The plugin given in the settings. One that is not built in is checked, now and whenever it is used."""
    kind = given.type
    try:
        made = PLUGINS.load(kind)
    except ExtensionError as error:
        raise RoutingError(f"{where}: {error}") from error
    if not is_dataclass(made) or not isinstance(made, type):
        what = f"{made.__module__}:{made.__qualname__}" if isinstance(made, type) else type(made).__name__
        raise RoutingError(f"{where}: plugin {kind!r} of {what} is not a dataclass")
    if not made.__module__.startswith("headway."):
        # The compiled loops of its package may call ours, of which numba's cache knows nothing.
        drop_stale_cache(made.__module__.rpartition(".")[0] or made.__module__, *COMPILED)
    known = [field.name for field in fields(made) if field.init]
    for name in given.parameters:
        if name not in known:
            known_words = _listed(known) or "none"
            raise RoutingError(f"{where}.parameters: {kind} has no {name!r}; known: {known_words}")
    if kind in PLUGINS.builtin:
        return _made_of(made, given, where)
    try:
        return checked(given.reference, _made_of(made, given, where))
    except RoutingError:
        raise
    except Exception as error:
        raise PluginFault(given.reference, f"cannot be made: {said(error)}") from error


def _made_of(made: type, given: PluginSettings, where: str) -> object:
    try:
        plugin: object = TypeAdapter(made).validate_python(dict(given.parameters))
    except ValidationError as error:
        first = error.errors()[0]
        # A fault that the class itself finds, such as in __post_init__, has no place.
        place = ".".join(("parameters", *map(str, first["loc"])))
        raise RoutingError(f"{where}.{place}: {first['msg'].removeprefix('Value error, ')}") from error
    return plugin


def _known(
    where: str, what: str, name: str, known: Collection[str], usable: Collection[str] | None = None
) -> None:
    """Raise RoutingError unless `name` is one of `usable`; the error lists what is `known`."""
    if name not in (known if usable is None else usable):
        raise RoutingError(f"{where}: no {what} {name!r}; known: {_listed(known)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
