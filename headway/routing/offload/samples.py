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
from typing import NamedTuple, Self

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


class UtilisationSample(NamedTuple):
    """A replica at one time: the share of the time since the last sample that it computed, and KV usage."""

    at_s: float
    busy: float
    kv_usage: float


@dataclass(slots=True)
class UtilisationSamples:
    """One replica's latest samples, `most` of them; `interval_s` apart at least (the document's 5 s).

    `start_s` is when the replica began to serve.
    """

    start_s: float = 0.0
    interval_s: float = 5.0
    most: int = 720
    _samples: deque[UtilisationSample] = field(default_factory=deque)
    _busy_s: float = 0.0

    def offer(self, at_s: float, busy_s: float, kv_usage: float) -> bool:
        """Take a sample if one is due; whether it was.

        `busy_s` is the total of seconds in which the replica has computed so far.
        """
        elapsed_s = at_s - (self._samples[-1].at_s if self._samples else self.start_s)
        if elapsed_s < self.interval_s:
            return False
        share = min(max((busy_s - self._busy_s) / elapsed_s, 0.0), 1.0)
        self._samples.append(UtilisationSample(at_s, share, kv_usage))
        self._busy_s = busy_s
        if len(self._samples) > self.most:
            self._samples.popleft()
        return True

    def __iter__(self) -> Iterator[UtilisationSample]:
        return iter(self._samples)

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def mean_busy(self) -> float:
        """Mean share over the samples, NaN without any."""
        return sum(sample.busy for sample in self._samples) / len(self) if self._samples else nan
