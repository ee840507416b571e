"""Recent requests replayed through constant fleets: what would n replicas of a pool have lost?

`prefill_losses`, `decode_losses` and `mixed_losses` answer with a `LossCurve`. The model of the engine is
lean: no events but arrivals and ends, latencies from the profile's surfaces. Pure functions of values,
without randomness.
"""

from headway.planning.replay.curve import LossCurve, least_replicas
from headway.planning.replay.engine import (
    ReplayEngine,
    Requests,
    attainable,
    decode_seconds,
    mixed_seconds,
    mixed_slack,
    prefill_seconds,
)
from headway.planning.replay.losses import decode_losses, mixed_losses, prefill_losses

__all__ = [
    "LossCurve",
    "ReplayEngine",
    "Requests",
    "attainable",
    "decode_losses",
    "decode_seconds",
    "least_replicas",
    "mixed_losses",
    "mixed_seconds",
    "mixed_slack",
    "prefill_losses",
    "prefill_seconds",
]
