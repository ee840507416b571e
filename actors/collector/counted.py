"""Increases of an interval → what planning makes requests of: arrivals by scrape, histograms of lengths."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import isfinite

from actors.collector.measured import NOTHING, Buckets, Increase, Increases, Measured
from actors.collector.presets import Quantity
from headway.planning.synthetic import CountedTraffic, LengthHistogram

Steps = Sequence[tuple[float, float]]
"""Arrivals since the scrape before, as (Unix seconds, arrivals). One may be negative where arrivals follow
from requests in flight: it takes back what the one before had too much."""


def with_counted(measured: Measured, seen: Increases, steps: Steps) -> Measured:
    """The interval with its counts, where there were requests and their number and lengths are known."""
    if not (measured.requests > 0 and isfinite(measured.isl_tokens)):
        return measured
    outputs = None
    if isfinite(measured.osl_tokens):
        outputs = _lengths(seen.get(Quantity.OSL, NOTHING).buckets, measured.osl_tokens)
    counted = CountedTraffic(
        start_s=measured.start_s,
        steps=_adding_up(steps, measured),
        input_tokens=_lengths(seen.get(Quantity.ISL, NOTHING).buckets, measured.isl_tokens),
        output_tokens=outputs,
        completed=measured.completed if isfinite(measured.completed) else measured.requests,
        cached_share=_cached_share(measured),
        ttft_s=_ttft(seen.get(Quantity.TTFT, NOTHING)),
    )
    return replace(measured, counted=counted)


def _ttft(seen: Increase) -> LengthHistogram | None:
    """Without buckets a mean says nothing of who was late."""
    found = _lengths(seen.buckets, seen.mean) if seen.buckets and isfinite(seen.mean) else None
    return found if found is not None and found.bounds else None


def _cached_share(measured: Measured) -> float:
    if not (measured.cached_tokens > 0 and measured.isl_tokens > 0):
        return 0.0
    return min(1.0, measured.cached_tokens / measured.isl_tokens)


def _adding_up(steps: Steps, measured: Measured) -> tuple[tuple[float, float], ...]:
    """The steps so that they are what arrived; one step where there are none."""
    within = [(min(at_s, measured.end_s), max(0.0, gain)) for at_s, gain in steps if at_s > measured.start_s]
    total = sum(gain for _, gain in within)
    if not total > 0:
        return ((measured.end_s, measured.requests),)
    return tuple((at_s, gain * measured.requests / total) for at_s, gain in within)


def _lengths(buckets: Buckets, mean: float) -> LengthHistogram:
    """Each bucket's own count, without those above the longest; the mean alone where there are none."""
    bounds = [bound for bound, _ in buckets if isfinite(bound)]
    rising = [0.0, *accumulate((count for _, count in buckets), max)]
    counts = [after - before for before, after in pairwise(rising)]
    if len(counts) != len(bounds) + 1 or not rising[-1] > 0:
        return LengthHistogram(bounds=(), counts=(1.0,), mean=mean)
    used = max(place for place, count in enumerate(counts) if count > 0)
    counts = [*counts[: used + 1], 0.0] if used < len(bounds) else counts
    return LengthHistogram(bounds=tuple(bounds[: len(counts) - 1]), counts=tuple(counts), mean=mean)
