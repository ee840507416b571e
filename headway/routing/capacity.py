"""Patterns of requests, and how many of one a replica bears under an SLO (AIBrix's pull routing).

    P           = (model, input-token bucket, output-token bucket)
    Capacity(P) = RPS(P) × E2E(P)      Little's law: requests in the replica at the largest rate that keeps
    Load(P)     = 1 / Capacity(P)      the SLO; a replica has room while the loads of its requests and of
                                       the newcomer sum to at most 1

A bucket holds the token counts from its edge up to, and without, the next; the first and the last are open.
It answers for all its lengths by the geometric middle of the whole numbers in it, √(low × (high − 1)), so
that no length is off by more than √2 for powers of two. The last bucket stands for its edge.

A capacity is that of (pattern, GPU type, role, SLO). RPS and E2E come from a source: profile surfaces
(`surface_capacity`) or an AIBrix profile (`aibrix`). Where requests of several SLOs share a replica, ask with
the tightest there to keep it.

    no rate keeps the SLO           capacity 0, load infinite
    one alone keeps it              capacity at least 1, load at most 1: an idle replica always has room
    GPU type without a source       that of the default type ""; without one, None
    a source silent about the role  None
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import frexp, inf, isinf, ldexp, sqrt
from typing import NamedTuple, Protocol

from headway.config import Role
from headway.routing.types import RequestSlo, RouteRequest, RoutingError

MOST_OCTAVES = 20
"""The last default edge is 2^20 tokens."""


class RequestPattern(NamedTuple):
    """A class of requests; buckets are places in `Buckets`."""

    model: str
    input_bucket: int
    output_bucket: int


@dataclass(frozen=True, slots=True)
class Buckets:
    """Token counts in classes; `edges` ascend strictly from 1 or more. Raises RoutingError if they do not."""

    edges: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.edges or self.edges[0] < 1 or any(low >= high for low, high in pairwise(self.edges)):
            raise RoutingError(f"bucket edges must ascend from at least 1, are {self.edges!r:.80}")

    def __len__(self) -> int:
        return len(self.edges)

    def bucket(self, tokens: float) -> int:
        """The place of a token count."""
        return max(0, bisect_right(self.edges, tokens) - 1)

    def tokens(self, bucket: int) -> float:
        """The token count that a bucket stands for."""
        low = self.edges[bucket]
        if bucket == len(self.edges) - 1:
            return float(low)
        return sqrt(low * (self.edges[bucket + 1] - 1))


DEFAULT_BUCKETS = Buckets(tuple(1 << octave for octave in range(MOST_OCTAVES + 1)))


def pattern_of(
    request: RouteRequest, expected_output_tokens: float, buckets: Buckets = DEFAULT_BUCKETS
) -> RequestPattern:
    """The pattern of a request that is expected to yield so many output tokens (at least 1)."""
    return RequestPattern(
        request.model, buckets.bucket(request.input_tokens), buckets.bucket(expected_output_tokens)
    )


DEFAULT_GPU_TYPE = ""

MOST_ANSWERS = 100_000
"""Capacities kept; about 30 MB."""

STEPS = 128
"""Rounding of SLOs: so many steps in an octave's upper end."""


class CapacitySource(Protocol):
    """One GPU type's capacities."""

    def capacity(
        self, input_tokens: float, output_tokens: float, role: Role, slo: RequestSlo
    ) -> float | None:
        """Concurrent requests under the SLO; 0 if no rate keeps it, None if nothing is known of the role."""


class CapacityTable:
    """Capacities by pattern, GPU type, role and SLO, computed when first asked for, and kept.

    SLOs are rounded down by up to 1/64 first, so that clients that write their own do not fill the memory
    with near copies; beyond MOST_ANSWERS all are forgotten and computed anew when asked.
    """

    def __init__(self, sources: Mapping[str, CapacitySource], buckets: Buckets = DEFAULT_BUCKETS) -> None:
        self.buckets = buckets
        self._sources = dict(sources)
        self._loads: dict[tuple[int, int, str, Role, float, float], float | None] = {}

    def capacity(self, pattern: RequestPattern, gpu_type: str, role: Role, slo: RequestSlo) -> float | None:
        """Concurrent requests of the pattern that a replica bears, alone, under the SLO."""
        load = self.load(pattern, gpu_type, role, slo)
        if load is None:
            return None
        return 1.0 / load if load > 0.0 else inf

    def load(self, pattern: RequestPattern, gpu_type: str, role: Role, slo: RequestSlo) -> float | None:
        """The part of a replica that one request takes; infinite if it never fits, None if unknown."""
        ttft_s, tpot_s = rounded_down(slo.ttft_s), rounded_down(slo.tpot_s)
        key = (pattern.input_bucket, pattern.output_bucket, gpu_type, role, ttft_s, tpot_s)
        # Nearly all answers are there; None is one of them, so `get` would not do.
        try:
            return self._loads[key]
        except KeyError:
            pass
        if len(self._loads) >= MOST_ANSWERS:
            self._loads.clear()
        self._loads[key] = load = self._load(
            pattern, gpu_type, role, RequestSlo(ttft_s=ttft_s, tpot_s=tpot_s)
        )
        return load

    def _load(self, pattern: RequestPattern, gpu_type: str, role: Role, slo: RequestSlo) -> float | None:
        source = self._sources.get(gpu_type) or self._sources.get(DEFAULT_GPU_TYPE)
        if source is None:
            return None
        input_tokens = self.buckets.tokens(pattern.input_bucket)
        output_tokens = self.buckets.tokens(pattern.output_bucket)
        capacity = source.capacity(input_tokens, output_tokens, role, slo)
        if capacity is None:
            return None
        return 1.0 / capacity if capacity > 0.0 else inf


def rounded_down(seconds: float) -> float:
    """`seconds` less at most 1/64 of it, one of 64 values in each octave; infinite stays infinite."""
    if isinf(seconds):
        return seconds
    fraction, exponent = frexp(seconds)
    return ldexp(int(fraction * STEPS) / STEPS, exponent)
