"""Increases → an interval: what witnesses say of the requests, and what cannot be.

Requests obey a law of conservation, by whatever they are counted:

    arrived = ended, in any way + growth of what waits and runs anywhere

Each side has witnesses of its own: counters of arrivals, ends and first tokens, gauges of what is in flight.
A first token came to a request that arrived in the interval, or waited for it as it began (WITNESS). Where
more of them came, requests ended that no counter of ends shows, as vLLM's do whose clients left. Then the
larger figure counts, and health names both: a plan may rise by it, and does not fall by the smaller one.
Ends have a second witness, too, their durations: where a counter is scraped twice, more end than have one.

Prompts' tokens over their mean length are no further witness: engines count them with the first token, in one
branch (vLLM 0.32, `IterationStats.update_from_output`). They show and miss the same requests, less exactly.

An engine that decodes speculatively shows one gap for each step, which makes several tokens. How many follows
in two ways, from counts and from the times of requests that ended:

    tokens per gap = min((OSL - 1) * ended / gaps, gap / ((E2E - TTFT) / (OSL - 1)))

While load changes one of them is off, but not both to the same side. Beyond STEP gaps, quantiles included,
are divided by it.

Repeats, requests that failed and came again, are arrivals to all of these. Then they are left out of the
requests and their lengths, of which the histogram keeps its shape.

Times of another unit show between tokens: no engine takes LONGEST_GAP_S for one.

quantity missing                        reported as
arrivals never seen                     NaN, partial
zero traffic                            requests 0, latencies NaN, ok
two witnesses that contradict each      the larger, partial: the detail names both
  other
a counter that contradicts itself       its quantity NaN, partial: the detail says what it did
no counter moved and no request left,   requests NaN, partial
  but requests run
times or shares in another unit         that latency, or KV usage, NaN, partial: the detail names the unit
requests but no series of a latency     that latency NaN, partial: the detail names it
requests, none of them ended yet        what is known only at the end NaN, ok
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import isfinite, isnan

from actors.collector.interval import (
    NAN,
    NOTHING,
    Buckets,
    Health,
    HealthStatus,
    Increase,
    Measured,
    PoolLoad,
    Quantity,
    latency,
    noted,
)
from headway.planning import Role
from headway.planning.synthetic import CountedTraffic, LengthHistogram

WITNESS, FEW, TWICE = 0.02, 3.0, 2.0
"""Share and number by which witnesses may differ; how many times the mean may wait as an interval begins."""
STEP = 1.2
"""Tokens per gap from which an engine speculates: what ends in an interval is not what began in it."""
LONGEST_GAP_S = 2.5
"""Fifty times what engines take from token to token: that is another unit."""
MOST_USAGE, UNIT = 2.0, "metrics.overrides.series,"
LATENCIES = (Quantity.ITL, Quantity.TTFT, Quantity.DURATION, Quantity.QUEUE)
AT_THE_END = (Quantity.OSL, Quantity.DURATION, Quantity.TTFT, Quantity.ITL)


Increases = Mapping[Quantity, Increase]
"""The increases of one interval; a quantity that is missing was not seen at all."""

Steps = Sequence[tuple[float, float]]
"""Arrivals since the scrape before, as (Unix seconds, arrivals). One may be negative where arrivals follow
from requests in flight: it takes back what the one before had too much."""


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
    lines, least = [], NAN
    counted = seen.get(Quantity.REQUESTS, NOTHING).count
    if left > FEW + WITNESS * counted:
        least = counted - left
        lines.append(f"{left:g} requests left that no counter shows as ended")
    first = seen.get(Quantity.TTFT, NOTHING)
    if disagreement := _disagreement(seen, in_flight - grown, end_s - start_s):
        seen = {**seen, Quantity.REQUESTS: Increase(count=first.count)}
        least = counted - left
        lines.append(disagreement)
    elif not isnan(grown) and (untimed := _untimed(seen, doubts)):
        least, timed = counted - left - untimed, seen[Quantity.DURATION].count
        lines.append(f"{timed + untimed:g} requests ended, but {timed:g} have a duration: the larger counts")
    elif not left >= 0.5 and (contradiction := _contradiction(seen, load, in_flight)):
        doubts = {**doubts, Quantity.REQUESTS: contradiction}
    odd = _implausible(seen)
    doubts = {**odd, **doubts}
    seen = {quantity: increase for quantity, increase in seen.items() if quantity not in doubts}
    again = seen.get(Quantity.REPEATS, Increase(count=0.0, total=0.0))
    arrived, prompts = (seen.get(each, NOTHING).count for each in (Quantity.REQUESTS, Quantity.ISL))
    seen |= {each: _without(seen[each], again) for each in (Quantity.REQUESTS, Quantity.ISL) if each in seen}
    itl, step = seen.get(Quantity.ITL, NOTHING), _tokens_per_gap(seen)
    if step > STEP:
        seen = {**seen, Quantity.ITL: _shared_out(itl, step)}
    health = Health(status=HealthStatus.OK)
    # Counters of one process are mostly in doubt together: the requests' line stands for all.
    lines += [doubts.get(Quantity.REQUESTS) or next(iter(doubts.values()))] if doubts else []
    if missing := [each for each in _missing(seen, knows_attainment=knows_attainment) if each not in odd]:
        lines.append(f"no data for {', '.join(missing)}")
    usage = max((pool.kv_usage for pool in load.values() if pool.kv_usage > MOST_USAGE), default=0.0)
    if usage:
        percent = f"plausible in percent ({UNIT} kv_usage: {{unit: percent}})"
        lines.append(f"a KV usage of {usage:.3g} is no share, and {percent}")
        load = {role: replace(pool, kv_usage=NAN) for role, pool in load.items()}
    if lines:
        health = Health(status=HealthStatus.PARTIAL, detail="; ".join(lines))
    told = (
        f"a gap of {1e3 * itl.mean:.3g} ms makes {step:.2g} tokens (speculative decoding): ITL is their time"
    )
    only_arrivals = Quantity.COMPLETED not in {*seen, *doubts} and Quantity.REQUESTS in seen
    counts = (seen.get(quantity, NOTHING).count for quantity in (Quantity.MET, Quantity.MISSED))
    met, missed = (0.0 if isnan(count) else count for count in counts)
    measured = Measured(
        start_s=start_s,
        end_s=end_s,
        health=health,
        # NaN stays NaN: max keeps its first argument then.
        requests=max(seen.get(Quantity.REQUESTS, NOTHING).count, 0.0),
        repeats=again.count,
        least_requests=least if isnan(least) else max(least - again.count, 0.0),
        # No request has ended yet where arrivals are counted but no end has been seen.
        completed=0.0 if only_arrivals else seen.get(Quantity.COMPLETED, NOTHING).count,
        isl_tokens=seen.get(Quantity.ISL, NOTHING).mean,
        osl_tokens=seen.get(Quantity.OSL, NOTHING).mean,
        request_duration_s=seen.get(Quantity.DURATION, NOTHING).mean,
        attainment=met / (met + missed) if met + missed > 0 else NAN,
        judged=met + missed,
        queue_s=seen.get(Quantity.QUEUE, NOTHING).mean,
        cached_tokens=seen.get(Quantity.CACHED, NOTHING).count / (prompts or NAN),
        ttft_s=latency(seen.get(Quantity.TTFT, NOTHING)),
        itl_s=latency(seen.get(Quantity.ITL, NOTHING)),
        load=load,
    )
    measured = noted(measured, told if step > STEP else "")
    before = in_flight - grown
    if isnan(before):
        # The mean of what runs and waits; what came in the interval is a part of it.
        there = sum(each for pool in load.values() for each in (pool.running, pool.waiting) if each > 0)
        before = there - (arrived if isfinite(arrived) else 0.0)
    ended = measured.completed > 0 or left >= 0.5 or isnan(measured.completed)
    unended = before if before >= 0.5 and not ended else 0.0
    return replace(measured, counted=_counted(measured, seen, steps), unended=unended)


def _without(arrived: Increase, again: Increase) -> Increase:
    """Arrivals without repeats, some of which may have come in the interval before: then lengths stay."""
    count, total = max(arrived.count - again.count, 0.0), arrived.total - again.total
    if total <= 0.0:
        total = arrived.mean * count if count else 0.0
    return Increase(count=count, total=total, buckets=arrived.buckets)


def _implausible(seen: Increases) -> dict[Quantity, str]:
    """The latencies that were seen, where the time between tokens is no engine's."""
    gap_s = seen.get(Quantity.ITL, NOTHING).mean
    if not gap_s > LONGEST_GAP_S:
        return {}
    line = f"{gap_s:.3g} s between tokens are no engine's, and plausible in ms ({UNIT} itl: {{unit: ms}})"
    return {quantity: line for quantity in LATENCIES if quantity in seen}


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


def _untimed(seen: Increases, doubts: Mapping[Quantity, str]) -> float:
    """Requests that ended beyond those whose duration was observed, where they are too many."""
    ended, timed = (seen.get(each, NOTHING).count for each in (Quantity.COMPLETED, Quantity.DURATION))
    if {Quantity.REQUESTS, Quantity.COMPLETED, Quantity.DURATION} & doubts.keys():
        return 0.0
    return ended - timed if ended * (1 - WITNESS) - FEW > timed else 0.0


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
