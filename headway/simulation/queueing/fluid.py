"""How much the arrivals ask of the consumers: the utilisation that the best split of the patterns would have.

With x(P, k) requests per second of pattern P on GPU type k, of which there are n(k):

    minimise ρ    subject to    Σₖ x(P, k) = λ(P),    Σ_P x(P, k) / RPS(P, k) ≤ ρ n(k),    x ≥ 0

a linear programme. ρ ≥ 1: no routing keeps up, and queues grow. For one type it is Σ λ(P) / RPS(P) / n. It is
a lower bound: requests are whole, and their loads rarely fill a consumer exactly.
"""

from collections import Counter
from math import inf

import numpy as np

from headway.simulation.queueing.model import Consumer, Pattern, Setup

MOST = 1e6


def fluid_load(setup: Setup) -> float:
    """ρ, above 0; it may exceed 1."""
    kinds = {id(consumer): consumer for consumer in setup.consumers}
    counts = Counter(id(consumer) for consumer in setup.consumers)
    types = [(consumer, counts[key]) for key, consumer in kinds.items()]
    if len(types) == 1:
        consumer, count = types[0]
        return _time_share(setup, consumer) / count
    return _best_split(setup, types)


def _time_share(setup: Setup, consumer: Consumer) -> float:
    return sum(
        pattern.arrival_rps / consumer.profiles[pattern.name].throughput_rps for pattern in setup.patterns
    )


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
