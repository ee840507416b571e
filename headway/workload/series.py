"""A trace as a series per interval: what a load predictor is warmed up with."""

from dataclasses import dataclass
from math import isfinite

import numpy as np
import numpy.typing as npt

from headway.workload.errors import TraceError
from headway.workload.trace import RequestChunk, Trace

Array = npt.NDArray[np.float64]

MAX_INTERVALS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalSeries:
    """Per interval of `interval_s`: arrivals, and their mean input and output tokens (NaN without any)."""

    interval_s: float
    requests: Array
    isl_tokens: Array
    osl_tokens: Array


def interval_series(trace: Trace, interval_s: float) -> IntervalSeries:
    """Counts and mean lengths per whole interval of the trace.

    A last interval that the trace fills only in part is left out, as its count would read as a drop in load.
    Raises TraceError when the trace does not fill a single interval, or has more than a million.
    """
    if not (isfinite(interval_s) and interval_s > 0):
        raise TraceError(f"interval_s must be above 0 and finite, got {interval_s}")
    if trace.duration_s / interval_s > MAX_INTERVALS:
        raise TraceError(
            f"{trace.name}: {trace.duration_s:g} s long, "
            f"more than {MAX_INTERVALS:,} intervals of {interval_s:g} s"
        )
    intervals = int(trace.duration_s // interval_s)
    if intervals < 1:
        raise TraceError(
            f"{trace.name}: {trace.duration_s:g} s long, less than one interval of {interval_s:g} s"
        )
    sums = np.zeros((3, intervals))
    for chunk in trace.chunks():
        sums += _sums(chunk, interval_s, intervals)
    requests, inputs, outputs = sums
    with np.errstate(invalid="ignore"):
        means = inputs / requests, outputs / requests
    return IntervalSeries(interval_s=interval_s, requests=requests, isl_tokens=means[0], osl_tokens=means[1])


def _sums(chunk: RequestChunk, interval_s: float, intervals: int) -> Array:
    """Rows: arrivals, input tokens, output tokens per interval; the rest of the trace is cut off."""
    index = (chunk.arrival_s // interval_s).astype(np.int64)
    whole = index < intervals
    weights = (None, chunk.input_tokens, chunk.output_tokens)
    return np.array(
        [
            np.bincount(index[whole], None if weight is None else weight[whole], minlength=intervals)
            for weight in weights
        ],
        np.float64,
    )
