"""Latencies in a profile's terms as an engine's own metrics show them, of engines that Headway only reads.

What is read are totals. Between two reads, Δ seconds apart, came so many first tokens, so many prompts took
so many seconds from the first iteration that computed them to their first token (queueing apart), and so many
gaps between tokens so many seconds. With

    λ = first tokens / Δ      m = seconds / prompts, u = computed tokens / prompts   of those that were shown
    q                         what a prompt of the first tokens takes, over what one of those shown takes
    g = gap seconds / gaps    B = gap seconds / Δ      requests that decode, on average (Little's law)

two figures are sought: w, what a prompt adds to iterations (W(u) − W(0) of `surfaces`), and I, the ITL of the
batch without prompts. A prompt stretches one gap of each request that decodes then. These are B on average
where prompts come without regard to it, and fewer where a balancer sends them to where fewest are, at small
batches to idle engines: the share f of B lies between. So gap seconds = gaps · I + λΔ q w f B, and with B
from above

    I = g (1 − λ q w f)         f = (B + 1) / (B + 2)                                                     (1)

A prompt shares its iterations with the batch, and with o others that are computed at the same time:

    m = n I' + w (1 + o)        I' = (1 − e) I + e W(0)         e = exp(−B)      the batch is empty       (2)
    n = 1 / (1 − exp(−κ))                                         iterations of prompts of mixed lengths
    o = λT κ / (λT + κ)         κ = chunk / u                                    at most a chunk's tokens
    T = s m + (1 − s)(1 − e) I  s = min(1, λ (q w + I'))                         the iteration under way

since those are computed together that came during the iteration under way, which an arrival finds of length T
on average: for a share s of the time it carries prompts. W(0) is as much slower than known as w is. An engine
that computes one prompt at a time (chunk 0) has o = 0 and n = 1. (1) and (2) are solved together, so that
engines of any speed are seen as they are from the start. Against simulated engines of 0.6 to 1.5 times the
profiled speed, placed by load, the mean of many readings is mostly within 5 %, and within 11 %, up to a load
of 0.85. Where each iteration of a saturated engine carries many prompts, prefill is taken for as much as 13 %
faster than it is.

Means are not samples. Prefill time is convex in the length, so that prompts of mixed lengths take longer than
one of their mean. What is measured is held against the mean over lengths that spread as the interval's do, as
far as P prompts show it (the share (P − 1) / (P + 3 cv²) of what it adds), and reported as what one prompt of
the mean length takes. The ITL is linear in batch and context over what a read spans. The batch is that of a
token: k + (k − 1) / 2k at k = gaps / iterations requests in an iteration, between batches that are all alike
and one and a Poisson number of others; B / (1 − e) where an engine counts no iterations. Its context is that
of a token on average, ISL + OSL/2 (1 + cv²): how much of a KV cache is in use depends on a capacity and on
shared prefixes that metrics do not tell apart.

A reading shows nothing of a phase with fewer than LEAST_PROMPTS or LEAST_GAPS, nothing of decoding where a
request was preempted, whose gap has its queueing in it, or where prompts take more than MOST_PROMPTS of the
time, and nothing where (1) and (2) have no solution above 0.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, isfinite, nan
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from headway.engine.observed_latency import LatencyReport, Phase
from headway.engine.surfaces import prompt_work_s
from interp import Profile
from interp.arrays import FloatArray

WINDOW_S = 14.0
"""Least length of a reading: reads of 5 or 15 s are now and then a little early."""
WARM_TOKENS = 5000.0
"""Tokens of prompts and outputs that an engine has computed before its latencies count."""
MOST_READINGS = 65_536
LEAST_PROMPTS, LEAST_GAPS = 4.0, 100.0
STEP = 1.2
"""Tokens per gap from which on that is so: edges of a reading show some more."""
STEPS = 8
"""Turns in which (1) and (2) are solved."""
MOST_PROMPTS = 0.75
"""Share of the time that prompts take, up to which the rest shows the ITL."""


class EngineTotals(NamedTuple):
    """What an engine has counted since it began, or gained between two reads: requests, tokens and seconds.

    `asked_tokens` are those of the first tokens' prompts, `cached_tokens` of those what was not computed.
    `prompts` have `prompt_tokens` together, `prefills` took `prefill_s`; an engine may show these only as
    requests end. Of an engine that does not decode gaps are 0, and of one that decodes only all the rest.
    """

    first_tokens: float = 0.0
    asked_tokens: float = 0.0
    cached_tokens: float = 0.0
    prompts: float = 0.0
    prompt_tokens: float = 0.0
    prefills: float = 0.0
    prefill_s: float = 0.0
    gaps: float = 0.0
    gap_s: float = 0.0
    gap_tokens: float = 0.0
    """Output tokens but for the first ones; 0 where an engine does not count them."""
    preemptions: float = 0.0
    iterations: float = 0.0
    """0 where an engine does not count them."""

    @property
    def warm(self) -> bool:
        """False of one that lately began, which is slower: it loads and compiles what it has not used yet."""
        return self.prompt_tokens + self.gaps >= WARM_TOKENS


class EngineLoad(NamedTuple):
    """Requests in an engine's batch and before it, the share of its KV cache that is in use, in [0, 1], and
    the tokens that this holds; NaN for what it does not show. `gpu` is its GPU, empty where it is not told.
    """

    running: float = nan
    waiting: float = nan
    kv_usage: float = nan
    kv_tokens: float = nan
    gpu: str = ""


class EngineReading(NamedTuple):
    """What an engine gained from one time to another, in seconds of the reader's clock, and its load then."""

    engine: str
    begun_s: float
    ended_s: float
    gained: EngineTotals
    load: EngineLoad = EngineLoad()


class EngineReadings:
    """Totals, read by read, of all engines of a fleet → readings of WINDOW_S at least.

    An engine that is missing from a read, or counted less than before, begins anew.
    """

    def __init__(self) -> None:
        self._begun: dict[str, tuple[float, EngineTotals]] = {}
        self._last: tuple[float, Mapping[str, EngineTotals]] = (0.0, {})
        self._loads: Mapping[str, EngineLoad] = {}
        self._readings: list[EngineReading] = []

    def add(
        self,
        totals: Mapping[str, EngineTotals],
        at_s: float,
        loads: Mapping[str, EngineLoad] = MappingProxyType({}),
    ) -> None:
        """One more read of all engines."""
        self._loads = loads
        self._begun = {engine: self._begun.get(engine, (at_s, now)) for engine, now in totals.items()}
        self._last = at_s, totals
        self._close(WINDOW_S)
        del self._readings[:-MOST_READINGS]

    def take(self) -> tuple[EngineReading, ...]:
        """The readings up to the last read, half as long ones too; what comes belongs to the next call."""
        self._close(WINDOW_S / 2.0)
        at_s, totals = self._last
        self._begun = {engine: (at_s, now) for engine, now in totals.items()}
        taken, self._readings = tuple(self._readings), []
        return taken

    def _close(self, least_s: float) -> None:
        at_s, totals = self._last
        for engine, now in totals.items():
            begun_s, before = self._begun[engine]
            gained = EngineTotals(*(after - earlier for after, earlier in zip(now, before, strict=True)))
            fell = min(gained) < 0.0
            if fell or at_s - begun_s >= least_s:
                self._begun[engine] = at_s, now
                if not fell and before.warm:
                    load = self._loads.get(engine, EngineLoad())
                    self._readings.append(EngineReading(engine, begun_s, at_s, gained, load))


def gpus_of(readings: Iterable[EngineReading]) -> Counter[str]:
    """The number of engines by GPU, of those that tell it."""
    return Counter({each.engine: each.load.gpu for each in readings if each.load.gpu}.values())


def of_one_gpu(readings: Sequence[EngineReading], gpu: str | None) -> Sequence[EngineReading]:
    """Those that one surface fits: of that GPU, or where none is of it of most engines' GPU, and untold."""
    told = gpus_of(readings)
    chosen = min(told, key=lambda each: (each != gpu, -told[each], each), default="")
    return [each for each in readings if each.load.gpu in ("", chosen)]


class LengthSpread(NamedTuple):
    """Mean tokens of an interval's prompts and outputs, and how they spread.

    `isl_shares` are the means of equal parts of the prompts, in order of length, over the mean of all, and
    `osl_cv` is the standard deviation of outputs over their mean.
    """

    isl_tokens: float
    osl_tokens: float
    isl_shares: tuple[float, ...] = (1.0,)
    osl_cv: float = 0.0

    @property
    def context_tokens(self) -> float:
        """Mean context of a token that is produced."""
        return self.isl_tokens + 0.5 * self.osl_tokens * (1.0 + self.osl_cv**2)


def engine_reports(
    profile: Profile, readings: Iterable[EngineReading], lengths: LengthSpread, chunk_tokens: int
) -> Iterator[LatencyReport]:
    """The reports of `readings`, each of its engine; `profile` is what is known of the engines by now.

    `chunk_tokens` are the prompt tokens of an iteration, 0 where prompts are computed one at a time.
    """
    for reading in readings:
        yield from _reports(profile, reading, lengths, chunk_tokens)


def _reports(
    profile: Profile, reading: EngineReading, lengths: LengthSpread, chunk_tokens: int
) -> Iterator[LatencyReport]:
    gained, seconds = reading.gained, reading.ended_s - reading.begun_s
    if min(gained.prompts, gained.prefills) >= LEAST_PROMPTS:
        prior = _known(profile, gained, np.array(lengths.isl_shares))
        work_s, itl_s = _solved(gained, seconds, prior, chunk_tokens)
        if not work_s > 0.0:
            return
        alone_s = float(profile.prefill.ttft_s(prior.tokens)) * work_s / prior.work_s
        yield LatencyReport(Phase.PREFILL, prior.tokens, alone_s, replica=reading.engine)
    elif gained.first_tokens > 0.0:
        return
    else:
        itl_s = _ratio(gained.gap_s, gained.gaps)
    context = lengths.context_tokens
    if gained.gaps >= LEAST_GAPS and not gained.preemptions and itl_s > 0.0 and isfinite(context):
        mean = gained.gap_s / seconds
        each = max(1.0, _ratio(gained.gaps, gained.iterations))
        batch = each + 0.5 - 0.5 / each if gained.iterations else mean / (1.0 - exp(-mean))
        # An engine that decodes speculatively makes several tokens in a gap.
        step = _ratio(gained.gap_tokens, gained.gaps)
        each_s = itl_s / step if step > STEP else itl_s
        yield LatencyReport(Phase.DECODE, context, each_s, batch, reading.engine)


class _Known(NamedTuple):
    """Of a reading's prompts: u, and by what is known w, q and W(0)."""

    tokens: float
    work_s: float
    longer: float
    empty_s: float


def _known(profile: Profile, gained: EngineTotals, shares: FloatArray) -> _Known:
    computed = 1.0 - min(1.0, _ratio(gained.cached_tokens, gained.asked_tokens))
    tokens = max(1.0, computed * gained.prompt_tokens / gained.prompts)
    work_s, longer = _mean_work_s(profile, tokens * shares, gained.prompts), 1.0
    if gained.asked_tokens > 0.0 and gained.first_tokens > 0.0:
        mean = max(1.0, computed * gained.asked_tokens / gained.first_tokens)
        longer = _mean_work_s(profile, mean * shares, gained.first_tokens) / work_s
    return _Known(tokens, work_s, longer, float(profile.prefill.table.work_nodes()[1][0]))


def _solved(gained: EngineTotals, seconds: float, known: _Known, chunk_tokens: int) -> tuple[float, float]:
    """w and I of (1) and (2), by turns from what is known of w; I is 0 where prompts take nearly all time."""
    rate, mean_s = gained.first_tokens / seconds, gained.prefill_s / gained.prefills
    chunks = chunk_tokens / known.tokens
    iterations = 1.0 / (1.0 - exp(-chunks)) if chunks else 1.0
    gap_s, batch = _ratio(gained.gap_s, gained.gaps), gained.gap_s / seconds
    empty, met = exp(-batch), (batch + 1.0) / (batch + 2.0)
    work_s, itl_s = known.work_s, 0.0
    for _ in range(STEPS):
        prompts = rate * known.longer * work_s
        itl_s = gap_s * (1.0 - prompts * met) if prompts <= MOST_PROMPTS else 0.0
        beside_s = (1.0 - empty) * itl_s + empty * known.empty_s * work_s / known.work_s
        busy = min(1.0, prompts + rate * beside_s)
        came = rate * (busy * mean_s + (1.0 - busy) * (1.0 - empty) * itl_s)
        others = came * chunks / (came + chunks) if came and chunks else 0.0
        work_s = max(0.0, mean_s - iterations * beside_s) / (1.0 + others)
    return work_s, itl_s


def _mean_work_s(profile: Profile, lengths: FloatArray, prompts: float) -> float:
    """Mean of W(u) − W(0) over so many prompts, as lengths spread."""
    table, mean = profile.prefill.table, lengths.mean(keepdims=True)
    alone_s, spread_s = float(prompt_work_s(table, mean)[0]), float(prompt_work_s(table, lengths).mean())
    square = float(lengths.var() / mean[0] ** 2)
    seen = max(0.0, prompts - 1.0) / (prompts + 3.0 * square)
    return alone_s + seen * (spread_s - alone_s)


def _ratio(total: float, count: float) -> float:
    return total / count if count > 0 else 0.0
