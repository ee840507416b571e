"""One interval as measured, how good its data is, and the way there: increases → means, quantiles, health.

Requests obey a law of conservation, by whatever they are counted:

    arrived = ended, in any way + growth of what waits and runs anywhere

Each side has witnesses of its own: counters of arrivals, ends and first tokens, gauges of what is in flight.
A first token came to a request that arrived in the interval, or waited for it as it began (WITNESS). Where
more of them came, requests ended that no counter of ends shows, as vLLM's do whose clients left. Then the
larger figure counts, and health names both: a plan may rise by it, and does not fall by the smaller one.

A number that could not be measured is NaN, and `health` says why. Zero traffic is `requests == 0` with NaN
latencies and health `ok`. Latencies are seconds, lengths tokens, times Unix seconds.

    mean = sum / count                                                       exact
    q-quantile: rank r = q * count falls into the bucket (a, b], the n-th of its c observations:
        a + (b - a) * n / c                                                  linear in the bucket

These are the rules of PromQL's `histogram_quantile`, so that both sources give one number: the lowest bucket
begins at 0, and a quantile in the bucket without an upper bound is the highest bound that there is (a lower
bound of it).

An engine that decodes speculatively shows one gap for each step, which makes several tokens. How many follows
in two ways, from counts and from the times of requests that ended:

    tokens per gap = min((OSL - 1) * ended / gaps, gap / ((E2E - TTFT) / (OSL - 1)))

While load changes one of them is off, but not both to the same side. Beyond STEP gaps, quantiles included,
are divided by it.

quantity missing                        reported as
arrivals never seen                     NaN, partial
zero traffic                            requests 0, latencies NaN, ok
two witnesses that contradict each      the larger, partial: the detail names both
  other
a counter that contradicts itself       its quantity NaN, partial: the detail says what it did
no counter moved and no request left,   requests NaN, partial
  but requests run
requests but no series of a latency     that latency NaN, partial: the detail names it
requests, none of them ended yet        what is known only at the end NaN, ok
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from math import inf, isfinite, isinf, isnan

from headway.engine.observed_metrics import EngineReading
from headway.planning import Role, Traffic
from headway.planning.silence import Silence
from headway.planning.synthetic import CountedTraffic, LengthHistogram

NAN = float("nan")


class Quantity(StrEnum):
    """A figure that an interval is asked for."""

    REQUESTS = "requests"
    COMPLETED = "completed"
    MET = "met"
    MISSED = "missed"
    ISL = "isl"
    OSL = "osl"
    DURATION = "duration"
    TTFT = "ttft"
    ITL = "itl"
    QUEUE = "queue"
    CACHED = "cached"


class HealthStatus(StrEnum):
    """The quality of an interval's data."""

    OK = "ok"
    STARTING = "starting"
    """Nothing has been read yet, or not for a whole interval."""
    PARTIAL = "partial"
    """Some series are missing or NaN; the others are good."""
    STALE = "stale"
    """The newest sample is too old."""
    DOWN = "down"
    """The source does not answer, or answers too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A status and one line: what is wrong and where, or with `ok` what was put right, mostly nothing."""

    status: HealthStatus
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean and quantiles of one latency in the interval, in seconds."""

    mean: float = NAN
    p50: float = NAN
    p95: float = NAN
    p99: float = NAN
    count: float = NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """Load of a pool, averaged over time: requests running and waiting on all its replicas together, and the
    mean of their KV usage in [0, 1].
    """

    running: float = NAN
    waiting: float = NAN
    kv_usage: float = NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMeasured:
    """The requests of one SLO class in the interval (`actors.collector.request_list`)."""

    requests: float = NAN
    judged: float = NAN
    attainment: float = NAN
    ttft_s: Latency = field(default_factory=Latency)
    itl_s: Latency = field(default_factory=Latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One interval. `requests` are arrivals; `attainment` is the share of ended requests that met the SLO,
    with `ttft_only` that of which the first token was in time, where no more is known; `judged` counts them.

    `queue_s` is the mean wait in an engine's queue, `cached_tokens` the mean of a prompt's tokens that were
    not computed again; NaN where the system does not say.

    `traffic` are the requests one by one, None where the source does not know them all; `counted` is what it
    counted of them, None where that is not known or nothing arrived. `classes` are by name those of the
    settings, none where requests are not known one by one. `engines` are what engines that others run show
    of their own work, and `silent` those of them that had requests and made no progress on any as it ended.
    `unended` are the requests that were under way as the interval began, where none has
    ended in it in any way; 0 where one has.
    """

    start_s: float
    end_s: float
    health: Health
    requests: float = NAN
    completed: float = NAN
    unended: float = 0.0
    isl_tokens: float = NAN
    osl_tokens: float = NAN
    request_duration_s: float = NAN
    attainment: float = NAN
    judged: float = NAN
    ttft_only: bool = False
    queue_s: float = NAN
    cached_tokens: float = NAN
    ttft_s: Latency = field(default_factory=Latency)
    itl_s: Latency = field(default_factory=Latency)
    load: Mapping[Role, PoolLoad] = field(default_factory=dict)
    traffic: Traffic | None = None
    counted: CountedTraffic | None = None
    classes: Mapping[str, ClassMeasured] = field(default_factory=dict)
    engines: Sequence[EngineReading] = field(default=(), repr=False)
    silent: Sequence[Silence] = ()

    @property
    def ended(self) -> float:
        """Requests that `attainment` is a share of; NaN where their number or the share is not known.

        As many as completed in the interval or arrived, whichever is more: nothing completes in an outage,
        and it must count all the same.
        """
        counts = [count for count in (self.completed, self.requests) if isfinite(count)]
        return max(counts) if counts and isfinite(self.attainment) else NAN


def noted(measured: Measured, note: str, status: HealthStatus | None = None) -> Measured:
    """With one more line in its health, and this status where one is given; as it is without a line."""
    if not note:
        return measured
    health = measured.health
    detail = "; ".join(filter(None, (health.detail, note)))
    return replace(measured, health=Health(status=status or health.status, detail=detail))


Buckets = Sequence[tuple[float, float]]
"""(upper bound, observations up to it), cumulative as Prometheus keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increase:
    """Observations added, their sum, and their number by bucket. A counter has `count` alone."""

    count: float = NAN
    total: float = NAN
    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def mean(self) -> float:
        """Mean of the added observations, NaN if there were none."""
        return self.total / self.count if self.count > 0 else NAN


def quantile(q: float, buckets: Buckets) -> float:
    """The q-quantile of what was added; NaN without observations, or without a bucket that holds them all."""
    rising: list[tuple[float, float]] = []
    for bound, count in sorted(buckets):
        # Summed series with different bounds can make the counts fall.
        rising.append((bound, max(rising[-1][1] if rising else -inf, count)))
    if len(rising) < 2 or not isinf(rising[-1][0]) or not rising[-1][1] > 0:
        return NAN
    rank = q * rising[-1][1]
    index = next(i for i, (_, count) in enumerate(rising) if count >= rank)
    if index == len(rising) - 1:
        return rising[-2][0]
    upper, count = rising[index]
    if index == 0 and upper <= 0.0:
        return upper
    lower, below = rising[index - 1] if index > 0 else (0.0, 0.0)
    return lower + (upper - lower) * (rank - below) / (count - below) if count > below else lower


def latency(increase: Increase) -> Latency:
    """Mean and quantiles."""
    p50, p95, p99 = (quantile(q, increase.buckets) for q in (0.50, 0.95, 0.99))
    return Latency(mean=increase.mean, p50=p50, p95=p95, p99=p99, count=increase.count)


NOTHING = Increase()
WITNESS, FEW, TWICE = 0.02, 3.0, 2.0
"""Share and number by which witnesses may differ; how many times the mean may wait as an interval begins."""
STEP = 1.2
"""Tokens per gap from which an engine speculates: what ends in an interval is not what began in it."""
AT_THE_END = (Quantity.OSL, Quantity.DURATION, Quantity.TTFT, Quantity.ITL)


Increases = Mapping[Quantity, Increase]
"""The increases of one interval; a quantity that is missing was not seen at all."""

Steps = Sequence[tuple[float, float]]
"""Arrivals since the scrape before, as (Unix seconds, arrivals). One may be negative where arrivals follow
from requests in flight: it takes back what the one before had too much."""


def unmeasured(start_s: float, end_s: float, status: HealthStatus, detail: str) -> Measured:
    """An interval of which nothing is known, and why."""
    return Measured(start_s=start_s, end_s=end_s, health=Health(status=status, detail=detail))


def assemble(
    start_s: float,
    end_s: float,
    seen: Increases,
    load: Mapping[Role, PoolLoad],
    doubts: Mapping[Quantity, str],
    *,
    knows_attainment: bool,
    in_flight: float = 0.0,
    grown: float = NAN,
    left: float = 0.0,
    steps: Steps = (),
) -> Measured:
    """The interval as reported, and its health. A quantity in doubt is as if it had not been seen.

    `in_flight` are the requests in flight at the interval's end, `grown` is by how many they are more than at
    its start; 0 and NaN where the system does not show them. `left` are those of the requests that no counter
    shows as ended.
    """
    lines = []
    if left > FEW + WITNESS * seen.get(Quantity.REQUESTS, NOTHING).count:
        lines.append(f"{left:g} requests left that no counter shows as ended")
    first = seen.get(Quantity.TTFT, NOTHING)
    if disagreement := _disagreement(seen, in_flight - grown, end_s - start_s):
        seen = {**seen, Quantity.REQUESTS: Increase(count=first.count)}
        lines.append(disagreement)
    elif not left >= 0.5 and (contradiction := _contradiction(seen, load, in_flight)):
        doubts = {**doubts, Quantity.REQUESTS: contradiction}
    seen = {quantity: increase for quantity, increase in seen.items() if quantity not in doubts}
    itl, step = seen.get(Quantity.ITL, NOTHING), _tokens_per_gap(seen)
    if step > STEP:
        seen = {**seen, Quantity.ITL: _shared_out(itl, step)}
    health = Health(status=HealthStatus.OK)
    # Counters of one process are mostly in doubt together: the requests' line stands for all.
    lines += [doubts.get(Quantity.REQUESTS) or next(iter(doubts.values()))] if doubts else []
    if missing := _missing(seen, knows_attainment=knows_attainment):
        lines.append(f"no data for {', '.join(missing)}")
    if lines:
        health = Health(status=HealthStatus.PARTIAL, detail="; ".join(lines))
    told = (
        f"a gap of {1e3 * itl.mean:.3g} ms makes {step:.2g} tokens (speculative decoding): ITL is their time"
    )
    only_arrivals = Quantity.COMPLETED not in {*seen, *doubts} and Quantity.REQUESTS in seen
    counts = (seen.get(quantity, NOTHING).count for quantity in (Quantity.MET, Quantity.MISSED))
    prompts = seen.get(Quantity.ISL, NOTHING).count or NAN
    met, missed = (0.0 if isnan(count) else count for count in counts)
    measured = Measured(
        start_s=start_s,
        end_s=end_s,
        health=health,
        # NaN stays NaN: max keeps its first argument then.
        requests=max(seen.get(Quantity.REQUESTS, NOTHING).count, 0.0),
        # No request has ended yet where arrivals are counted but no end has been seen.
        completed=0.0 if only_arrivals else seen.get(Quantity.COMPLETED, NOTHING).count,
        isl_tokens=seen.get(Quantity.ISL, NOTHING).mean,
        osl_tokens=seen.get(Quantity.OSL, NOTHING).mean,
        request_duration_s=seen.get(Quantity.DURATION, NOTHING).mean,
        attainment=met / (met + missed) if met + missed > 0 else NAN,
        judged=met + missed,
        queue_s=seen.get(Quantity.QUEUE, NOTHING).mean,
        cached_tokens=seen.get(Quantity.CACHED, NOTHING).count / prompts,
        ttft_s=latency(seen.get(Quantity.TTFT, NOTHING)),
        itl_s=latency(seen.get(Quantity.ITL, NOTHING)),
        load=load,
    )
    measured = noted(measured, told if step > STEP else "")
    before = in_flight - grown
    if isnan(before):
        # The mean of what runs and waits; what came in the interval is a part of it.
        there = sum(each for pool in load.values() for each in (pool.running, pool.waiting) if each > 0)
        before = there - (measured.requests if isfinite(measured.requests) else 0.0)
    ended = measured.completed > 0 or left >= 0.5 or isnan(measured.completed)
    unended = before if before >= 0.5 and not ended else 0.0
    return replace(measured, counted=_counted(measured, seen, steps), unended=unended)


def _tokens_per_gap(seen: Increases) -> float:
    """By counts or by time, whichever is less; 1 where either is unknown."""
    osl, gaps = seen.get(Quantity.OSL, NOTHING), seen.get(Quantity.ITL, NOTHING)
    after_s = seen.get(Quantity.DURATION, NOTHING).mean - seen.get(Quantity.TTFT, NOTHING).mean
    tokens = osl.total - osl.count
    if not (tokens > 0 and gaps.total > 0 and after_s > 0):
        return 1.0
    return min(tokens / gaps.count, gaps.mean * (osl.mean - 1.0) / after_s)


def _shared_out(gaps: Increase, step: float) -> Increase:
    """Gaps as the times of the `step` tokens that each of them makes."""
    buckets = tuple((bound / step, count * step) for bound, count in gaps.buckets)
    return Increase(count=gaps.count * step, total=gaps.total, buckets=buckets)


def _disagreement(seen: Increases, before: float, interval_s: float) -> str:
    """What first tokens say where they are too many for the requests; `before`: in flight at the start.

    By Little's law as many as `first * TTFT / interval_s` waited for their first token in the mean.
    """
    requests, first = seen.get(Quantity.REQUESTS, NOTHING).count, seen.get(Quantity.TTFT, NOTHING)
    if isnan(before) or isnan(requests) or not first.count > 0:
        return ""
    waited = min(before, TWICE * first.count * first.mean / interval_s)
    if first.count * (1 - WITNESS) - FEW <= max(requests, 0.0) + waited:
        return ""
    return (
        f"first tokens came to {first.count:g} requests, but {requests:g} came by those that ended and the "
        "change of those in flight: the larger counts"
    )


def _contradiction(seen: Increases, load: Mapping[Role, PoolLoad], in_flight: float) -> str:
    """Why the count of requests cannot be true although each counter is sound; empty if it can."""
    requests = seen.get(Quantity.REQUESTS, NOTHING).count
    if not requests < 0.5:
        return ""
    running = sum(pool.running for pool in load.values() if pool.running > 0)
    counts = [increase.count for quantity, increase in seen.items() if quantity is not Quantity.REQUESTS]
    if any(count > 0 for count in counts):
        return ""
    if running >= 1.0:
        return f"every counter stands still while replicas run {running:.1f} requests"
    return (
        f"every counter stands still while {in_flight:g} requests are in flight" if in_flight >= 1.0 else ""
    )


def _missing(seen: Increases, *, knows_attainment: bool) -> list[Quantity]:
    """The quantities that this interval's traffic should have left behind and did not."""
    requests = seen.get(Quantity.REQUESTS, NOTHING).count
    completed = seen.get(Quantity.COMPLETED, NOTHING).count
    missing = [Quantity.REQUESTS] if isnan(requests) else []
    if requests > 0:
        missing += [] if _usable(seen, Quantity.ISL) else [Quantity.ISL]
    if completed > 0:
        missing += [quantity for quantity in AT_THE_END if not _usable(seen, quantity)]
        if knows_attainment and Quantity.MET not in seen and Quantity.MISSED not in seen:
            missing += [Quantity.MET]
    return missing


def _usable(seen: Increases, quantity: Quantity) -> bool:
    """Seen, and not as NaN. A count that stood still is usable: it says that there was nothing."""
    increase = seen.get(quantity)
    return increase is not None and not isnan(increase.count) and not isnan(increase.total)


def _counted(measured: Measured, seen: Increases, steps: Steps) -> CountedTraffic | None:
    """What was counted of the requests; None without any, or where their number or lengths are unknown."""
    if not (measured.requests > 0 and isfinite(measured.isl_tokens)):
        return None
    outputs = None
    if isfinite(measured.osl_tokens):
        outputs = _lengths(seen.get(Quantity.OSL, NOTHING).buckets, measured.osl_tokens)
    return CountedTraffic(
        start_s=measured.start_s,
        steps=_adding_up(steps, measured),
        input_tokens=_lengths(seen.get(Quantity.ISL, NOTHING).buckets, measured.isl_tokens),
        output_tokens=outputs,
        completed=measured.completed if isfinite(measured.completed) else measured.requests,
        cached_share=_cached_share(measured),
        ttft_s=_ttft(seen.get(Quantity.TTFT, NOTHING)),
    )


def _ttft(seen: Increase) -> LengthHistogram | None:
    """None without buckets: a mean does not show which requests were late."""
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
