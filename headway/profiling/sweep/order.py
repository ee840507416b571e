"""Which point to measure next, so that a sweep that is cut short has told the most.

Corners come first: the shortest and the longest prefill; the smallest and the largest batch at the shortest
and at the longest context. Then the point at which interpolation between what is measured is least sure,

    doubt(p) = distance to the nearest measured point · (FLATNESS + range of ln latency over its neighbours)

over the points of p's phase, in ln(tokens) and ln(batch), each scaled to [0, 1]; neighbours are the 2^d
nearest measured points of a d-dimensional phase. Distance is what a linear interpolation's error grows with,
and where latency changes much there is more to be wrong about; FLATNESS keeps flat regions from being left
out. Phases compete on the same, relative scale. Ties go to the earlier point. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from math import dist, inf, log

from headway.profiling.sweep.points import Phase, SweepPoint

FLATNESS = 0.1
"""The change of ln latency that is taken for granted where none was seen."""

Coordinates = tuple[float, float]


def next_point(
    points: Sequence[SweepPoint], measured: Mapping[SweepPoint, float | None]
) -> SweepPoint | None:
    """The most informative of `points` that is not in `measured`; None when all are.

    `measured` has latencies in seconds, above zero; None stands for a point that could not be measured.
    """
    left = [point for point in points if point not in measured]
    if not left:
        return None
    first = corners(points)
    urgent = [point for point in left if point in first]
    if urgent:
        return min(urgent, key=points.index)
    doubts = _doubts(points, left, measured)
    return max(left, key=lambda point: doubts[point])


def corners(points: Sequence[SweepPoint]) -> Collection[SweepPoint]:
    """The ends of the prefill line, and the ends of the shortest and of the longest decode line."""
    found: set[SweepPoint] = set()
    for phase in Phase:
        line = [point for point in points if point.phase is phase]
        contexts = {point.tokens for point in line}
        for tokens in (min(contexts), max(contexts)) if line else ():
            here = sorted(point for point in line if point.tokens == tokens)
            found |= {here[0], here[-1]}
    return found


def _doubts(
    points: Sequence[SweepPoint], left: Sequence[SweepPoint], measured: Mapping[SweepPoint, float | None]
) -> Mapping[SweepPoint, float]:
    doubts: dict[SweepPoint, float] = {}
    for phase in Phase:
        places = _places([point for point in points if point.phase is phase])
        known = {point: value for point, value in measured.items() if point in places and value is not None}
        corners_of_a_cell = 2 if phase is Phase.PREFILL else 4
        for point in left:
            if point.phase is phase:
                doubts[point] = _doubt(places, point, known, corners_of_a_cell)
    return doubts


def _doubt(
    places: Mapping[SweepPoint, Coordinates],
    point: SweepPoint,
    known: Mapping[SweepPoint, float],
    neighbours: int,
) -> float:
    nearest = sorted((dist(places[point], places[other]), other) for other in known)[:neighbours]
    if not nearest:
        return inf
    latencies = [log(known[other]) for _, other in nearest]
    return nearest[0][0] * (FLATNESS + max(latencies) - min(latencies))


def _places(points: Sequence[SweepPoint]) -> Mapping[SweepPoint, Coordinates]:
    """The points in the unit square."""
    tokens, batches = [log(point.tokens) for point in points], [log(point.batch) for point in points]
    return {point: (_share(log(point.tokens), tokens), _share(log(point.batch), batches)) for point in points}


def _share(value: float, values: Sequence[float]) -> float:
    low, high = min(values), max(values)
    return (value - low) / (high - low) if high > low else 0.0
