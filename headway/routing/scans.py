"""Loops over all candidates that every request pays for, compiled: in numpy a handful of calls each."""

import numpy as np
from numpy.typing import NDArray

from headway.routing.books import COMING, RUNNING, WAITING
from headway.routing.columns import Column
from headway.routing.fleet import FloatArray, SlotArray
from interp.jit import compiled

LOAD = int(Column.LOAD)
OTHER_REQUESTS, OTHER_TOKENS = int(Column.OTHER_REQUESTS), int(Column.OTHER_TOKENS)
CAPACITY_TOKENS = int(Column.CAPACITY_TOKENS)

EQUAL = 1e-12
"""Scores that differ by no more are equal."""

ROUNDING = 1e-9
"""Loads are sums of fractions."""


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
def fewest(counts: FloatArray) -> FloatArray:
    """From 1 for the least of `counts` down to 0 for the most, f8[C]; 1 where all are alike."""
    out, least, most = np.ones(len(counts)), np.inf, -np.inf
    for count in counts:
        least, most = min(least, count), max(most, count)
    if most > least:
        for place in range(len(counts)):
            out[place] = (most - counts[place]) / (most - least)
    return out


@compiled
def free_kv(table: FloatArray, tokens: int, slots: SlotArray) -> FloatArray:
    """The part of each KV cache that is free of the row `tokens` and of what others hold, f8[C]."""
    out = np.empty(len(slots))
    for place in range(len(slots)):
        slot = slots[place]
        used = (table[tokens, slot] + table[OTHER_TOKENS, slot]) / table[CAPACITY_TOKENS, slot]
        out[place] = 1.0 - min(used, 1.0)
    return out


@compiled
def room_for(table: FloatArray, slots: SlotArray, new: FloatArray) -> NDArray[np.bool_]:
    """Where loads of `new` fit beside those there, bool[C]; any finite one where nothing is."""
    out = np.empty(len(slots), dtype=np.bool_)
    for place in range(len(slots)):
        load = table[LOAD, slots[place]]
        out[place] = load + new[place] <= 1.0 + ROUNDING or (load == 0.0 and new[place] < np.inf)
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


@compiled
def drawn(scores: FloatArray, sharpness: float, lot: float) -> int:
    """A position drawn by score ^ `sharpness`; `lot` in [0, 1) decides. Any, where no score is positive."""
    best = 0.0
    for score in scores:
        if score > best:  # noqa: PLR1730 - max() would keep a NaN
            best = score
    if best == 0.0:
        return int(lot * len(scores))
    total, totals = 0.0, np.empty(len(scores))
    for place in range(len(scores)):
        if scores[place] > 0.0:
            total += (scores[place] / best) ** sharpness
        totals[place] = total
    return int(np.searchsorted(totals, lot * total, side="right"))
