"""The engine model: the physics that simulator, live engines, planner and router share.

`rules` has how engines batch, what moving KV costs, and engines that differ from their profile. `live` is one
replica an iteration at a time, for any clock, with its batch, its prefix cache and the durations of its
iterations (`live_batch`); `kernel` is the compiled engine of everything that runs in virtual time.
`observed_latency` is what replicas see of themselves, `refinement` the profile corrected by it. Nothing
imported here needs a compiler, so that a replica starts fast.
"""

from headway.engine.live import Boundary, LiveEngine
from headway.engine.live_batch import IterationTimes
from headway.engine.rules import MIXED_CHUNK_TOKENS, EngineRules, engine_profile, engine_rules

__all__ = [
    "MIXED_CHUNK_TOKENS",
    "Boundary",
    "EngineRules",
    "IterationTimes",
    "LiveEngine",
    "engine_profile",
    "engine_rules",
]
