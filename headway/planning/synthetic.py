"""What a source counted → the requests that it may have been, one by one. Pure.

A Prometheus has no single requests, but more than means: the counters of each scrape, and histograms of
lengths. Made from them are

    arrivals   each step's count at as many independent uniform times in it: Poisson given the count of a
               step, so that bursts longer than a step are kept
    lengths    the histogram's quantiles, evenly spaced, in random order: evenly mixed ones would hide that
               long prompts come in runs; linear in a bucket, then scaled to the measured mean, which is exact

Inputs and outputs are drawn apart: histograms do not say which belong together. The longest TTFT goes to the
longest prompt, so that what no engine can serve in time explains as many misses as it may
(`hindsight.excess`). Of every input the same share was cached. The bucket without an upper bound ends where
the measured mean puts it, and not below twice its lower bound.
"""

from dataclasses import dataclass

import numpy as np

from headway.engine.observed_metrics import LengthSpread
from headway.planning.types import FloatArray, Observation, Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthHistogram:
    """Token counts, or seconds: `counts[i]` in (bounds[i - 1], bounds[i]], the last above all; their mean.

    Without bounds all lengths are the mean.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedTraffic:
    """One interval as counted: arrivals in steps from `start_s` on, each as (its end, arrivals); lengths.

    `output_tokens` are those of `completed` requests, None where nothing completed. `cached_share` of all
    input tokens were cached, 0 where that is not known. `ttft_s` in seconds, None without buckets.
    """

    start_s: float
    steps: tuple[tuple[float, float], ...]
    input_tokens: LengthHistogram
    output_tokens: LengthHistogram | None = None
    completed: float = 0.0
    cached_share: float = 0.0
    ttft_s: LengthHistogram | None = None


def made_of(counted: CountedTraffic) -> Traffic:
    """The requests; a function of the counts alone, seeded by the interval's start in ms."""
    generator = np.random.default_rng(abs(round(counted.start_s * 1e3)))
    arrival_s = _arrivals(counted, generator)
    outputs = counted.output_tokens
    completed = 0 if outputs is None else max(0, round(counted.completed))
    input_tokens = _lengths(counted.input_tokens, len(arrival_s), generator)
    completed_tokens = _lengths(counted.input_tokens, completed, generator)
    served: dict[str, FloatArray] = {}
    if counted.ttft_s is not None and completed:
        # First tokens are counted when they come: they are the interval's own.
        ttft_s = np.sort(_drawn(counted.ttft_s, completed, generator))
        served = {
            "completed_arrival_s": np.full(completed, counted.steps[-1][0]),
            "completed_ttft_s": ttft_s[np.argsort(np.argsort(completed_tokens, kind="stable"))],
            "completed_itl_s": np.full(completed, np.nan),
        }
    return Traffic(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        completed_input_tokens=completed_tokens,
        completed_output_tokens=np.zeros(0) if outputs is None else _lengths(outputs, completed, generator),
        completed_cached_tokens=counted.cached_share * completed_tokens if counted.cached_share else None,
        **served,
    )


def _arrivals(counted: CountedTraffic, generator: np.random.Generator) -> FloatArray:
    """Ascending; counts are rounded so that their sum is."""
    ends_s = np.array([end_s for end_s, _ in counted.steps])
    starts_s = np.concatenate([[counted.start_s], ends_s[:-1]])
    running = np.rint(np.cumsum([max(0.0, count) for _, count in counted.steps]))
    counts = np.diff(running, prepend=0.0).astype(np.int64)
    # From the end backwards, as a step does not hold its start: it is the step's before.
    before_end = generator.random(int(counts.sum()))
    lengths_s = np.repeat(ends_s - starts_s, counts)
    return np.sort(np.repeat(ends_s, counts) - before_end * lengths_s)


def _lengths(histogram: LengthHistogram, count: int, generator: np.random.Generator) -> FloatArray:
    """Token counts whose mean is exact."""
    drawn = _drawn(histogram, count, generator)
    if not histogram.bounds or not drawn.any():
        return drawn
    scaled: FloatArray = np.fmax(1.0, drawn * (histogram.mean / drawn.mean()))
    return scaled


def _drawn(histogram: LengthHistogram, count: int, generator: np.random.Generator) -> FloatArray:
    """Values of which each bucket has its share."""
    cumulative = np.cumsum(histogram.counts)
    if not (count and histogram.bounds and cumulative[-1] > 0):
        return np.full(count, histogram.mean)
    bounds = np.array(histogram.bounds)
    lower = np.concatenate([[0.0], bounds])
    upper = np.concatenate([bounds, [_last_bound(histogram)]])
    # The offset is another one each time: a few requests must not always miss the longest.
    rank = (generator.permutation(count) + generator.random()) / count * cumulative[-1]
    bucket = np.minimum(np.searchsorted(cumulative, rank, side="right"), len(upper) - 1)
    inside = np.array(histogram.counts)[bucket]
    within = 1.0 - (cumulative[bucket] - rank) / inside
    values: FloatArray = lower[bucket] + within * (upper[bucket] - lower[bucket])
    return values


def _last_bound(histogram: LengthHistogram) -> float:
    """The end of the bucket without one."""
    bounds, counts = np.array([0.0, *histogram.bounds]), np.array(histogram.counts)
    above = counts[-1]
    if not above > 0:
        return float(2.0 * bounds[-1])
    below = float((counts[:-1] * (bounds[1:] + bounds[:-1]) / 2.0).sum())
    mean_above = (histogram.mean * counts.sum() - below) / above
    return float(max(2.0 * bounds[-1], 2.0 * mean_above - bounds[-1]))


PARTS = 32


def length_spread(observation: Observation) -> LengthSpread:
    """Of an interval's prompts, and of the outputs that ended in it; no spread where there are none."""
    traffic, means = observation.traffic, (observation.isl_tokens, observation.osl_tokens)
    if traffic is None or not len(traffic.input_tokens):
        return LengthSpread(*means)
    inputs, outputs = np.sort(traffic.input_tokens), traffic.completed_output_tokens
    share = np.concatenate([[0.0], np.cumsum(inputs) / inputs.sum()])
    parts = PARTS * np.diff(np.interp(np.linspace(0.0, len(inputs), PARTS + 1), np.arange(len(share)), share))
    cv = float(outputs.std() / outputs.mean()) if len(outputs) else 0.0
    return LengthSpread(*means, tuple(parts.tolist()), cv)
