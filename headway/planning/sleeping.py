"""Which engines may sleep, of deployments that share GPUs and host memory.

Theory. An engine that sleeps keeps its part of a GPU in the scheduler (`engine.sleep.per_gpu`), as it does
awake, and host memory, which one that is awake and will sleep again must find free. So a pool with n replicas
awake and k sleepers takes max(n, k) parts of GPUs, and k times the memory. What sleeps is in the way of what
others want awake. The j-th engine of a pool saves requests the wait for a start whenever the replicas rise
from below j. With the requests q of the interval of a rise to n, each Δt apart,

    r_j ← r_j · 2^(−Δt / half-life) + q / n        for each j that was risen to
    worth_j = weight · max r_i over i ≥ j          as the i-th one cannot be there without the j-th

What is awake has its GPUs first. The rest goes by priority, then by worth, to engines that still fit. One
that is there already counts KEPT times, as another would have to be loaded. What fits is kept even if it was
of no use yet.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.planning.types import Role

KEPT = 2.0
ROUNDING = 1e-9

Risen = tuple[float, ...]
"""The r of the theory, from the first engine on."""


def risen(before: Risen, fell: float, low: int, high: int, requests: float) -> Risen:
    """After an interval of so many requests at whose beginning the replicas rose from `low` to `high`, if at
    all; what was known counts for the part `fell`."""
    known = [each * fell for each in before]
    known += [0.0] * (high - len(known))
    for place in range(low, high):
        known[place] += requests / high
    return tuple(known)


class Engine(NamedTuple):
    """What an engine that may sleep takes: a part of its GPUs, and host memory in bytes."""

    gpus: float
    memory: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingPool:
    """A pool of which at most `most` engines sleep while they are not wanted.

    So many are `kept` for that by the last decision. Of its replicas, with `gpus_awake` each, `wanted` are to
    be awake, and `held` are.
    """

    role: Role
    engine: Engine
    gpus_awake: int
    most: int
    wanted: int
    held: int
    kept: int
    risen: Risen = ()

    def worth(self, engine: int) -> float:
        """Of the n-th engine, from 0 on."""
        return max(self.risen[engine:], default=0.0) * (KEPT if engine < self.kept else 1.0)


class Bidder(NamedTuple):
    """One deployment: its place among the others, the GPUs that it is granted of those wanted, its pools."""

    name: str
    priority: int
    weight: float
    granted: int
    wanted: int
    pools: tuple[SleepingPool, ...]

    def awake(self) -> Mapping[Role, int]:
        """Replicas of the pools that may sleep; short of GPUs there are no more than are held."""
        short = self.granted < self.wanted
        return {pool.role: min(pool.wanted, pool.held) if short else pool.wanted for pool in self.pools}


Sleepers = Mapping[Role, int]
"""Engines that each pool keeps for sleep."""


def kept_for_sleep(reasons: Mapping[str, Any]) -> Sleepers:
    """Of a decision with these reasons; empty where all that are stated are kept."""
    return {Role(role): count for role, count in reasons.get("grant", {}).get("sleepers", {}).items()}


def sleepers(bidders: Iterable[Bidder], gpus: float, memory: float) -> Mapping[str, Sleepers]:
    """How many engines the pools keep, by deployment; those without such pools are left out."""
    kept, order = dict[str, dict[Role, int]](), list[tuple[int, float, int, str, SleepingPool, float]]()
    for bidder in bidders:
        awake, taken = bidder.awake(), float(bidder.granted)
        for pool in bidder.pools:
            taken -= awake[pool.role] * (pool.gpus_awake - pool.engine.gpus)
            kept.setdefault(bidder.name, {})[pool.role] = 0
            for engine in range(pool.most):
                more = pool.engine.gpus if engine >= awake[pool.role] else 0.0
                worth = bidder.weight * pool.worth(engine)
                order.append((-bidder.priority, -worth, engine, bidder.name, pool, more))
        gpus -= max(0.0, taken)
    for _, _, engine, name, pool, more in sorted(order, key=lambda each: (*each[:4], each[4].role)):
        fits = more <= gpus + ROUNDING and pool.engine.memory <= memory
        if fits and kept[name][pool.role] == engine:
            gpus, memory = gpus - more, memory - pool.engine.memory
            kept[name][pool.role] = engine + 1
    return kept
