"""Patterns: classes of requests that load a replica alike (document 003).

    P = (model, input-token bucket, output-token bucket)

The GPU type is no part of a pattern but of the question about its capacity (`capacity`). A bucket holds the
token counts from its edge up to, and without, the next edge; counts below the first edge are in the first
bucket, counts from the last edge on in the last. Edges are powers of two by default, or finer parts of them.

A bucket answers for all its lengths by the geometric middle of the whole numbers in it, √(low × (high − 1)):
so a bucket of one length stands for exactly that, and no length is off by more than the root of the bucket's
width, √2 for powers of two. The last bucket, without an end, stands for its edge.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import NamedTuple, Self

from headway.routing.errors import RoutingError
from headway.routing.types import RouteRequest

MOST_TOKENS = 1 << 20
"""The last default edge."""


class Pattern(NamedTuple):
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

    @classmethod
    def powers_of_two(cls, most_tokens: int = MOST_TOKENS, *, per_octave: int = 1) -> Self:
        """Edges 1, 2, 4, ... up to `most_tokens`, with `per_octave` buckets from each to the next."""
        edges = {1}
        step = 0
        while (edge := round(2.0 ** (step / per_octave))) <= most_tokens:
            edges.add(edge)
            step += 1
        return cls(tuple(sorted(edges)))

    @classmethod
    def of(cls, edges: Sequence[int]) -> Self:
        """Buckets between the given edges."""
        return cls(tuple(edges))

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


DEFAULT_BUCKETS = Buckets.powers_of_two()


def pattern_of(
    request: RouteRequest, expected_output_tokens: float, buckets: Buckets = DEFAULT_BUCKETS
) -> Pattern:
    """The pattern of a request that is expected to yield so many output tokens (at least 1)."""
    return Pattern(
        request.model, buckets.bucket(request.input_tokens), buckets.bucket(expected_output_tokens)
    )
