"""Which deployment meets the SLO on a trace at the least cost: engine, mode, chunk size, fleet, policy.

    engines = engine_choices(base, profiles)                `candidates`: engines × modes × chunk sizes
    rows = evaluated(candidates(base, engines, ...), runs)  `search`: the least cost of each, simulated
    found = chosen(rows)                                    and the cheapest of all, or None

Pure functions of values and a trace; `Runs` lets the caller spread the simulations over processes.
"""
