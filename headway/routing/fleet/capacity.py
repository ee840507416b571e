"""Patterns of requests, and how many of one a replica bears under an SLO (AIBrix's pull routing).

    P           = (model, input tokens, output tokens)
    Capacity(P) = RPS(P) × E2E(P)      Little's law: requests in the replica at the largest rate that keeps
    Load(P)     = 1 / Capacity(P)      the SLO; a replica has room while the loads of its requests and of
                                       the newcomer sum to at most 1

Loads are those of the request itself: its own lengths, the prompt tokens that the replica has cached, and
what is left of its SLO (`LoadQuery`). Only the lines of the router's queue go by buckets of lengths, so that
requests wait in few of them: a bucket holds the token counts from its edge up to, and without, the next; the
first and the last are open.

A capacity is that of (pattern, GPU type, role, SLO). RPS and E2E come from a source: profile surfaces
(`surface_capacity`) or an AIBrix profile (`aibrix`).

    no rate keeps the SLO           capacity 0, load infinite
    one alone keeps it              capacity at least 1, load at most 1: an idle replica always has room
    GPU type without a source       that of the default type ""; without one, and where a source is silent
                                    about the role, what stands in the loads already
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from headway.config import Role
from headway.routing.fleet.table import FloatArray, SlotArray
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


DEFAULT_BUCKETS = Buckets(tuple(1 << octave for octave in range(MOST_OCTAVES + 1)))


def pattern_of(
    request: RouteRequest, expected_output_tokens: float, buckets: Buckets = DEFAULT_BUCKETS
) -> RequestPattern:
    """The pattern of a request that is expected to yield so many output tokens (at least 1)."""
    return RequestPattern(
        request.model, buckets.bucket(request.input_tokens), buckets.bucket(expected_output_tokens)
    )


DEFAULT_GPU_TYPE = ""


class LoadQuery(NamedTuple):
    """A request in one role: its lengths, of which `output_tokens` are expected, and what is left of its
    SLO."""

    input_tokens: float
    output_tokens: float
    role: Role
    slo: RequestSlo


class Candidates(NamedTuple):
    """Replicas by their slots in the fleet's table, and prompt tokens that each has cached, f8[C].

    A source answers for those of its own `kind` (FleetRow.KIND).
    """

    table: FloatArray
    slots: SlotArray
    cached: FloatArray
    kind: int


class CapacitySource(Protocol):
    """One GPU type's capacities."""

    def fill(self, asked: LoadQuery, among: Candidates, out: FloatArray) -> None:
        """Write the load of each candidate of `among.kind` into `out` f8[C]; infinite if it never fits.

        Nothing is written where nothing is known of the role.
        """


class CapacityTable:
    """Sources of capacities by GPU type, and the buckets of the queue's lines."""

    def __init__(self, sources: Mapping[str, CapacitySource], buckets: Buckets = DEFAULT_BUCKETS) -> None:
        self.buckets = buckets
        self._sources = dict(sources)

    def fill(self, asked: LoadQuery, gpu_type: str, among: Candidates, out: FloatArray) -> None:
        """The part of each candidate of that type that one request takes, into `out` f8[C]."""
        source = self._sources.get(gpu_type) or self._sources.get(DEFAULT_GPU_TYPE)
        if source is not None:
            source.fill(asked, among, out)
