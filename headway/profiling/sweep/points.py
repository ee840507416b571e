"""The points of a sweep, and the order in which they are measured.

    prefill    `tokens` = ISL, one request at a time; log-spaced
    decode     `batch` requests at once at a mean context c of `tokens`; KV usage = batch · tokens / capacity

Log-spaced samples give every decade the same error of linear interpolation. A decode run asks each of n
requests for O = n + W output tokens after a prompt of c - O/2. An engine that computes a prompt an iteration
gives the first request n tokens until the last one decodes, so W = WINDOW_TOKENS are left in which all
decode. A point fits when, with B for BLOCK_TOKENS,

    n (c + (n + W) / 2 + B) ≤ KV capacity,    c + (n + W) / 2 ≤ longest request,    n ≤ c, largest batch

Corners come first, since a sweep that is cut short should have told the most; then the point of the largest

    distance to the nearest measured point · (FLATNESS + range of ln latency over its 2^d neighbours)

in ln(tokens) and ln(batch), each scaled to [0, 1]; d is 1 for prefill and 2 for decode. Ties go to the
earlier point.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import dist, floor, inf, log, sqrt

import numpy as np

from headway.profiling import Phase, RequestError

MIN_TOKENS = 128
LONGEST_ISL_TOKENS = 131_072
MIN_CONTEXT_TOKENS = 256


def log_spaced(low: int, high: int, points: int) -> tuple[int, ...]:
    """Ascending distinct integers from `low` to `high`, ends included, at most `points` (at least 1) of them.

    An empty range (`high` < `low`) gives `high` alone.
    """
    if high <= low:
        return (high,)
    spaced = np.rint(np.geomspace(low, high, max(points, 2))).astype(int)
    return tuple(int(value) for value in np.unique(spaced))


def prefill_grid(max_isl_tokens: int, points: int) -> tuple[int, ...]:
    """Input lengths to sample, up to `max_isl_tokens`."""
    return log_spaced(MIN_TOKENS, max_isl_tokens, points)


WINDOW_TOKENS = 32
"""Tokens of each request while all decode: the gaps that one run averages."""


BLOCK_TOKENS = 32
"""What whole blocks of KV cache may add to a request; a batch that just fits would be preempted."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SweepPoint:
    """One point: a prefill of `tokens`, or a decode of `batch` requests at a mean context of `tokens`."""

    phase: Phase
    tokens: int
    batch: int = 1

    @property
    def output_tokens(self) -> int:
        """Output tokens per request of the first run."""
        return 1 if self.phase is Phase.PREFILL else self.batch + WINDOW_TOKENS

    def __str__(self) -> str:
        """The point in words."""
        if self.phase is Phase.PREFILL:
            return f"prefill of {self.tokens:,} tokens"
        return f"decode of {self.batch} × {self.tokens:,} tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of an engine, in tokens and requests, and the granularity of the grid.

    `max_request_tokens` is input plus output of one request. `isl_points`, and for decode `kv_points` (along
    KV usage) and `context_points`, are the granularities. Raises RequestError naming the field.
    """

    max_request_tokens: int
    max_kv_tokens: int
    max_batch: int = 256
    isl_points: int = 16
    kv_points: int = 6
    context_points: int = 6

    def __post_init__(self) -> None:
        shortest = 2 * MIN_CONTEXT_TOKENS
        for name, least in (
            ("max_request_tokens", shortest),
            ("max_kv_tokens", shortest),
            ("max_batch", 1),
            ("isl_points", 2),
            ("kv_points", 2),
            ("context_points", 2),
        ):
            if getattr(self, name) < least:
                raise RequestError(f"{name}: expected at least {least}, got {getattr(self, name)}")

    @property
    def longest_tokens(self) -> int:
        """Input plus output tokens of the longest request that the cache and the engine take."""
        return min(self.max_request_tokens, self.max_kv_tokens)


def sweep_points(limits: Limits) -> tuple[SweepPoint, ...]:
    """All points: prefill by ISL, then decode line by line, each from one request to the most that fit."""
    prompts = prefill_grid(limits.longest_tokens - 1, limits.isl_points)
    prefills = tuple(SweepPoint(phase=Phase.PREFILL, tokens=tokens) for tokens in prompts)
    return prefills + _decode_points(limits)


def largest_batch(context_tokens: int, limits: Limits) -> int:
    """The most requests that decode together at a mean context of `context_tokens`; one always does."""
    half = context_tokens + WINDOW_TOKENS / 2 + BLOCK_TOKENS
    by_cache = floor(sqrt(half * half + 2.0 * limits.max_kv_tokens) - half)
    by_length = 2 * (limits.longest_tokens - context_tokens) - WINDOW_TOKENS
    return max(1, min(limits.max_batch, context_tokens, by_cache, by_length))


def _decode_points(limits: Limits) -> tuple[SweepPoint, ...]:
    longest = limits.longest_tokens - WINDOW_TOKENS
    points: list[SweepPoint] = []
    for context in log_spaced(MIN_CONTEXT_TOKENS, longest, limits.context_points):
        batches = log_spaced(1, largest_batch(context, limits), limits.kv_points)
        points.extend(SweepPoint(phase=Phase.DECODE, tokens=context, batch=batch) for batch in batches)
    return tuple(points)


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
    uncertainties = _uncertainties(points, left, measured)
    return max(left, key=lambda point: uncertainties[point])


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


def _uncertainties(
    points: Sequence[SweepPoint], left: Sequence[SweepPoint], measured: Mapping[SweepPoint, float | None]
) -> Mapping[SweepPoint, float]:
    uncertainties: dict[SweepPoint, float] = {}
    for phase in Phase:
        places = _places([point for point in points if point.phase is phase])
        known = {point: value for point, value in measured.items() if point in places and value is not None}
        corners_of_a_cell = 2 if phase is Phase.PREFILL else 4
        for point in left:
            if point.phase is phase:
                uncertainties[point] = _uncertainty(places, point, known, corners_of_a_cell)
    return uncertainties


def _uncertainty(
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
