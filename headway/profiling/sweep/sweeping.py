"""Measure the points of one engine, the most informative first, then again those that contradict each other,
until none is left or time is up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headway.profiling.errors import UnmeasurableError
from headway.profiling.sweep.doubts import doubtful
from headway.profiling.sweep.measure import measure
from headway.profiling.sweep.order import next_point
from headway.profiling.sweep.points import SweepPoint
from headway.profiling.sweep.store import Measured, Measurements
from headway.profiling.sweep.target import Target

Clock = Callable[[], float]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """How a sweep measures. `ends_s`, on the clock, is when no further point is begun; None: never.

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
    """Measure what `measurements` lacks of `points`, and keep each point there as it comes.

    Whether all points are done, once at least. Raises TargetError; what was measured until then is kept.
    """
    while True:
        found = measurements.points
        missing = [each for each in points if each not in found]
        again = [] if missing else doubtful(found)
        point = next_point(points, measurements.latencies_s()) or next(iter(again), None)
        done = sum(found[each].looks for each in points if each in found)
        options.progress(done, done + len(missing) + len(again), "" if point is None else str(point))
        if point is None:
            return True
        if options.ends_s is not None and options.clock() >= options.ends_s:
            return not missing
        measurements.keep(point, await _measured(target, point, found.get(point), options))


async def _measured(
    target: Target, point: SweepPoint, before: Measured | None, options: SweepOptions
) -> Measured:
    earlier = 0 if before is None else len(before.runs_s) + before.looks
    try:
        runs_s = await measure(target, point, repeats=options.repeats, seed=options.seed, earlier=earlier)
        return Measured(runs_s=runs_s)
    except UnmeasurableError as error:
        return Measured(unmeasurable=str(error))
