"""What the choice of GPU types is made from, and what comes of it.

Pools and types go by names. Money is in any one unit: only ratios of prices matter to the choice.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import TypeVar

from headway.planning.errors import PlanningError

T = TypeVar("T")

Counts = Mapping[str, Mapping[str, int]]
"""Replicas by pool and GPU type; what is missing is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """A GPU type as it can be had: its price, and how many GPUs there are (None: any number)."""

    price_per_gpu_hour: float
    max_gpus: int | None = None

    def __post_init__(self) -> None:
        if not (isfinite(self.price_per_gpu_hour) and self.price_per_gpu_hour > 0):
            raise PlanningError(f"gpu_types: a price of {self.price_per_gpu_hour} is not positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Requests whose SLO the same types can keep.

    `replicas` says, by type, how many replicas of it (a fraction) this share takes where it serves the share
    alone; types that are missing cannot serve it. Those in `late` serve it, but not within its SLO.
    """

    requests: int
    replicas: Mapping[str, float]
    late: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNeed:
    """What one pool has to serve: its shares, the GPUs of one replica by type, and the pool's limits.

    `may_miss` requests may be served by types that are late with them.
    """

    shares: tuple[Share, ...]
    gpus_per_replica: Mapping[str, int]
    may_miss: float = 0.0
    min_replicas: int = 0
    max_replicas: int | None = None

    def only(self, gpu_type: str) -> "PoolNeed":
        """The same with one type; shares that it cannot serve have none then."""
        shares = (replace(share, replicas=_only(share.replicas, gpu_type)) for share in self.shares)
        gpus = _only(self.gpus_per_replica, gpu_type)
        return replace(self, shares=tuple(shares), gpus_per_replica=gpus)


def _only(values: Mapping[str, T], name: str) -> Mapping[str, T]:
    return {name: values[name]} if name in values else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRules:
    """What else bounds the choice.

    `max_types` in one pool. `max_gpus` of all types and pools together. `running` is what runs now, and
    `switching` the share of its price per hour that leaving a running replica costs, in [0, 1): what runs
    counts as that much cheaper, so that it is exchanged only for what saves more.
    """

    max_types: int | None = None
    max_gpus: int | None = None
    running: Counts = field(default_factory=dict)
    switching: float = 0.0

    def __post_init__(self) -> None:
        if self.max_types is not None and self.max_types < 1:
            raise PlanningError(f"max-types: {self.max_types} is below 1")
        if not 0 <= self.switching < 1:
            raise PlanningError(f"switching: {self.switching} is not a share in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Replicas by pool and type (types without any are missing), and what they cost."""

    replicas: Counts
    cost_per_hour: float

    def gpus(self, needs: Mapping[str, PoolNeed]) -> Mapping[str, int]:
        """GPUs by type."""
        total: Counter[str] = Counter()
        for pool, counts in self.replicas.items():
            for gpu_type, count in counts.items():
                total[gpu_type] += count * needs[pool].gpus_per_replica[gpu_type]
        return dict(total)
