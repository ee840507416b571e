"""Which GPU types should serve a load, and how many of each: the cheapest whole numbers that keep the SLO.

    needs = pool_needs(candidates, load, limits)    # `needs`: what each type would need alone, by replays
    mix = cheapest(needs.pools, supply, rules)      # `mix`: the integer programme

Pure functions of values. The policies do not use it: live, a pool's replicas are of one kind.
"""

from headway.planning.gpu_types.making import candidates, supplies
from headway.planning.gpu_types.mix import InfeasibleError, cheapest, rounded_up
from headway.planning.gpu_types.needs import Candidate, Load, Needs, pool_needs
from headway.planning.gpu_types.values import Mix, MixRules, PoolNeed, Share, Supply

__all__ = [
    "Candidate",
    "InfeasibleError",
    "Load",
    "Mix",
    "MixRules",
    "Needs",
    "PoolNeed",
    "Share",
    "Supply",
    "candidates",
    "cheapest",
    "pool_needs",
    "rounded_up",
    "supplies",
]
