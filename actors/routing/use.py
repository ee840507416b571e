"""Whether a deployment's requests go through a router at all, and in which form they name their prefixes.

The three simplest profiles need no common knowledge: a gateway places by itself, and saves a hop.
"""

from headway.config import HeadwayConfig

STATELESS = frozenset({"random", "round_robin", "least_load"})
"""Profiles that a gateway carries out by itself."""

FALLBACK = "least_load"
"""What a gateway does where the profile needs a router and none answers."""


def stateless_profile(config: HeadwayConfig) -> str:
    """What a gateway carries out by itself: the configured profile where it can, else the fallback."""
    return config.routing.profile if _is_stateless(config) else FALLBACK


def needs_router(config: HeadwayConfig) -> bool:
    """Whether every request is to be routed by the Router: by profile, for offload, or for SLO classes."""
    routing = config.routing
    return not _is_stateless(config) or routing.offload.mode != "never" or bool(config.slo.classes)


def _is_stateless(config: HeadwayConfig) -> bool:
    routing = config.routing
    own = {profile.name for profile in routing.scheduling_profiles}
    return routing.profile in STATELESS and routing.profile not in own
