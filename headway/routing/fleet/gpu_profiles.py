"""Profiles of several GPU types, as `routing.gpu_profiles` names them.

    a directory, or a shipped profile   latency surfaces, at `engine.time_scale`
    a file                              the format is its suffix, `json` without one: the entry point group
                                        `headway.gpu_profiles` has a reader for each. What it reads serves the
                                        plugins of its package alone, so SLO-aware profiles pass such
                                        replicas by

Replicas of a type that is not named have `engine.profile`, the type "". How engines batch is the same for
all types.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from headway.config import ConfigError, HeadwayConfig, resolve_profile
from headway.extensions import ExtensionError, ExtensionPoint
from headway.routing.types import RoutingError
from interp import Profile, ProfileError, load_profile, scaled

FORMATS = ExtensionPoint("headway.gpu_profiles", "GPU profile format", {})
"""Readers, `(Path) -> ForeignProfile`, by suffix; a fault is a RoutingError, one line."""


class ForeignProfile(Protocol):
    """A profile without latency surfaces."""

    @property
    def serves(self) -> str:
        """Its use in routing, in words."""


GpuProfile = Profile | ForeignProfile


def named_profiles(config: HeadwayConfig) -> Mapping[str, GpuProfile]:
    """By GPU type, without the default "". Raises ConfigError, one line that begins with the key."""
    speed = config.engine.time_scale
    return {
        gpu_type: _load(f"routing.gpu_profiles.{gpu_type}", name, speed)
        for gpu_type, name in config.routing.gpu_profiles.items()
    }


def surfaces_in(profiles: Mapping[str, GpuProfile]) -> Mapping[str, Profile | None]:
    """The surfaces of each GPU type; None for profiles that have none."""
    return {kind: profile if isinstance(profile, Profile) else None for kind, profile in profiles.items()}


def serves(profile: GpuProfile) -> str:
    """The use of this profile in routing, in words."""
    return "latency and capacity by surfaces" if isinstance(profile, Profile) else profile.serves


def _load(key: str, name: str, speed: float) -> GpuProfile:
    path = Path(name)
    try:
        if path.is_file() or path.suffix == ".json":
            found: ForeignProfile = FORMATS.load(path.suffix.removeprefix(".") or "json")(path)
            return found
        return scaled(load_profile(resolve_profile(name, key=key)), speed)
    except (RoutingError, ProfileError, ExtensionError) as error:
        raise ConfigError(f"{key}: {error}") from error
