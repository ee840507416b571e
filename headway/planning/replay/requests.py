"""Requests as replays see them, one by one, and what is cached of their prompts.

An engine computes what its prefix cache does not hold of a prompt. It holds the beginning where an earlier
request with the same one came to the same replica, so with requests that are placed regardless of prefixes
the hits get fewer the more replicas there are. With the earlier ones a Poisson number of mean k, each on one
of n replicas at random,

    h(n) = 1 − e^(−k / n)        so        h(n) = 1 − (1 − h₀)^(n₀ / n)

h₀ being the share of prompts' tokens that n₀ replicas found cached. Fewer replicas than n₀ are taken to find
no more than was seen: what they would share has never come together, and their caches are smaller. A prefix
that is found by n replicas is found by fewer, so each request has a largest fleet (`cached_within`).
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from interp.arrays import FloatArray

SURE = 0.999
"""A share of hits above this is taken as this: at least a prompt's last token is always computed."""


class Requests(NamedTuple):
    """Columns f8[N]: `arrival_s` ascending, tokens at least 1; outputs known or imputed.

    The others are None where they are so for all requests: `cached_tokens` 0, fewer than `input_tokens`, for
    fleets of up to `cached_within` replicas; `ttft_s` and `itl_s`, SLOs of its own, NaN for the engine's;
    `slo_class` 0, the place among the promises.
    """

    arrival_s: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray
    cached_tokens: FloatArray | None = None
    cached_within: FloatArray | None = None
    ttft_s: FloatArray | None = None
    itl_s: FloatArray | None = None
    slo_class: FloatArray | None = None

    def where(self, chosen: "NDArray[Any] | slice") -> "Requests":
        """Those that are `chosen`: a mask, places or a slice."""
        return Requests._make(None if column is None else column[chosen] for column in self)

    def followed_by(self, later: "Requests") -> "Requests":
        """These, and then others."""
        return Requests._make(
            _joined(old, new, (len(self.arrival_s), len(later.arrival_s)), usual)
            for old, new, usual in zip(self, later, _USUAL, strict=True)
        )

    @property
    def uncached_tokens(self) -> FloatArray:
        """Prompt tokens that an engine computes, f8[N]."""
        return self.input_tokens if self.cached_tokens is None else self.input_tokens - self.cached_tokens

    def on(self, replicas: int) -> "Requests":
        """The requests as so many replicas find them; the same object where that makes no difference."""
        if self.cached_tokens is None or self.cached_within is None:
            return self
        found = self.cached_within >= replicas
        return self if found.all() else self._replace(cached_tokens=np.where(found, self.cached_tokens, 0.0))


_USUAL = Requests(*(np.array(value) for value in (np.nan, np.nan, np.nan, 0.0, np.inf, np.nan, np.nan, 0.0)))
"""The value of each column where it is None."""


def _joined(
    old: FloatArray | None, new: FloatArray | None, counts: tuple[int, int], usual: FloatArray | None
) -> FloatArray | None:
    if old is None and new is None:
        return None
    parts = (np.full(n, usual) if part is None else part for part, n in zip((old, new), counts, strict=True))
    return np.concatenate(list(parts))


def largest_fleets(share: FloatArray, replicas: int, rank: FloatArray) -> FloatArray:
    """The largest fleets in which cached prefixes are still found, f8[N].

    `share` is h₀ of each prompt, above 0, `replicas` n₀; `rank`, even over [0, 1), says which of them are the
    first to be missed: h(n) / h₀ ≥ rank solved for n.
    """
    share = np.minimum(share, SURE)
    with np.errstate(divide="ignore"):
        fleets: FloatArray = replicas * np.log1p(-share) / np.log1p(-share * rank)
    return fleets
