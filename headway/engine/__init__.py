"""The engine model: the physics that simulator, live engines, planner and router share.

`rules` has how engines batch and what moving KV costs, `live` one replica an iteration at a time, for any
clock, with its batch (`live_batch`), its prefix cache and the durations of its iterations, `speeds` engines
that differ from their profile, `kernel` the compiled engine of everything that runs in virtual time.
`observed_latency` is what replicas see of themselves, `refinement` the profile corrected by it. Nothing
imported here needs a compiler, so that a replica starts fast.
"""

from headway.engine.iteration_times import IterationTimes
from headway.engine.live import Boundary, LiveEngine
from headway.engine.live_batch import JobState
from headway.engine.rules import MIXED_CHUNK_TOKENS, EngineRules, engine_profile, engine_rules

__all__ = [
    "MIXED_CHUNK_TOKENS",
    "Boundary",
    "EngineRules",
    "IterationTimes",
    "JobState",
    "LiveEngine",
    "engine_profile",
    "engine_rules",
]
