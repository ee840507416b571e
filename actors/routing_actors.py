"""The actors of routing, Router and LatencyTrainer: whether a deployment needs them, and their start.

The three simplest profiles need no common state: a gateway places by itself, and saves a hop.
"""

from collections.abc import Callable, Mapping
from typing import Any

from actors import names
from headway.config import HeadwayConfig

STATELESS = frozenset({"random", "round_robin", "least_load"})
"""Profiles that a gateway carries out by itself."""

FALLBACK = "least_load"
"""The gateway's own profile where the configured one needs a router and none answers."""


def stateless_profile(config: HeadwayConfig) -> str:
    """The profile that a gateway carries out by itself: the configured one if it can, else the fallback."""
    return config.routing.profile if _is_stateless(config) else FALLBACK


def needs_router(config: HeadwayConfig) -> bool:
    """True if the Router routes every request: by profile, for offload, or for SLO classes."""
    routing = config.routing
    return not _is_stateless(config) or routing.offload.mode != "never" or bool(config.slo.classes)


def routing_actors(config: HeadwayConfig) -> Mapping[str, Callable[[str], Any]]:
    """The actors that the control plane starts for routing, none where no request needs them.

    By name, each with its start: from the settings as JSON to the actor's handle.
    """
    return _actors(config) if needs_router(config) else {}


def start_routing(config: HeadwayConfig) -> Any:  # noqa: ANN401 - the router's handle
    """The router, and the trainer where predictions are learned; actors that run already are found."""
    # The actors do not need the API keys.
    settings = config.model_dump_json(exclude={"gateway": {"api_keys"}})
    handles = {name: start(settings) for name, start in _actors(config).items()}
    return handles[names.router(config.model)]


def _actors(config: HeadwayConfig) -> dict[str, Callable[[str], Any]]:
    router = names.router(config.model)

    def start_router(settings_json: str) -> Any:  # noqa: ANN401
        from actors.router import Router

        # A call of a router that died is not repeated: the gateways begin a new session instead.
        return names.start_actor(Router, router, settings_json, max_task_retries=0)

    def start_trainer(settings_json: str) -> Any:  # noqa: ANN401
        from actors.latency_trainer import LatencyTrainer

        return names.start_actor(LatencyTrainer, names.LATENCY_TRAINER, settings_json)

    trainer = {names.LATENCY_TRAINER: start_trainer} if config.routing.prediction.learn else {}
    return {router: start_router, **trainer}


def _is_stateless(config: HeadwayConfig) -> bool:
    routing = config.routing
    own = {profile.name for profile in routing.scheduling_profiles}
    return routing.profile in STATELESS and routing.profile not in own
