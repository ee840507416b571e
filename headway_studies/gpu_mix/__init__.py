"""Which GPU types should serve a load, and how many of each: the cheapest whole numbers that keep the SLO.

    needs = pool_needs(candidates, load, limits)    # `needs`: what each type would need alone, by replays
    mix = cheapest(needs.pools, supply, rules)      # `mix`: the integer programme

Pure functions of values. The policies do not use it: live, a pool's replicas are of one kind.
"""
