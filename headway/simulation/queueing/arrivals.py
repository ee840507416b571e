"""The load of one run: a Poisson process per pattern, superposed, so that all policies see the same requests.

Gaps of the superposition are exponential with the summed rate, and each arrival belongs to pattern P with
probability λ(P) / Σ λ. Service is the profile's latency exactly, or exponential with that mean: the draw
belongs to the request (a factor of the latency), whichever consumer runs it.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from headway.simulation.queueing.model import Setup

Floats = npt.NDArray[np.float64]


class Service(Enum):
    """What the latency of a request is."""

    DETERMINISTIC = "deterministic"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class Requests:
    """A run of so many requests."""

    count: int


@dataclass(frozen=True, slots=True)
class Duration:
    """A run of all requests that arrive in so many seconds; their number is random."""

    seconds: float


Amount = Requests | Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Columns of equal length, in order of arrival: time, index of the pattern, factor of its latency."""

    time_s: Floats
    pattern: npt.NDArray[np.int64]
    factor: Floats


def draw_arrivals(setup: Setup, amount: Amount, service: Service, generator: np.random.Generator) -> Arrivals:
    """All requests of one run; possibly none for a Duration."""
    times = _times(setup.arrival_rps, amount, generator)
    rates = np.array([pattern.arrival_rps for pattern in setup.patterns])
    count = len(times)
    exponential = service is Service.EXPONENTIAL
    return Arrivals(
        time_s=times,
        pattern=generator.choice(len(rates), count, p=rates / rates.sum()).astype(np.int64),
        factor=generator.exponential(1.0, count) if exponential else np.ones(count),
    )


def _times(rate_rps: float, amount: Amount, generator: np.random.Generator) -> Floats:
    """For a duration: the number is Poisson and, given it, the times are uniform."""
    if isinstance(amount, Requests):
        return np.cumsum(generator.exponential(1 / rate_rps, amount.count))
    count = generator.poisson(rate_rps * amount.seconds)
    return np.sort(generator.uniform(0.0, amount.seconds, count))
