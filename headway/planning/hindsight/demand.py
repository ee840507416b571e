"""What a deployment would lose with how many GPUs: what it says where several share a budget (`sharing`).

Of each pool, the share of requests lost with n replicas is what the chosen forecast with the factor that
orders n would have lost; with fewer than its least factor orders, all. Replicas for the queue come on top.
Where not enough is known of a pool yet, each replica is taken for an equal part of the requests. Over the
pools losses add up, and the GPUs between them go where they save most:

    L(g) = λ · min over Σ_r g_r n_r ≤ g of Σ_r lost_r(n_r)          λ requests/s of late

A GPU that changes hands serves nobody for a lead. Counted over the time for which it then stays at least (the
hold), what is gained above the h GPUs held now is worth less,

    L'(g) = φ L(h) + (1 − φ) L(g)  for g > h,        φ = lead / (lead + hold)

so that deployments of equal need do not pass GPUs to and fro.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from headway.planning.hindsight.choosing import Option
from headway.planning.hindsight.judging import Judgement
from headway.planning.hindsight.levels import SMOOTHINGS
from headway.planning.sharing import GpuLosses, spend
from headway.planning.types import PoolLimits, Role

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWish:
    """One pool: its limits, the replicas it wants (within them) and has, `extra` of them for its queue.

    `option` or `judged` is None where not enough is known yet.
    """

    limits: PoolLimits
    wanted: int
    held: int
    extra: int
    option: Option | None
    judged: Judgement | None

    def lost(self) -> FloatArray:
        """Share of the requests lost, f8, with min_replicas, one more, … `wanted` replicas."""
        counts = np.arange(self.limits.min_replicas, self.wanted + 1)
        if self.option is None or self.judged is None:
            return 1.0 - counts / max(self.wanted, 1)
        row = SMOOTHINGS.index(self.option.smoothing)
        shares = self.judged.lost[row] / max(self.judged.requests, 1.0)
        ordered = self.judged.replicas[row] + self.extra
        least = np.append(1.0, np.minimum.accumulate(np.minimum(shares, 1.0)))
        return least[np.searchsorted(ordered, counts, side="right")]


def gpu_losses(pools: Mapping[Role, PoolWish], rate_rps: float, moving: float) -> GpuLosses:
    """The losses of a deployment: `rate_rps` requests/s, `moving` the φ of the theory."""
    minimum = sum(pool.limits.min_replicas * pool.limits.gpus_per_replica for pool in pools.values())
    wanted = sum(pool.wanted * pool.limits.gpus_per_replica for pool in pools.values())
    held = sum(pool.held * pool.limits.gpus_per_replica for pool in pools.values())
    shares = np.zeros(wanted - minimum + 1)
    for pool in pools.values():
        shares, _ = spend(shares, pool.lost(), pool.limits.gpus_per_replica)
    lost = rate_rps * np.minimum(shares, 1.0)
    now = min(max(held - minimum, 0), len(lost) - 1)
    lost[now + 1 :] = moving * lost[now] + (1.0 - moving) * lost[now + 1 :]
    unit = gcd(*(pool.limits.gpus_per_replica for pool in pools.values()))
    return GpuLosses(minimum_gpus=minimum, lost_rps=np.minimum.accumulate(lost), unit_gpus=unit)
