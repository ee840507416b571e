"""Which GPU types should serve a load, and how many of each: the cheapest whole numbers that keep the SLO.

    needs = pool_needs(candidates, load, limits)    # `needs`: what each type would need alone, by replays
    mix = cheapest(needs.pools, supply, rules)      # `mix`: the integer programme

Pure functions of values. The policies do not use it: live, a pool's replicas are of one kind.
"""

from headway_studies.gpu_mix.mix import InfeasibleError, Mix, MixRules, Supply, cheapest, rounded_up, supplies
from headway_studies.gpu_mix.needs import (
    GpuCandidate,
    PoolNeed,
    PoolNeeds,
    RequestLoad,
    Share,
    candidates,
    pool_needs,
)

__all__ = [
    "GpuCandidate",
    "InfeasibleError",
    "Mix",
    "MixRules",
    "PoolNeed",
    "PoolNeeds",
    "RequestLoad",
    "Share",
    "Supply",
    "candidates",
    "cheapest",
    "pool_needs",
    "rounded_up",
    "supplies",
]
