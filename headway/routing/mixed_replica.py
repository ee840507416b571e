"""The largest rate of one pattern that a mixed replica sustains under an SLO.

Prompts and decodes share iterations, whose times add up (as the engine model has it). For requests of I input
and O output tokens; c prompt tokens an iteration (whole prompts without chunking); ITL(n) of n requests that
decode at context I + O / 2; W the work of a prompt beyond the cost of an iteration, W0 an iteration without
work. Means throughout, Poisson arrivals:

    an iteration beside          b(n) = ITL(n); without decodes W0; in proportion below one decode
    prompts as a server          service s = I / c b + W, busy u = r s < 1
    own prompt                   p = ⌈I / c⌉ b + W
    TTFT                         p + M/D/1 wait u s / (2 (1 − u)) + half of the iteration that runs on arrival
    TPOT, evenly mixed           T = ITL(n) / (1 − r W)
    TPOT, prompts in bursts      T' = ITL(n) + u W c / I: prompts there all the time with probability u
    TPOT                         T + a (T' − T), a = t / D (1 − e^(−D / t)), D = (O − 1) T,
                                 t = u s / (1 − u)²: how long the backlog of prompts remembers itself
    requests in the replica      r E2E = (O − 1) r TPOT + r TTFT

Requests start to decode while the prompts behind theirs are still there, so that short ones see bursts, long
ones the mean: a is the mean autocorrelation e^(−x / t) of the backlog over the decode, t its relaxation time
in heavy traffic (variance of the work arriving over the drift squared).

The largest r is looked for on a grid of n at most 2 % apart (for 256 requests), with r from n = r (O − 1) T;
so ITL need not be monotone. With O = 1 nothing decodes, and the grid is one of r.
"""

from dataclasses import dataclass
from math import ceil
from typing import Self

import numpy as np

from headway.routing.types import RequestSlo
from interp import DecodeSurface, PrefillSurface
from interp.arrays import FloatArray

GRID = 512
"""Operating points that are tried."""

FEWEST_DECODING = 0.01
"""The least mean number of decoding requests that is tried."""

LEAST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCost:
    """What a prompt costs: `work_s` (W), beside `iterations` (⌈I / c⌉), each `idle_s` (W0) without decodes.

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
class Question:
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


def batch_itl_s(decode: DecodeSurface, question: Question, decoding: FloatArray) -> FloatArray:
    """ITL in seconds of each batch size, f8[N]; a full KV cache is as far as it goes."""
    kv_usage = decoding * (question.context_tokens / float(decode.table.max_kv_tokens))
    return decode.itl_s(np.minimum(kv_usage, 1.0), question.context_tokens)


def largest_point(decode: DecodeSurface, prompt: PromptCost, question: Question) -> OperatingPoint | None:
    """The operating point of the largest rate that keeps the SLO within what is held; None without one."""
    decoding, itl_s, rates = _grid(decode, prompt, question)
    busy = np.minimum(decoding, 1.0)
    iteration_s = busy * itl_s + (1.0 - busy) * prompt.idle_s
    own_s = prompt.iterations * iteration_s + prompt.work_s
    service_s = prompt.share * iteration_s + prompt.work_s
    used = rates * service_s
    stable = used < 1.0
    left = np.where(stable, 1.0 - used, 1.0)
    ttft_s = own_s + used * service_s / (2.0 * left) + busy * itl_s / 2.0
    steps = question.output_tokens - 1.0
    tpot_s = _tpot_s(prompt, steps, itl_s, np.where(stable, rates, 0.0), service_s)
    decoding = rates * steps * tpot_s
    kept = stable & (ttft_s <= question.slo.ttft_s) & (tpot_s <= question.slo.tpot_s)
    kept &= decoding + rates * own_s <= question.holds
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
    decode: DecodeSurface, prompt: PromptCost, question: Question
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Requests that decode, their ITL, and the rate that keeps so many decoding; f8[GRID] each."""
    steps = question.output_tokens - 1.0
    if steps <= 0.0:
        nothing = np.zeros(GRID)
        least_s = max(prompt.share * prompt.idle_s + prompt.work_s, LEAST_S)
        return nothing, nothing, np.linspace(0.0, 1.0, GRID) / least_s
    decoding = np.geomspace(FEWEST_DECODING, question.holds, GRID)
    itl_s = batch_itl_s(decode, question, decoding)
    return decoding, itl_s, decoding / (steps * itl_s + decoding * prompt.work_s)
