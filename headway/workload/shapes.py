"""The shapes of generated load: an arrival rate λ(t), in requests per second, t seconds after the start.

    steady    λ = r ramp      λ = r + (p − r) · t / duration                    linear from r to p step
    λ = p while at ≤ t < back_at, else r diurnal   λ = r · (1 − a · cos(2π t / period))              mean r
    over whole periods, starts at the trough burst     λ = p in the last burst_s seconds of every period of
    every_s, else r

r is `rate_rps`, p `peak_rps`, a `amplitude`. A further shape is a further class and its row in `SHAPES`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class Shape(Protocol):
    """An arrival rate over time."""

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """Requests per second at each time, in a load that lasts `duration_s`."""
        ...

    def highest(self) -> float:
        """A bound that the rate never exceeds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """A constant rate."""

    rate_rps: float = 10.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The rate, everywhere."""
        return np.full(len(time_s), self.rate_rps)

    def highest(self) -> float:
        """The rate."""
        return self.rate_rps


@dataclass(frozen=True, slots=True, kw_only=True)
class Ramp:
    """A straight line from one rate to another over the whole duration."""

    rate_rps: float = 1.0
    peak_rps: float = 20.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """Linear in time."""
        return self.rate_rps + (self.peak_rps - self.rate_rps) * time_s / duration_s

    def highest(self) -> float:
        """The higher end."""
        return max(self.rate_rps, self.peak_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A jump to another rate, and back if `back_at_s` is given."""

    rate_rps: float = 5.0
    peak_rps: float = 20.0
    at_s: float = 600.0
    back_at_s: float = inf

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The peak from `at_s` to before `back_at_s`."""
        return np.where((time_s >= self.at_s) & (time_s < self.back_at_s), self.peak_rps, self.rate_rps)

    def highest(self) -> float:
        """The higher of both."""
        return max(self.rate_rps, self.peak_rps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diurnal:
    """A day's sine around a mean rate; `amplitude` is its share of the mean."""

    rate_rps: float = 10.0
    amplitude: float = 0.5
    period_s: float = 86400.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """Lowest at the start, highest half a period later."""
        return self.rate_rps * (1 - self.amplitude * np.cos(2 * np.pi * time_s / self.period_s))

    def highest(self) -> float:
        """The crest."""
        return self.rate_rps * (1 + self.amplitude)


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Bursts of `burst_s` at `peak_rps`, one at the end of every `every_s`."""

    rate_rps: float = 5.0
    peak_rps: float = 50.0
    burst_s: float = 30.0
    every_s: float = 600.0

    def rate(self, time_s: Array, duration_s: float) -> Array:
        """The peak within bursts."""
        return np.where(time_s % self.every_s >= self.every_s - self.burst_s, self.peak_rps, self.rate_rps)

    def highest(self) -> float:
        """The higher of both."""
        return max(self.rate_rps, self.peak_rps)


SHAPES: Mapping[str, type[Steady | Ramp | Step | Diurnal | Burst]] = MappingProxyType(
    {"steady": Steady, "ramp": Ramp, "step": Step, "diurnal": Diurnal, "burst": Burst}
)
