"""Advice: the counterfactual of a planner that only watches. Pure.

A planner in a dry run sets nothing. What its plan would have been worth is found by living it through beside
the fleet that really stands there:

    planned fleet   the replicas that the plan's own decisions would have had: it begins as the real one, what
                    is ordered serves a start-up later, what is released drains (`replay`). Each decision is
                    made from the planned fleet, not from the real one: only so is a chain of decisions a plan
    replay          both fleets, the real and the planned one, are replayed through the traffic that came,
                    without a break from interval to interval (`replay`): requests that met their SLO
    ledger          GPU-seconds and requests of both by interval, after two days by hour (`ledger`)
    summary         savings and attainment since the start and over the last hour and day, each with its
                    spread (`ledger`)

The replay of the real fleet says how good replays are here: it is held against what was measured, and the
difference is carried over to the planned fleet.
"""
