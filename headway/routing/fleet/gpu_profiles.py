"""Profiles of several GPU types, as `routing.gpu_profiles` names them.

    a directory, or a shipped profile   surfaces: latency prediction and capacity, at `engine.time_scale`
    a file                              AIBrix's JSON (`aibrix`): capacity of mixed replicas, as it stands
                                        there; no prediction, so SLO-aware profiles pass by its replicas

Replicas of a type that is not named have `engine.profile`, the type "". How engines batch is the same for
all types.
"""

from collections.abc import Mapping
from pathlib import Path

from headway.config import ConfigError, HeadwayConfig, resolve_profile
from headway.engine.rules import EngineRules
from headway.routing.fleet.aibrix import AibrixProfile, load_aibrix_profile
from headway.routing.fleet.capacity import DEFAULT_BUCKETS, Buckets, CapacitySource, CapacityTable
from headway.routing.fleet.surface_capacity import SurfaceCapacity
from headway.routing.types import RoutingError
from interp import Profile, ProfileError, load_profile, scaled

GpuProfile = Profile | AibrixProfile


def named_profiles(config: HeadwayConfig) -> Mapping[str, GpuProfile]:
    """By GPU type, without the default "". Raises ConfigError, one line that begins with the key."""
    speed = config.engine.time_scale
    return {
        gpu_type: _load(f"routing.gpu_profiles.{gpu_type}", name, speed)
        for gpu_type, name in config.routing.gpu_profiles.items()
    }


def surfaces_in(profiles: Mapping[str, GpuProfile]) -> Mapping[str, Profile | None]:
    """The surfaces of each GPU type; None for AIBrix profiles, which have none."""
    return {kind: profile if isinstance(profile, Profile) else None for kind, profile in profiles.items()}


def capacity_table(
    profiles: Mapping[str, Profile | CapacitySource], rules: EngineRules, buckets: Buckets = DEFAULT_BUCKETS
) -> CapacityTable:
    """Capacities by GPU type, each from its profile's surfaces, or from what is a source itself."""
    sources = {
        gpu_type: SurfaceCapacity(profile=profile, rules=rules) if isinstance(profile, Profile) else profile
        for gpu_type, profile in profiles.items()
    }
    return CapacityTable(sources, buckets)


def serves(profile: GpuProfile) -> str:
    """The use of this profile in routing, in words."""
    if isinstance(profile, Profile):
        return "latency and capacity by surfaces"
    return "AIBrix capacity of mixed replicas, no latency prediction"


def _load(key: str, name: str, speed: float) -> GpuProfile:
    try:
        if Path(name).is_file() or name.endswith(".json"):
            return load_aibrix_profile(Path(name))
        return scaled(load_profile(resolve_profile(name, key=key)), speed)
    except (RoutingError, ProfileError) as error:
        raise ConfigError(f"{key}: {error}") from error
