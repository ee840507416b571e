"""Per replica: prefix-hit rates and utilisation samples (document 004, section 3).

    local     share of prompt tokens found in the replica's own prefix cache
    external  share that came as KV from another replica (the document's external_prefix_cache_hit_rate)
    combined  local + external: what the replica did not have to compute

All three have one denominator, the prompt tokens of requests whose KV the replica needed, so that they add
up, over replicas too. A prompt that P computes for D is a lookup at both: at P with what P had cached, at D
with all of it external but what D had itself.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import nan
from typing import Any, NamedTuple, Self

from headway.routing.errors import RoutingError


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRates:
    """Counts of prompt tokens; rates are NaN before the first."""

    prompt_tokens: int = 0
    local_tokens: int = 0
    external_tokens: int = 0

    def add(self, prompt_tokens: int, *, local_tokens: int = 0, external_tokens: int = 0) -> Self:
        """The counts with one more lookup. RoutingError if more was hit than asked for."""
        if min(local_tokens, external_tokens) < 0 or local_tokens + external_tokens > prompt_tokens:
            raise RoutingError(
                f"{local_tokens} + {external_tokens} of {prompt_tokens} prompt tokens cannot be hit"
            )
        return type(self)(
            prompt_tokens=self.prompt_tokens + prompt_tokens,
            local_tokens=self.local_tokens + local_tokens,
            external_tokens=self.external_tokens + external_tokens,
        )

    def __add__(self, other: "HitRates") -> "HitRates":
        return HitRates(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            local_tokens=self.local_tokens + other.local_tokens,
            external_tokens=self.external_tokens + other.external_tokens,
        )

    @property
    def local(self) -> float:
        """Share found in the own cache."""
        return self._rate(self.local_tokens)

    @property
    def external(self) -> float:
        """Share that came from elsewhere."""
        return self._rate(self.external_tokens)

    @property
    def combined(self) -> float:
        """Share that needed no computing here."""
        return self._rate(self.local_tokens + self.external_tokens)

    @property
    def reuse(self) -> float:
        """Tokens found in the own cache per token that was not, h / (1 − h); 0 before the first."""
        missed = self.prompt_tokens - self.local_tokens
        return self.local_tokens / missed if missed else 0.0

    def _rate(self, tokens: int) -> float:
        return tokens / self.prompt_tokens if self.prompt_tokens else nan


SAMPLE_S = 5.0
"""Seconds between two samples of a replica (document 004)."""


class UtilisationSample(NamedTuple):
    """A replica at one time: the share of the time since the last sample that it computed, and KV usage."""

    at_s: float
    busy: float
    kv_usage: float


@dataclass(slots=True)
class UtilisationSamples:
    """One replica's samples, `interval_s` apart at least (the document's 5 s); the latest `most` are kept.

    From `start_s` on, when the replica began to serve or was first heard of; `busy_s` is what it had computed
    by then. Means and maximum are of all samples, kept or not, and NaN without any.
    """

    start_s: float = 0.0
    busy_s: float = 0.0
    interval_s: float = SAMPLE_S
    most: int = 720
    mean_busy: float = nan
    mean_kv_usage: float = nan
    max_kv_usage: float = nan
    _samples: deque[UtilisationSample] = field(default_factory=deque)
    _taken: int = 0
    _at_s: float = field(init=False)
    _busy_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._at_s, self._busy_s = self.start_s, self.busy_s

    def offer(self, at_s: float, busy_s: float, kv_usage: float) -> bool:
        """Take a sample if one is due; whether it was.

        `busy_s` is the total of seconds in which the replica has computed so far.
        """
        elapsed_s = at_s - self._at_s
        if elapsed_s < self.interval_s:
            return False
        share = _share(busy_s - self._busy_s, elapsed_s)
        self._samples.append(UtilisationSample(at_s, share, kv_usage))
        self._at_s, self._busy_s = at_s, busy_s
        if len(self._samples) > self.most:
            self._samples.popleft()
        self._count(kv_usage)
        return True

    def __iter__(self) -> Iterator[UtilisationSample]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def latest(self) -> UtilisationSample | None:
        """The last sample, None before the first."""
        return self._samples[-1] if self._samples else None

    def summary(self) -> dict[str, Any]:
        """As JSON-able data, NaN included: the means, the maximum, and the samples [at_s, busy, kv_usage]."""
        return {
            "mean_busy": self.mean_busy,
            "mean_kv_usage": self.mean_kv_usage,
            "max_kv_usage": self.max_kv_usage,
            "samples": [list(sample) for sample in self],
        }

    def _count(self, kv_usage: float) -> None:
        """Add the sample just taken to means and maximum."""
        self.mean_busy = _share(self._busy_s - self.busy_s, self._at_s - self.start_s)
        before, self._taken = self._taken, self._taken + 1
        self.mean_kv_usage = (before * self.mean_kv_usage + kv_usage) / self._taken if before else kv_usage
        self.max_kv_usage = max(self.max_kv_usage, kv_usage) if before else kv_usage


def _share(busy_s: float, elapsed_s: float) -> float:
    """The part of the time that was busy; clocks that disagree a little do not leave [0, 1]."""
    return min(max(busy_s / elapsed_s, 0.0), 1.0)
