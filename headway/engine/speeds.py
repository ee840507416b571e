"""What simulated engines do, while everything else believes `engine.profile`: another profile, other speeds.

A speed of 0.7 makes everything that an engine computes take 1 / 0.7 times as long. Speeds change in steps at
given times of the run; a replica may besides be one of a share of slow ones, for its life.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from headway.config import HeadwayConfig, resolve_profile
from headway.engine.rules import engine_profile
from interp import Profile, load_profile, scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpeeds:
    """Speeds over the profile's, each by the second from which on it holds; before the first it is 1.

    `slow_share` of the replicas that start are of `slow_speed` besides.
    """

    prefill: Mapping[float, float] = field(default_factory=dict)
    decode: Mapping[float, float] = field(default_factory=dict)
    slow_share: float = 0.0
    slow_speed: float = 1.0

    def slowness(self, time_s: float) -> tuple[float, float]:
        """By how many times longer prefill and decode take at `time_s`, on a replica that is not slow."""
        return 1.0 / _at(self.prefill, time_s), 1.0 / _at(self.decode, time_s)

    @property
    def as_profiled(self) -> bool:
        """True if every engine is always as fast as its profile."""
        slow = {self.slow_speed} if self.slow_share else set()
        return {*self.prefill.values(), *self.decode.values(), *slow} <= {1.0}

    def changes(self) -> Iterator[float]:
        """The times after 0 at which a speed changes, in order."""
        return iter(sorted({time_s for time_s in (*self.prefill, *self.decode) if time_s > 0.0}))

    def draw(self, generator: np.random.Generator) -> float:
        """The slowness of one replica, beside that of all."""
        if self.slow_share == 0.0:
            return 1.0
        return 1.0 / self.slow_speed if generator.random() < self.slow_share else 1.0


def at_start(profile: Profile, speeds: EngineSpeeds) -> Profile:
    """`profile` at the speeds with which a run begins."""
    prefill, decode = speeds.slowness(0.0)
    return scaled(profile, 1.0 / prefill, 1.0 / decode)


def _at(steps: Mapping[float, float], time_s: float) -> float:
    times = sorted(steps)
    place = bisect_right(times, time_s)
    return steps[times[place - 1]] if place else 1.0


def simulated_speeds(config: HeadwayConfig) -> EngineSpeeds:
    """The speeds that `simulation.engine` sets."""
    engine = config.simulation.engine
    slow = engine.slow_replicas
    return EngineSpeeds(
        prefill=_steps(engine.prefill_speed),
        decode=_steps(engine.decode_speed),
        slow_share=slow.share if slow else 0.0,
        slow_speed=slow.speed if slow else 1.0,
    )


def _steps(speed: float | Mapping[float, float]) -> Mapping[float, float]:
    return speed if isinstance(speed, Mapping) else {0.0: speed}


def simulated_profile(config: HeadwayConfig) -> Profile:
    """The profile by which simulated engines run. ConfigError or ProfileError, each one line."""
    name = config.simulation.engine.profile
    if name is None:
        return engine_profile(config)
    return scaled(load_profile(resolve_profile(name)), config.engine.time_scale)
