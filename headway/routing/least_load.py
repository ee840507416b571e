"""The least-load rule, one for the scorer `least-load`, the compiled simulation and gateways on their own.

    load     prompt tokens outstanding on prefill replicas, requests there or on their way on all others
    choice   the least load; of equals the first

Where replicas are known to differ in speed (`headway.engine.replica_speeds`), a load x is compared as that
with which a typical replica would be as late: for s times the latency, the request itself counting y, on top
of what an empty batch takes, worth h requests (0 for prompts)

    felt     x + (s − 1) (x + y + h)          exactly x where s is 1

A prompt's length says how long a prefill replica is busy with it; a batch is crowded by its requests, however
long they are. Nothing here needs numpy, so that a gateway can import it. The simulation has the same rule
compiled (`headway.simulation.kernel`).
"""

from collections.abc import Iterable

from headway.config import Role


def counts_prompt_tokens(role: Role) -> bool:
    """True if replicas of `role` are compared by prompt tokens, False if by requests."""
    return role is Role.PREFILL


def felt_load(load: float, own: float, slowness: float, idle: float) -> float:
    """The load of a typical replica that is as late with the request, see the module."""
    return load + (slowness - 1.0) * (load + own + idle)


def least_loaded(loads: Iterable[float]) -> int:
    """The position of the least of `loads`, the first of equals. ValueError if there are none."""
    return min(enumerate(loads), key=lambda each: each[1])[0]
