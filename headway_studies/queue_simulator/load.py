"""The load of one run, and how much of the consumers it asks for.

A Poisson process per pattern, superposed, so that all policies see the same requests. Service is the
profile's latency exactly, or exponential with that mean: a factor that belongs to the request.

The fluid load is the utilisation that the best split of the patterns would have. With x(P, k) requests per
second of pattern P on GPU type k, of which there are n(k), it solves a linear programme:

    minimise ρ    subject to    Σₖ x(P, k) = λ(P),    Σ_P x(P, k) / RPS(P, k) ≤ ρ n(k),    x ≥ 0

ρ ≥ 1: no routing keeps up. It is a lower bound, as whole requests rarely fill a consumer exactly.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from math import inf

import numpy as np
import numpy.typing as npt

from headway_studies.queue_simulator.model import Consumer, Pattern, Setup

Floats = npt.NDArray[np.float64]


class Service(Enum):
    """The distribution of a request's latency."""

    DETERMINISTIC = "deterministic"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class RequestCount:
    """A run of so many requests."""

    count: int


@dataclass(frozen=True, slots=True)
class RunDuration:
    """A run of all requests that arrive in so many seconds; their number is random."""

    seconds: float


Amount = RequestCount | RunDuration


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueArrivals:
    """Columns of equal length, in order of arrival: time, index of the pattern, factor of its latency."""

    time_s: Floats
    pattern: npt.NDArray[np.int64]
    factor: Floats


def draw_arrivals(
    setup: Setup, amount: Amount, service: Service, generator: np.random.Generator
) -> QueueArrivals:
    """All requests of one run; possibly none for a duration."""
    times = _times(setup.arrival_rps, amount, generator)
    rates = np.array([pattern.arrival_rps for pattern in setup.patterns])
    count = len(times)
    exponential = service is Service.EXPONENTIAL
    return QueueArrivals(
        time_s=times,
        pattern=generator.choice(len(rates), count, p=rates / rates.sum()).astype(np.int64),
        factor=generator.exponential(1.0, count) if exponential else np.ones(count),
    )


def _times(rate_rps: float, amount: Amount, generator: np.random.Generator) -> Floats:
    """For a duration: the number is Poisson and, given it, the times are uniform."""
    if isinstance(amount, RequestCount):
        return np.cumsum(generator.exponential(1 / rate_rps, amount.count))
    count = generator.poisson(rate_rps * amount.seconds)
    return np.sort(generator.uniform(0.0, amount.seconds, count))


MOST = 1e6


def fluid_load(setup: Setup) -> float:
    """ρ, above 0; it may exceed 1."""
    kinds = {id(consumer): consumer for consumer in setup.consumers}
    counts = Counter(id(consumer) for consumer in setup.consumers)
    types = [(consumer, counts[key]) for key, consumer in kinds.items()]
    if len(types) == 1:
        consumer, count = types[0]
        shares = (each.arrival_rps / consumer.profiles[each.name].throughput_rps for each in setup.patterns)
        return sum(shares) / count
    return _best_split(setup, types)


def _best_split(setup: Setup, types: list[tuple[Consumer, int]]) -> float:
    """Variables: the share of each pattern's arrivals on each type that serves it, and ρ.

    In units of the ρ of each pattern on its best type alone, which is no more than patterns × types too much.
    Pairs that could take only a millionth of their pattern are left out; both keep the numbers of one size.
    """
    from scipy.optimize import linprog

    use = [[_use(consumer, count, pattern) for consumer, count in types] for pattern in setup.patterns]
    unit = sum(min(row) for row in use)
    pairs = [(at, kind) for at, row in enumerate(use) for kind, used in enumerate(row) if used < MOST * unit]
    shares = np.zeros((len(use), len(pairs) + 1))
    work = np.zeros((len(types), len(pairs) + 1))
    work[:, -1] = -1.0
    for column, (at, kind) in enumerate(pairs):
        shares[at, column], work[kind, column] = 1.0, use[at][kind] / unit
    cost = np.zeros(len(pairs) + 1)
    cost[-1] = 1.0
    found = linprog(cost, A_ub=work, b_ub=np.zeros(len(types)), A_eq=shares, b_eq=np.ones(len(shares)))
    return unit * float(cost @ np.asarray(found.x, np.float64))


def _use(consumer: Consumer, count: int, pattern: Pattern) -> float:
    """The utilisation of a type if all arrivals of the pattern went there; inf where it is not served."""
    profile = consumer.profiles.get(pattern.name)
    return inf if profile is None else pattern.arrival_rps / profile.throughput_rps / count
