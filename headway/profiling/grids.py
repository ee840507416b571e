"""Where to sample an engine: input lengths for prefill, (batch, context) points for decode.

Latency curves are close to `a + b·x + c·x²` over three decades of x, and readers interpolate linearly
between samples. Log-spaced samples give every decade the same relative error: between x and r·x a parabola
departs from its chord by at most (r-1)²/4r of its value, 2 % at r = 1.33 (the default prefill grid over
three decades).

Decode lines of one context run from a single request to the largest batch that both the batch limit and the
KV capacity allow, ends included, so that the usable range lies inside the samples. Pure functions of
integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_TOKENS = 128
MIN_CONTEXT_TOKENS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """One decode sample: `batch` requests with `context_tokens` tokens each."""

    batch: int
    context_tokens: int


def log_spaced(low: int, high: int, points: int) -> tuple[int, ...]:
    """Ascending distinct integers from `low` to `high`, ends included, at most `points` (at least 1) of them.

    An empty range (`high` < `low`) gives `high` alone.
    """
    if high <= low:
        return (high,)
    spaced = np.rint(np.geomspace(low, high, max(points, 2))).astype(int)
    return tuple(int(value) for value in np.unique(spaced))


def prefill_grid(max_isl_tokens: int, points: int) -> tuple[int, ...]:
    """Input lengths to sample, up to `max_isl_tokens`."""
    return log_spaced(MIN_TOKENS, max_isl_tokens, points)


def decode_contexts(max_context_tokens: int, points: int) -> tuple[int, ...]:
    """Context lengths to sample, up to `max_context_tokens`."""
    return log_spaced(MIN_CONTEXT_TOKENS, max_context_tokens, points)


def decode_grid(
    contexts: Sequence[int], *, max_batch: int, max_kv_tokens: int, batches: int
) -> tuple[DecodePoint, ...]:
    """Decode samples, line by line: batches from 1 to min(`max_batch`, capacity at that context).

    A context of which not even one request fits into `max_kv_tokens` has no line.
    """
    points: list[DecodePoint] = []
    for context in contexts:
        largest = min(max_batch, max_kv_tokens // context)
        if largest >= 1:
            line = log_spaced(1, largest, batches)
            points.extend(DecodePoint(batch=batch, context_tokens=context) for batch in line)
    return tuple(points)
