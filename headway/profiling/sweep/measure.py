"""Measure one point on a target: a warm-up run that does not count, then runs until they agree.

    warm-up    compiles and caches what a shape needs. Of a decode it also shows how many output tokens it
               takes until all requests decode at once, and leaves the prompts in the engine's prefix cache,
               if it has one: the runs that count then skip the prefill
    runs       `repeats`; up to twice as many while they do not agree (`robust`). One that fails is done
               again, until as many have failed

Prompts are random token ids, so that no two share a prefix: those of a prefill are new in every run, and each
a token shorter than the one before, since traffic brings new lengths all the time and some engines prepare
something for each (docs/fidelity.md). Those of a decode point are the same in all of its runs. The ids lie
within any vocabulary, beyond the markers that begin many.
"""

import asyncio
from collections.abc import Sequence

import numpy as np

from headway.profiling.errors import ProfilingError, UnmeasurableError
from headway.profiling.sweep.points import WINDOW_TOKENS, Phase, SweepPoint
from headway.profiling.sweep.robust import summarise
from headway.profiling.sweep.streams import StreamTimes, decode_run, stagger_tokens
from headway.profiling.sweep.target import Target

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
    """Whether so many runs as asked for are no outliers, and close to each other."""
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
