"""The actors of routing, Router and LatencyTrainer: whether a deployment needs them, and their start.

The three simplest profiles need no common state: a gateway places by itself, and saves a hop.
"""

from collections.abc import Callable
from typing import Any

from actors import names
from actors.store import Store
from headway.config import HeadwayConfig
from headway.engine.kinds import engine_kind

STATELESS = frozenset({"random", "round_robin", "least_load"})
"""Profiles that a gateway carries out by itself."""

FALLBACK = "least_load"
"""The gateway's own profile where the configured one needs a router and none answers."""


def stateless_profile(config: HeadwayConfig) -> str:
    """The profile that a gateway carries out by itself: the configured one if it can, else the fallback."""
    return config.routing.live_profile if _is_stateless(config) else FALLBACK


def needs_router(config: HeadwayConfig) -> bool:
    """True if the Router routes every request: by profile, for offload, SLO classes, tenants, or spillover.

    Never where others route, to engines that they started.
    """
    if engine_kind(config).elsewhere:
        return False
    routing = config.routing
    shared = bool(config.slo.classes or routing.tenants or config.spillover)
    return not _is_stateless(config) or routing.offload.mode != "never" or shared


def routing_actors(config: HeadwayConfig) -> tuple[str, ...]:
    """Names of the actors that routing has: the router, and the trainer where predictions are learned."""
    trainer = (names.LATENCY_TRAINER,) if config.routing.prediction.learn else ()
    return (names.router_of(config), *trainer)


def start_routing(config: HeadwayConfig, application: str = "") -> dict[str, Any]:
    """Handles of the `routing_actors` by name; those that run already are found."""
    from actors.hosting import hosting
    from actors.latency_trainer import LatencyTrainer
    from actors.router import Router

    def routed_by(settings: str) -> bool:
        return names.router_of(HeadwayConfig.model_validate_json(settings)) == router

    # The actors do not need the API keys.
    settings = config.model_dump_json(exclude={"gateway": {"api_keys"}})
    router, *trainers = routing_actors(config)
    # A call of a router that died is not repeated: the gateways begin a new session instead.
    known = {application: settings}
    routing = hosting(Router, _without_store(Router), routed_by)
    handles = {router: names.start_actor(routing, router, known, max_task_retries=0)}
    kind = hosting(LatencyTrainer, _without_store(LatencyTrainer))
    return handles | {name: names.start_actor(kind, name, known) for name in trainers}


def _without_store(kind: Callable[[str, str], Any]) -> Callable[[str, str, Store], Any]:
    return lambda settings, application, _: kind(settings, application)


def _is_stateless(config: HeadwayConfig) -> bool:
    routing = config.routing
    own = {profile.name for profile in routing.scheduling_profiles}
    return routing.live_profile in STATELESS and routing.live_profile not in own
