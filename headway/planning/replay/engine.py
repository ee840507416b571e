"""The engine of a replay, its requests, and what each of them costs.

Requests as replays see them, one by one, and what is cached of their prompts.

An engine computes what its prefix cache does not hold of a prompt. It holds the beginning where an earlier
request with the same one came to the same replica, so with requests that are placed regardless of prefixes
the hits get fewer the more replicas there are. With the earlier ones a Poisson number of mean k, each on one
of n replicas at random,

    h(n) = 1 − e^(−k / n)        so        h(n) = 1 − (1 − h₀)^(n₀ / n)

h₀ being the share of prompts' tokens that n₀ replicas found cached. Fewer replicas than n₀ are taken to find
no more than was seen: what they would share has never come together, and their caches are smaller. A prefix
that is found by n replicas is found by fewer, so each request has a largest fleet (`cached_within`).

The engine of a replay, and the cost of a request on an idle one, on a full one, and half-way through.

    idle TTFT   prefill + KV transfer + the decode iteration that brings the first token; on a mixed replica
                the prompt's last chunk brings it
    idle TPOT   ITL of a batch of one at its mean context, isl + osl / 2

A request that misses an SLO even so, or that does not fit the KV cache, is not attainable: no number of
replicas helps, so it is not judged. It is served all the same, unless it does not fit.

In a full batch of n sequences a token costs ITL(n) / n seconds of a replica. n is the batch limit, or what
the KV cache holds of the mix; a request counts in the mix for as many iterations as it has output tokens:

    need = Σ osl (isl + osl) / Σ osl        n = min(max_batch_size, max_kv_tokens / need)

Outputs may take many minutes, and a fleet that begins idle would be too empty for as long. Instead, what came
before `since_s` is there from then on as it would be (`under_way`): with the tokens that it has by then, at
the pace of a well used replica, and with the rest of its output to come.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.engine import EngineRules
from headway.engine.rules import kv_transfer_s
from headway.engine.surfaces import idle_itl_s, idle_prompt_s, prompt_work_s
from headway.planning.types import Slo
from interp import Profile
from interp.arrays import BoolArray, FloatArray

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


FEW = 0.05
TOLERANCE = 1.0 + 1e-9
"""A latency counts as within its SLO up to rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayEngine:
    """An engine: its profile, SLO and batching rules.

    `chunk_tokens` 0 means prompts are computed one at a time, whole; above 0 an iteration carries up to that
    many prompt tokens, as mixed replicas always do. Moving a prompt's KV takes `transfer_latency_s` +
    `transfer_s_per_token` × its tokens.
    """

    profile: Profile
    slo: Slo
    max_batch_size: int
    chunk_tokens: int
    transfer_latency_s: float
    transfer_s_per_token: float

    @classmethod
    def of(cls, profile: Profile, slo: Slo, rules: EngineRules) -> "ReplayEngine":
        """The engine of a deployment."""
        return cls(
            profile=profile,
            slo=slo,
            max_batch_size=rules.max_batch_size,
            chunk_tokens=rules.chunk_tokens,
            transfer_latency_s=rules.transfer_latency_s,
            transfer_s_per_token=rules.transfer_s_per_token,
        )

    @property
    def kv_capacity_tokens(self) -> float:
        """Tokens that one replica's KV cache holds."""
        return float(self.profile.decode.table.max_kv_tokens)


class Targets(NamedTuple):
    """The SLO of each request, f8[N], or one of them all."""

    ttft_s: FloatArray | float
    itl_s: FloatArray | float


def targets(engine: ReplayEngine, requests: Requests) -> Targets:
    """A request's own SLO, or else the engine's."""
    slo, ttft_s, itl_s = engine.slo, requests.ttft_s, requests.itl_s
    return Targets(
        slo.ttft_s if ttft_s is None else np.where(np.isnan(ttft_s), slo.ttft_s, ttft_s),
        slo.itl_s if itl_s is None else np.where(np.isnan(itl_s), slo.itl_s, itl_s),
    )


def tightest_itl_s(engine: ReplayEngine, requests: Requests) -> float:
    """The ITL that batches must keep where requests have different ones: no more than FEW ask for less.

    Requests that an idle engine is too slow for are left out; the engine's where none is left.
    """
    itl_s = targets(engine, requests).itl_s
    if isinstance(itl_s, float):
        return itl_s
    idle_s = idle_itl_s(engine.profile, requests.input_tokens + requests.output_tokens / 2.0)
    kept = itl_s[idle_s <= itl_s * TOLERANCE]
    return float(np.quantile(kept, FEW, method="lower")) if len(kept) else engine.slo.itl_s


def fits(engine: ReplayEngine, requests: Requests) -> BoolArray:
    """True where prompt and output fit the KV cache, bool[N]; others are refused on arrival."""
    needed: BoolArray = requests.input_tokens + requests.output_tokens <= engine.kv_capacity_tokens
    return needed


def attainable(engine: ReplayEngine, requests: Requests, *, mixed: bool = False) -> BoolArray:
    """True where an idle engine meets both SLOs for the request and has room for it, bool[N]."""
    ttft_s = prompt_s(engine, requests)
    if not mixed:
        ttft_s = ttft_s + transfer_s(engine, requests) + idle_itl_s(engine.profile, requests.input_tokens)
    tpot_s = idle_itl_s(engine.profile, requests.input_tokens + requests.output_tokens / 2.0)
    promised = targets(engine, requests)
    in_time = ttft_s <= promised.ttft_s * TOLERANCE
    smooth = (tpot_s <= promised.itl_s * TOLERANCE) | (requests.output_tokens <= 1.0)
    met: BoolArray = in_time & smooth & fits(engine, requests)
    return met


def prompt_s(engine: ReplayEngine, requests: Requests) -> FloatArray:
    """Seconds from the start of each prompt on an idle engine until it is computed, f8[N]."""
    return idle_prompt_s(engine.profile, requests.uncached_tokens, engine.chunk_tokens)


def transfer_s(engine: ReplayEngine, requests: Requests) -> FloatArray:
    """Seconds that the KV of each prompt travels, f8[N]."""
    return kv_transfer_s(engine.transfer_latency_s, engine.transfer_s_per_token, requests.input_tokens)


def prefill_seconds(engine: ReplayEngine, requests: Requests) -> FloatArray:
    """Seconds of a busy prefill replica that each prompt takes, f8[N]; chunked ones share full iterations."""
    if engine.chunk_tokens == 0:
        return prompt_s(engine, requests)
    shares = requests.uncached_tokens / engine.chunk_tokens
    return _work_s(engine, requests) + shares * _empty_iteration_s(engine)


def decode_seconds(engine: ReplayEngine, requests: Requests) -> FloatArray:
    """Seconds of a decode replica with a full batch that each output takes, f8[N]."""
    outputs = requests.output_tokens
    if len(outputs) == 0:
        return np.zeros(0)
    batch, context = full_batch(engine, requests)
    usage = min(1.0, batch * context / engine.kv_capacity_tokens)
    per_token_s = engine.profile.decode.itl_s(usage, context) / batch
    return outputs * per_token_s


def mixed_seconds(engine: ReplayEngine, requests: Requests) -> FloatArray:
    """Seconds of a busy mixed replica that each request takes: chunks ride on iterations of a full batch."""
    return _work_s(engine, requests) + decode_seconds(engine, requests)


BISECTIONS = 24


MOST_SLACK = 6.0


def mixed_slack(engine: ReplayEngine, requests: Requests) -> float:
    """Replicas over those that `mixed_seconds` keep busy, at least 1, that keep the mean request's ITL.

    At λ requests/s a replica that keeps a TPOT of T decodes λ osl T of them together, and the part λ W of the
    time goes to prompts. So the most that it can take is where

        ITL(λ osl T) + λ W T = T

    of the mean osl and prompt work W. 1 where full batches keep it, or no batch does; at most MOST_SLACK: an
    SLO that an idle replica just keeps would ask for a replica a request.
    """
    if len(requests.arrival_s) == 0:
        return 1.0
    promised_s = tightest_itl_s(engine, requests)
    work_s, output_tokens = float(_work_s(engine, requests).mean()), float(requests.output_tokens.mean())
    _, context = full_batch(engine, requests)

    def tpot_s(rate_rps: float) -> float:
        tokens = max(1.0, rate_rps * output_tokens * promised_s) * context
        usage = min(1.0, tokens / engine.kv_capacity_tokens)
        return engine.profile.decode.itl_s(usage, context) + rate_rps * work_s * promised_s

    least, most = 0.0, 1.0 / float(mixed_seconds(engine, requests).mean())
    if tpot_s(most) <= promised_s or tpot_s(least) > promised_s:
        return 1.0
    full = most
    for _ in range(BISECTIONS):
        middle = 0.5 * (least + most)
        least, most = (middle, most) if tpot_s(middle) <= promised_s else (least, middle)
    return min(MOST_SLACK, full / most)


def busy_iteration_s(engine: ReplayEngine, requests: Requests) -> float:
    """Seconds of an iteration of a well used decode replica: that of a full batch, at most the SLO."""
    batch, context = full_batch(engine, requests)
    usage = min(1.0, batch * context / engine.kv_capacity_tokens)
    return min(tightest_itl_s(engine, requests), engine.profile.decode.itl_s(usage, context))


def full_batch(engine: ReplayEngine, requests: Requests) -> tuple[float, float]:
    """The largest batch of this mix, at least 1, and its mean context in tokens; of one request or more."""
    inputs, outputs = requests.input_tokens, requests.output_tokens
    total = outputs.sum()
    need = float(((inputs + outputs) * outputs).sum() / total)
    context = float(((inputs + outputs / 2.0) * outputs).sum() / total)
    return max(1.0, min(float(engine.max_batch_size), engine.kv_capacity_tokens / need)), context


def _work_s(engine: ReplayEngine, requests: Requests) -> FloatArray:
    return prompt_work_s(engine.profile.prefill.table, requests.uncached_tokens)


def _empty_iteration_s(engine: ReplayEngine) -> float:
    return float(engine.profile.prefill.table.work_nodes()[1][0])


SLACK = 1.5
"""By how much the pace may still change with the mix, where nothing may be lost."""


def may_last(engine: ReplayEngine, requests: Requests, since_s: float) -> BoolArray:
    """Which come after `since_s`, or may still decode then, bool[N]: for some mix of them at least."""
    if len(requests.arrival_s) == 0:
        return np.zeros(0, np.bool_)
    slowest_s = min(tightest_itl_s(engine, requests), SLACK * busy_iteration_s(engine, requests))
    lasting: BoolArray = requests.arrival_s + requests.output_tokens * slowest_s > since_s
    return lasting


def under_way(engine: ReplayEngine, requests: Requests, since_s: float) -> tuple[Requests, BoolArray]:
    """The requests as `since_s` finds them, those under way first, and which of `requests` are left, bool[N].

    Their inputs are the tokens that they have, all computed; those that would have ended are left out.
    """
    begun, produced = requests.where(requests.arrival_s <= since_s), np.zeros(len(requests.arrival_s))
    if not len(begun.arrival_s):
        return requests, produced == 0.0
    decoding_s = np.maximum(0.0, since_s - begun.arrival_s - prompt_s(engine, begun))
    produced[: len(begun.arrival_s)] = decoding_s // busy_iteration_s(engine, requests)
    left = produced < requests.output_tokens
    found = requests._replace(
        arrival_s=np.maximum(requests.arrival_s, since_s),
        input_tokens=requests.input_tokens + produced,
        output_tokens=requests.output_tokens - produced,
    )
    return found.where(left), left
