"""Loops over all candidates that every request pays for, compiled: in numpy a handful of calls each."""

import numpy as np

from headway.routing.books import COMING, RUNNING, WAITING
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray, SlotArray
from interp.jit import compiled

OTHER_REQUESTS = int(Column.OTHER_REQUESTS)

EQUAL = 1e-12
"""Scores that differ by no more are equal."""


@compiled
def requests_in(table: FloatArray, slots: SlotArray) -> FloatArray:
    """Requests at each of `slots` or coming to it, those of others included, f8[C]."""
    out = np.empty(len(slots))
    for place in range(len(slots)):
        slot = slots[place]
        queued = max(table[COMING, slot], table[WAITING, slot])
        out[place] = table[RUNNING, slot] + queued + table[OTHER_REQUESTS, slot]
    return out


@compiled
def best_places(scores: FloatArray) -> SlotArray:
    """Positions of the highest of `scores` and its equals, i8[at least 1]; NaN counts as −1, the lowest."""
    best = -1.0
    for score in scores:
        if score > best:  # noqa: PLR1730 - max() would keep a NaN
            best = score
    found, out = 0, np.empty(len(scores), dtype=np.int64)
    for place in range(len(scores)):
        score = -1.0 if np.isnan(scores[place]) else scores[place]
        if score >= best - EQUAL:
            out[found] = place
            found += 1
    return out[:found]
