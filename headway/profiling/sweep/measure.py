"""Measuring on a target: one point, and all points of a sweep.

    warm-up    compiles and caches what a shape needs; of a decode it also shows how many output tokens it
               takes until all requests decode at once, and leaves the prompts in a prefix cache
    runs       `repeats`; up to twice as many while they do not agree. One that fails is done again, until as
               many have failed

    prefill    TTFT = first arrival - sending of the one request
    decode     between the last of the first tokens and the first of the last tokens all n requests decode. In
               that window each request's ITL is (last - first arrival) / tokens after the first; the run's is
               their median. A chunk of k tokens after a gap g is k gaps of g/k

In the middle of the window requests are on average halfway through their outputs, so the mean context is
ISL + OSL/2. Prompts are random token ids, so that no two share a prefix: those of a prefill are new in every
run, and each a token shorter than the one before, as some engines prepare something for each new length
(docs/fidelity.md); those of a decode point are the same in all of its runs. Times are seconds of one clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

import numpy as np

from headway.profiling import Phase, ProfilingError, UnmeasurableError
from headway.profiling.sweep.measurements import Measured, Measurements, contradicting, summarise
from headway.profiling.sweep.points import WINDOW_TOKENS, SweepPoint, next_point

LEAST_TOKENS = 4.0
"""Tokens of each request that a window must hold."""


class Arrival(NamedTuple):
    """Tokens that came together; a fraction where a server counts only at the end."""

    at_s: float
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """One request: when it was sent, and its tokens as they came (at least one arrival)."""

    sent_s: float
    arrivals: tuple[Arrival, ...]

    @property
    def ttft_s(self) -> float:
        """Seconds until the first token."""
        return self.arrivals[0].at_s - self.sent_s


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRun:
    """The window of one run: its ITL; and how many tokens the first request had when the last one began."""

    itl_s: float
    window_tokens: float
    stagger_tokens: float


def decode_run(streams: Sequence[StreamTimes]) -> DecodeRun:
    """The window in which all streams decode. Raises UnmeasurableError where there is none to speak of."""
    start_s = max(stream.arrivals[0].at_s for stream in streams)
    end_s = min(stream.arrivals[-1].at_s for stream in streams)
    windows = [_window(stream, start_s, end_s) for stream in streams]
    held = min((tokens for tokens, _ in windows), default=0.0)
    if held < LEAST_TOKENS:
        raise UnmeasurableError(f"the {len(streams)} requests never all decoded at once")
    itl_s = median(seconds / tokens for tokens, seconds in windows)
    if not itl_s > 0.0:
        raise UnmeasurableError("tokens came all at one time: this machine is too busy to tell them apart")
    return DecodeRun(
        itl_s=itl_s,
        window_tokens=held,
        stagger_tokens=stagger_tokens(streams),
    )


def stagger_tokens(streams: Sequence[StreamTimes]) -> float:
    """The most tokens that a request had when the last one got its first, or would have had at its pace."""
    start_s = max(stream.arrivals[0].at_s for stream in streams)
    return max(_tokens_until(stream, start_s) for stream in streams)


def _tokens_until(stream: StreamTimes, end_s: float) -> float:
    """Tokens before `end_s`; of a request that was over by then, as many as it would have had."""
    tokens = sum(arrival.tokens for arrival in stream.arrivals if arrival.at_s < end_s)
    first, last_s = stream.arrivals[0], stream.arrivals[-1].at_s
    if not first.at_s < last_s < end_s:
        return tokens
    return (tokens - first.tokens) * (end_s - first.at_s) / (last_s - first.at_s)


def _window(stream: StreamTimes, start_s: float, end_s: float) -> tuple[float, float]:
    """Tokens after the first arrival within the window, and the seconds that they took."""
    inside = [arrival for arrival in stream.arrivals if start_s <= arrival.at_s <= end_s]
    if len(inside) < 2:
        return 0.0, 0.0
    return sum(arrival.tokens for arrival in inside[1:]), inside[-1].at_s - inside[0].at_s


class Target(Protocol):
    """An engine that does prefill and decode."""

    async def stream(self, prompt: Sequence[int], output_tokens: int) -> StreamTimes:
        """Serve one request to its end; the times of its tokens, in seconds of one clock.

        Raises TargetError when the engine does not answer properly, UnmeasurableError when it says that this
        request can never fit.
        """


LOWEST_ID, HIGHEST_ID = 64, 250


async def measure(
    target: Target, point: SweepPoint, *, repeats: int, seed: int, earlier: int = 0
) -> tuple[float, ...]:
    """The latencies of a point in seconds, in the order of the runs: TTFT of a prefill, ITL of a decode.

    `earlier` runs of it, warm-ups included, were there before: prompts and lengths go on from there.
    Raises UnmeasurableError where this engine cannot do that, TargetError where it fails.
    """
    run = (
        _Prefill(target, point, seed, earlier)
        if point.phase is Phase.PREFILL
        else _Decode(target, point, seed)
    )
    await run.warm_up()
    values, failed = list[float](), 0
    while len(values) < repeats or (len(values) + failed < 2 * repeats and not _agree(values, repeats)):
        try:
            values.append(await run.once())
        except UnmeasurableError:
            failed += 1
            if failed == repeats:
                raise
    return tuple(values)


def _agree(values: Sequence[float], repeats: int) -> bool:
    """True if as many runs as asked for are no outliers, and close to each other."""
    summary = summarise(values)
    return summary.runs >= repeats and summary.steady


class _Prefill:
    """Runs of one prefill point."""

    def __init__(self, target: Target, point: SweepPoint, seed: int, earlier: int) -> None:
        self._target, self._point = target, point
        self._rng = np.random.default_rng((seed, point.tokens, earlier))
        self._tokens = max(1, point.tokens - earlier)

    async def warm_up(self) -> None:
        await self.once()

    async def once(self) -> float:
        prompt = self._rng.integers(LOWEST_ID, HIGHEST_ID, self._tokens).tolist()
        self._tokens = max(1, self._tokens - 1)
        return (await self._target.stream(prompt, self._point.output_tokens)).ttft_s


class _Decode:
    """Runs of one decode point: always the same prompts, cut to a mean context of `tokens`."""

    def __init__(self, target: Target, point: SweepPoint, seed: int) -> None:
        self._target, self._point = target, point
        rng = np.random.default_rng((seed, point.tokens, point.batch))
        self._prompts = rng.integers(LOWEST_ID, HIGHEST_ID, (point.batch, point.tokens)).tolist()
        self._output_tokens = point.output_tokens

    async def warm_up(self) -> None:
        """Run once, and once more if the window was short: with a prefix cache it may not be again."""
        for _ in range(2):
            needed = round(stagger_tokens(await self._streams())) + WINDOW_TOKENS
            if needed <= self._output_tokens:
                break
        self._output_tokens = min(needed, max(WINDOW_TOKENS, self._point.tokens))

    async def once(self) -> float:
        return decode_run(await self._streams()).itl_s

    async def _streams(self) -> Sequence[StreamTimes]:
        """All requests at once; when one fails the others end, too."""
        length, failure = self._point.tokens - self._output_tokens // 2, None
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._target.stream(prompt[:length], self._output_tokens))
                    for prompt in self._prompts
                ]
        except* ProfilingError as errors:
            failure = errors.exceptions[0]
        if failure is not None:
            raise failure
        return [task.result() for task in tasks]


Clock = Callable[[], float]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """Options of a sweep. `ends_s`, on the clock, is when no further point is begun; None: never.

    `seed` is of the prompts: a new one for every sweep, or else an engine's prefix cache may know them.
    `clock` is in seconds; `progress(done, of, next)` is called before every point and at the end.
    """

    clock: Clock
    progress: Progress

    repeats: int = 3
    seed: int = 0
    ends_s: float | None = None


async def sweep(
    target: Target,
    points: Sequence[SweepPoint],
    measurements: Measurements,
    options: SweepOptions,
) -> bool:
    """Measure what `measurements` lacks of `points`, and again those that contradict each other.

    The most informative point comes first, each is kept as it comes. Returns whether all points are done,
    once at least. Raises TargetError; what was measured until then is kept.
    """
    while True:
        found = measurements.points
        missing = [each for each in points if each not in found]
        again = [] if missing else contradicting(found)
        point = next_point(points, measurements.latencies_s()) or next(iter(again), None)
        done = sum(found[each].visits for each in points if each in found)
        options.progress(done, done + len(missing) + len(again), "" if point is None else str(point))
        if point is None:
            return True
        if options.ends_s is not None and options.clock() >= options.ends_s:
            return not missing
        measurements.keep(point, await _measured(target, point, found.get(point), options))


async def _measured(
    target: Target, point: SweepPoint, before: Measured | None, options: SweepOptions
) -> Measured:
    earlier = 0 if before is None else len(before.runs_s) + before.visits
    try:
        runs_s = await measure(target, point, repeats=options.repeats, seed=options.seed, earlier=earlier)
        return Measured(runs_s=runs_s)
    except UnmeasurableError as error:
        return Measured(unmeasurable=str(error))
