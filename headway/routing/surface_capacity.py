"""Capacity from a profile's surfaces: prefill TTFT and decode ITL (AIBrix's RPS × E2E).

Decode replica: the largest n with ITL(n) within the TPOT target, at context I + O / 2.

Prefill replica, one prompt after the other: as many as leave in time when they come all at once,
k TTFT(I) + transfer + first iteration <= TTFT target. That is Little's law for a full server, the rate
1 / TTFT(I) times the time to stay; and of several patterns, loads that sum to 1 are work that just ends in
time.

Mixed replica: requests in it at the largest rate r that keeps both targets. Prompts and decodes share
iterations, whose times add up (as the engine model has it). For requests of I input and O output tokens; c
prompt tokens an iteration (whole prompts without chunking); ITL(n) of n requests that decode at context
I + O / 2; W the work of a prompt beyond the cost of an iteration, W0 an iteration without work. Means
throughout, Poisson arrivals:

    an iteration beside          b(n) = ITL(n); without decodes W0; in proportion below one decode
    prompts as a server          service s = I / c b + W, busy u = r s < 1
    own prompt                   p = ⌈I / c⌉ b + W
    TTFT                         p + M/D/1 wait u s / (2 (1 − u)) + half of the iteration that runs on arrival
    TPOT, evenly mixed           T = ITL(n) / (1 − r W)
    TPOT, prompts in bursts      T' = ITL(n) + u W c / I: prompts there all the time with probability u
    TPOT                         T + a (T' − T), a = t / D (1 − e^(−D / t)), D = (O − 1) T,
                                 t = u s / (1 − u)²: how long the backlog of prompts remembers itself
    requests in the replica      r E2E = (O − 1) r TPOT + r TTFT

Short requests see bursts, long ones the mean: a is the mean autocorrelation e^(−x / t) of the backlog over
the decode, t its relaxation time in heavy traffic (variance of the work arriving over the drift squared).
r is looked for on a grid of n with r from n = r (O − 1) T, so ITL need not be monotone; with O = 1 on one
of r.

What a replica holds bounds every capacity, and is the capacity where nothing is promised: tokens in the KV
cache, requests in a batch, and a batch no larger than was profiled. A request that keeps its SLO on an idle
replica has a capacity of 1 at least; one that does not, or whose tokens exceed the KV cache, has 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import Self

import numpy as np

from headway.config import Role
from headway.engine.rules import EngineRules
from headway.routing.types import RequestSlo
from interp import DecodeSurface, PrefillSurface, Profile
from interp.arrays import FloatArray

GRID = 512
"""Operating points that are tried."""

FEWEST_DECODING = 0.01
"""The least mean number of decoding requests that is tried."""

LEAST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCost:
    """The cost of a prompt: `work_s` (W), beside `iterations` (⌈I / c⌉), each `idle_s` (W0) without decodes.

    `share` (I / c) is the part that it fills of what iterations can carry, in iterations.
    """

    idle_s: float
    work_s: float
    iterations: int
    share: float

    @classmethod
    def of(cls, surface: PrefillSurface, tokens: float, chunk_tokens: int) -> Self:
        """From the profile's work curve: W0 is that of no tokens, W what TTFT has beyond it."""
        nodes, seconds = surface.table.work_nodes()
        idle_s = float(seconds[0])
        known_s = float(np.interp(tokens, nodes, seconds)) if tokens < nodes[1] else surface.ttft_s(tokens)
        work_s = max(0.0, known_s - idle_s)
        share = tokens / chunk_tokens if chunk_tokens else 1.0
        return cls(idle_s=idle_s, work_s=work_s, iterations=ceil(share), share=share)

    @property
    def alone_s(self) -> float:
        """TTFT on an idle replica."""
        return self.iterations * self.idle_s + self.work_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuery:
    """Token counts of a request (at least 1), its SLO, and how many such a replica holds at most."""

    input_tokens: float
    output_tokens: float
    slo: RequestSlo
    holds: int

    @property
    def context_tokens(self) -> float:
        """The mean context while it decodes."""
        return self.input_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A steady state: mean TTFT and TPOT at a rate, and requests in the replica, of which some decode."""

    rate_rps: float
    ttft_s: float
    tpot_s: float
    decoding: float

    @property
    def requests(self) -> float:
        """Requests in the replica: rate × E2E (Little's law)."""
        return self.decoding + self.rate_rps * self.ttft_s


def batch_itl_s(decode: DecodeSurface, query: CapacityQuery, decoding: FloatArray) -> FloatArray:
    """ITL in seconds of each batch size, f8[N]; a full KV cache is as far as it goes."""
    kv_usage = decoding * (query.context_tokens / float(decode.table.max_kv_tokens))
    return decode.itl_s(np.minimum(kv_usage, 1.0), query.context_tokens)


def largest_point(decode: DecodeSurface, prompt: PromptCost, query: CapacityQuery) -> OperatingPoint | None:
    """The operating point of the largest rate that keeps the SLO within what is held; None without one."""
    decoding, itl_s, rates = _grid(decode, prompt, query)
    busy = np.minimum(decoding, 1.0)
    iteration_s = busy * itl_s + (1.0 - busy) * prompt.idle_s
    own_s = prompt.iterations * iteration_s + prompt.work_s
    service_s = prompt.share * iteration_s + prompt.work_s
    used = rates * service_s
    stable = used < 1.0
    left = np.where(stable, 1.0 - used, 1.0)
    ttft_s = own_s + used * service_s / (2.0 * left) + busy * itl_s / 2.0
    steps = query.output_tokens - 1.0
    tpot_s = _tpot_s(prompt, steps, itl_s, np.where(stable, rates, 0.0), service_s)
    decoding = rates * steps * tpot_s
    kept = stable & (ttft_s <= query.slo.ttft_s) & (tpot_s <= query.slo.tpot_s)
    kept &= decoding + rates * own_s <= query.holds
    if not kept.any():
        return None
    best = int(np.argmax(np.where(kept, rates, -1.0)))
    return OperatingPoint(
        rate_rps=float(rates[best]),
        ttft_s=float(ttft_s[best]),
        tpot_s=float(tpot_s[best]),
        decoding=float(decoding[best]),
    )


def _tpot_s(
    prompt: PromptCost, steps: float, itl_s: FloatArray, rates: FloatArray, service_s: FloatArray
) -> FloatArray:
    """Mean TPOT in seconds of requests that decode `steps` tokens, at rates that leave the server stable."""
    if steps <= 0.0:
        return np.zeros(len(rates))
    even_s = itl_s / (1.0 - rates * prompt.work_s)
    used = rates * service_s
    beside_s = itl_s + used * prompt.work_s / prompt.share
    lasts_s = np.maximum(steps * even_s, LEAST_S)
    settles_s = np.maximum(used * service_s / (1.0 - used) ** 2, LEAST_S)
    lingering: FloatArray = settles_s / lasts_s * -np.expm1(-lasts_s / settles_s)
    return even_s + lingering * (beside_s - even_s)


def _grid(
    decode: DecodeSurface, prompt: PromptCost, query: CapacityQuery
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Requests that decode, their ITL, and the rate that keeps so many decoding; f8[GRID] each."""
    steps = query.output_tokens - 1.0
    if steps <= 0.0:
        nothing = np.zeros(GRID)
        least_s = max(prompt.share * prompt.idle_s + prompt.work_s, LEAST_S)
        return nothing, nothing, np.linspace(0.0, 1.0, GRID) / least_s
    decoding = np.geomspace(FEWEST_DECODING, query.holds, GRID)
    itl_s = batch_itl_s(decode, query, decoding)
    return decoding, itl_s, decoding / (steps * itl_s + decoding * prompt.work_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceCapacity:
    """Capacities of one GPU type from its profile."""

    profile: Profile
    rules: EngineRules

    def capacity(self, input_tokens: float, output_tokens: float, role: Role, slo: RequestSlo) -> float:
        """Concurrent requests of these lengths (below 1 token counts as 1) that a replica bears."""
        query = CapacityQuery(
            input_tokens=max(1.0, input_tokens),
            output_tokens=max(1.0, output_tokens),
            slo=slo,
            holds=self._holds(max(1.0, input_tokens), max(1.0, output_tokens), role),
        )
        if query.holds < 1 or not slo.given:
            return float(query.holds)
        by_role: Mapping[Role, Callable[[CapacityQuery], float]] = {
            Role.MIXED: self._mixed,
            Role.DECODE: self._decode,
            Role.PREFILL: self._prefill,
        }
        return min(by_role[role](query), float(query.holds))

    def _holds(self, input_tokens: float, output_tokens: float, role: Role) -> int:
        decode = self.profile.decode
        max_kv_tokens = float(decode.table.max_kv_tokens)
        if role is Role.PREFILL:
            return floor(max_kv_tokens / input_tokens)
        context = input_tokens + output_tokens / 2
        profiled = max(1.0, decode.domain_end_kv(context) * max_kv_tokens / context)
        return floor(min(max_kv_tokens / (input_tokens + output_tokens), profiled, self.rules.max_batch_size))

    def _prefill(self, query: CapacityQuery) -> float:
        if query.slo.ttft_s == inf:
            return float(query.holds)
        transfer_s = self.rules.transfer_s(ceil(query.input_tokens))
        left_s = query.slo.ttft_s - transfer_s - self._alone_itl_s(query)
        prompts = left_s / self.profile.prefill.ttft_s(query.input_tokens)
        return prompts if prompts >= 1.0 else 0.0

    def _decode(self, query: CapacityQuery) -> float:
        batches = np.arange(1.0, query.holds + 1.0)
        kept = np.flatnonzero(batch_itl_s(self.profile.decode, query, batches) <= query.slo.tpot_s)
        return float(batches[kept[-1]]) if len(kept) else 0.0

    def _mixed(self, query: CapacityQuery) -> float:
        prompt = PromptCost.of(self.profile.prefill, query.input_tokens, self.rules.chunk_tokens)
        tpot_s = self._alone_itl_s(query) if query.output_tokens > 1.0 else 0.0
        if prompt.alone_s > query.slo.ttft_s or tpot_s > query.slo.tpot_s:
            return 0.0
        point = largest_point(self.profile.decode, prompt, query)
        return 1.0 if point is None else max(1.0, point.requests)

    def _alone_itl_s(self, query: CapacityQuery) -> float:
        return float(batch_itl_s(self.profile.decode, query, np.ones(1))[0])
