"""Which replica P would compute the prompt: the one that is done first.

    P = argmin_x  Q_x + T_x(u_x) + others_x,   x ≠ D

Q_x is the queued prefill work in seconds, T_x the prefill of what x has not cached, and others_x, where it is
given, the request-seconds that everybody else at x would lose (`Delays.others_s`); one vectorised expression
over all replicas.
"""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def best_prefill(
    queue_s: FloatArray, prefill_s: FloatArray, *, d: int | None = None, others_s: FloatArray | float = 0.0
) -> int | None:
    """Position of P in arrays of seconds, one value a replica; the first of equals.

    `d` is D's position, which is no candidate. Replicas with NaN or infinity are none either; None if there
    is no candidate.
    """
    total_s = np.asarray(queue_s + prefill_s + others_s, np.float64)
    total_s = np.where(np.isfinite(total_s), total_s, np.inf)
    if d is not None:
        total_s[d] = np.inf
    if len(total_s) == 0:
        return None
    best = int(np.argmin(total_s))
    return best if np.isfinite(total_s[best]) else None
