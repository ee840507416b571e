"""Which deployment meets the SLO on a trace at the least cost: engine, mode, chunk size, fleet, policy.

    engines = engine_choices(base, profiles)                `candidates`: engines × modes × chunk sizes
    rows = evaluated(candidates(base, engines, ...), runs)  `search`: the least cost of each, simulated
    found = chosen(rows)                                    and the cheapest of all, or None

Pure functions of values and a trace; `Runs` lets the caller spread the simulations over processes.
"""

from headway_studies.recommend.candidates import (
    Base,
    Candidate,
    EngineChoice,
    Mode,
    candidates,
    engine_choices,
    priced,
)
from headway_studies.recommend.fleets import Fleet, LeastFleet, least_fleet
from headway_studies.recommend.search import (
    Choice,
    Found,
    Row,
    Runs,
    cheapest,
    chosen,
    evaluated,
    other_policy,
)
from headway_studies.recommend.trials import Facts, Outcome, facts, fixed, followed

__all__ = [
    "Base",
    "Candidate",
    "Choice",
    "EngineChoice",
    "Facts",
    "Fleet",
    "Found",
    "LeastFleet",
    "Mode",
    "Outcome",
    "Row",
    "Runs",
    "candidates",
    "cheapest",
    "chosen",
    "engine_choices",
    "evaluated",
    "facts",
    "fixed",
    "followed",
    "least_fleet",
    "other_policy",
    "priced",
]
