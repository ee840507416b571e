"""Capacity from a profile's surfaces: prefill TTFT and decode ITL (AIBrix's RPS × E2E). Compiled.

For a request of I input tokens, of which u are not cached, and O output tokens; c prompt tokens an iteration
(whole prompts without chunking); ITL(n) of n requests that decode at context I + O / 2; W(u) the work of its
prompt beyond the cost of an iteration, W0 an iteration without work. What is cached is not computed, but its
KV is held and read all the same.

Decode replica: the largest n with ITL(n) within the TPOT target.

Prefill replica, one prompt after the other: as many as leave in time when they come all at once,
k (⌈u / c⌉ W0 + W) + transfer + first iteration <= TTFT target. That is Little's law for a full server, the
rate of its prompts times the time to stay; and of several patterns, loads that sum to 1 are work that just
ends in time.

Mixed replica: requests in it at the largest rate r that keeps both targets. Prompts and decodes share
iterations, whose times add up (as the engine model has it). Means throughout, Poisson arrivals:

    an iteration beside          b(n) = ITL(n); without decodes W0; in proportion below one decode
    prompts as a server          service s = u / c b + W, busy ρ = r s < 1
    own prompt                   p = ⌈u / c⌉ b + W
    TTFT                         p + M/D/1 wait ρ s / (2 (1 − ρ)) + half of the iteration that runs on arrival
    TPOT, evenly mixed           T = ITL(n) / (1 − r W)
    TPOT, prompts in bursts      T' = ITL(n) + ρ W c / u: prompts there all the time with probability ρ
    TPOT                         T + a (T' − T), a = t / D (1 − e^(−D / t)), D = (O − 1) T,
                                 t = ρ s / (1 − ρ)²: how long the backlog of prompts remembers itself
    requests in the replica      r E2E = (O − 1) r TPOT + r TTFT

Short requests see bursts, long ones the mean: a is the mean autocorrelation e^(−x / t) of the backlog over
the decode, t its relaxation time in heavy traffic (variance of the work arriving over the drift squared).
The largest n, with r from n = r (O − 1) T, is looked for from above in steps, so that ITL need not be
monotone, and then between the last two; with O = 1 the largest r.

What a replica holds bounds every capacity, and is the capacity where nothing is promised: tokens in the KV
cache, requests in a batch, and a batch no larger than was profiled. A request that keeps its SLO on an idle
replica has a capacity of 1 at least; one that does not, or whose tokens exceed the KV cache, has 0.

All is computed for the request itself, whose uncached tokens alone differ among the replicas of a GPU type:
`fill_loads` solves for each of NODES counts of them, and interpolates where there are more.
"""

from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from headway.config import Role
from headway.engine.rules import EngineRules
from headway.engine.surfaces import ItlTable, WorkCurve, engine_surfaces, itl_of, work_of
from headway.routing.fleet.table import DECODE_ROLE, PREFILL_ROLE, ROLE_CODES, FleetRow, FloatArray, SlotArray
from headway.routing.types import RequestSlo
from headway_aibrix.capacity import Candidates, LoadQuery
from interp import Profile
from interp.jit import compiled
from interp.kernels import blend, locate

NODES = 8
"""Counts of uncached tokens for which an operating point is solved."""

STEPS = 16
"""Operating points that are tried from the largest down, in even ratios."""

HALVINGS = 9
"""Of the step between the first that keeps the SLO and the last that does not: to about 0.1 %."""

FEWEST_DECODING = 0.01
"""The least mean number of decoding requests that is tried."""

SLOWEST = 1e-3
"""The same for rates, of the rate that keeps a replica busy."""

LEAST_S = 1e-9


class SampledBatches(NamedTuple):
    """What was profiled: the last KV usage f8[L] by context f8[L], and the largest batch anywhere."""

    context_tokens: FloatArray
    last_kv: FloatArray
    largest_batch: float


class LoadTerms(NamedTuple):
    """The request, at least 1 token each way, and the engine's rules. SLOs: what is left, infinite without.

    `transfer_s` follows a prompt at a prefill replica.
    """

    input_tokens: float
    output_tokens: float
    ttft_s: float
    tpot_s: float
    transfer_s: float
    chunk_tokens: float
    max_batch: float


LoadFigures = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""`LoadTerms`, `WorkCurve`, `ItlTable`, `SampledBatches`, plain: named tuples take three times as long."""


class OperatingPoint(NamedTuple):
    """A steady state: mean TTFT and TPOT at a rate, and the mean number of requests that decode.

    `kept`: it is stable, within the SLO, and within what a replica holds.
    """

    rate_rps: float
    ttft_s: float
    tpot_s: float
    decoding: float
    kept: bool

    @property
    def requests(self) -> float:
        """Requests in the replica: rate × E2E (Little's law)."""
        return self.decoding + self.rate_rps * self.ttft_s


@compiled
def fill_loads(  # noqa: PLR0917 - one loop over candidates, compiled
    role: int,
    table: FloatArray,
    slots: SlotArray,
    cached: FloatArray,
    kind: int,
    figures: LoadFigures,
    out: FloatArray,
) -> None:
    """Fill `out` f8[C] with the part of each candidate of this `kind` that the request would take.

    `cached` f8[C] are prompt tokens that each holds. A load is 1 / Capacity for a request of its own lengths
    with those cached, under what is left of its SLO: at most 1 where an idle replica keeps it, infinite where
    none would, or its tokens do not fit. Candidates of other kinds are passed over. Where there are more than
    NODES counts of uncached tokens, loads are interpolated; whether one is infinite is exact.
    """
    terms, work, holds = LoadTerms(*figures[0]), WorkCurve(*figures[1]), held(role, figures)
    left = np.inf if role == DECODE_ROLE else left_s(role, figures)
    all_kept = alone_s(work, terms.chunk_tokens, terms.input_tokens) <= left
    found, places = 0, np.empty(len(slots), dtype=np.int64)
    for place in range(len(slots)):
        if table[FleetRow.KIND, slots[place]] == kind:
            uncached = 1.0 if role == DECODE_ROLE else terms.input_tokens - cached[place]
            kept = all_kept or alone_s(work, terms.chunk_tokens, uncached) <= left
            out[place] = uncached if kept else np.inf
            places[found] = place
            found += 1
    nodes = nodes_of(out, places[:found])
    loads = np.empty(len(nodes))
    for node in range(len(nodes)):
        loads[node] = load_of(role, nodes[node], holds, figures)
    for place in places[:found]:
        if np.isinf(out[place]):
            continue
        if len(nodes) == 1 or np.isinf(loads[0]):
            out[place] = loads[0]
        else:
            cell, along = locate(nodes, out[place])
            out[place] = blend(loads[cell], loads[cell + 1], along)


@compiled
def nodes_of(uncached: FloatArray, places: SlotArray) -> FloatArray:
    """The finite values of `uncached` f8[C] in these places, ascending; NODES over their range if more; empty
    if none."""
    found, nodes, least, most = 0, np.empty(NODES), np.inf, 0.0
    for place in places:
        tokens = uncached[place]
        if np.isinf(tokens):
            continue
        least, most, known = min(least, tokens), max(most, tokens), found > NODES
        for node in range(min(found, NODES)):
            if known:
                break
            known = nodes[node] == tokens
        if not known:
            if found < NODES:
                nodes[found] = tokens
            found += 1
    return np.sort(nodes[:found]) if found <= NODES else np.linspace(least, most, NODES)


@compiled
def load_of(role: int, uncached: float, holds: float, figures: LoadFigures) -> float:
    """The part of a replica that takes at most `holds` such requests; infinite if none fits."""
    terms, work = LoadTerms(*figures[0]), WorkCurve(*figures[1])
    if holds < 1.0 or not idle_keeps(role, uncached, figures):
        return np.inf
    if terms.ttft_s == np.inf and terms.tpot_s == np.inf:
        return 1.0 / holds
    if role == PREFILL_ROLE:
        return 1.0 / min(left_s(role, figures) / alone_s(work, terms.chunk_tokens, uncached), holds)
    if role == DECODE_ROLE:
        return 1.0 / largest_batch(holds, figures)
    point = largest_point(uncached, holds, figures)
    requests = point.decoding + point.rate_rps * point.ttft_s if point.kept else 1.0
    return 1.0 / min(max(requests, 1.0), holds)


@compiled
def idle_keeps(role: int, uncached: float, figures: LoadFigures) -> bool:
    """True if an idle replica serves the request within its SLO."""
    terms, work = LoadTerms(*figures[0]), WorkCurve(*figures[1])
    if role != DECODE_ROLE and alone_s(work, terms.chunk_tokens, uncached) > left_s(role, figures):
        return False
    decodes = role == DECODE_ROLE or (role != PREFILL_ROLE and terms.output_tokens > 1.0)
    return not decodes or bool(itl_s(1.0, figures) <= terms.tpot_s)


@compiled
def held(role: int, figures: LoadFigures) -> float:
    """Such requests that a replica holds: KV tokens, the batch limit, and a batch that was profiled."""
    terms, itl, sampled = LoadTerms(*figures[0]), ItlTable(*figures[2]), SampledBatches(*figures[3])
    capacity, context = itl.capacity_tokens, terms.input_tokens + terms.output_tokens / 2.0
    if role == PREFILL_ROLE:
        return float(np.floor(capacity / terms.input_tokens))
    last_kv = sampled.last_kv[0]
    if len(sampled.last_kv) > 1:
        line, along = locate(sampled.context_tokens, context)
        last_kv = blend(sampled.last_kv[line], sampled.last_kv[line + 1], along)
    last_kv *= min(context / sampled.context_tokens[0], 1.0)
    last_kv = min(max(sampled.largest_batch * context / capacity, last_kv), 1.0)
    profiled = max(1.0, last_kv * capacity / context)
    fits = capacity / (terms.input_tokens + terms.output_tokens)
    return float(np.floor(min(fits, profiled, terms.max_batch)))


@compiled
def alone_s(work: WorkCurve, chunk_tokens: float, uncached: float) -> float:
    """Seconds of a prompt on an idle replica."""
    rounds = np.ceil(uncached / chunk_tokens) if chunk_tokens > 0.0 else 1.0
    return float(rounds * work.seconds[0] + work_of(work, uncached))


@compiled
def left_s(role: int, figures: LoadFigures) -> float:
    """Seconds that a prompt may take at a replica of this role."""
    terms = LoadTerms(*figures[0])
    if role == PREFILL_ROLE and terms.ttft_s < np.inf:
        return terms.ttft_s - terms.transfer_s - itl_s(1.0, figures)
    return terms.ttft_s


@compiled
def itl_s(decoding: float, figures: LoadFigures) -> float:
    """ITL of so many such requests; a full KV cache is as far as it goes."""
    terms, itl = LoadTerms(*figures[0]), ItlTable(*figures[2])
    return itl_of(itl, decoding, decoding * (terms.input_tokens + terms.output_tokens / 2.0))


@compiled
def largest_batch(holds: float, figures: LoadFigures) -> float:
    """The most requests up to `holds` that decode within the TPOT SLO; at least 1."""
    tpot_s = figures[0][3]
    ratio, kept, beyond = holds ** (1.0 / (STEPS - 1)), 1.0, 1.0
    for step in range(STEPS):
        tried = holds / ratio**step
        if itl_s(tried, figures) <= tpot_s:
            kept = tried
            break
        beyond = tried
    for _ in range(HALVINGS if beyond > kept else 0):
        middle = np.sqrt(kept * beyond)
        if itl_s(middle, figures) <= tpot_s:
            kept = middle
        else:
            beyond = middle
    return float(max(kept, 1.0))


@compiled
def largest_point(uncached: float, holds: float, figures: LoadFigures) -> OperatingPoint:
    """The operating point of the largest rate that keeps the SLO within what is held; not `kept` without."""
    terms, work = LoadTerms(*figures[0]), WorkCurve(*figures[1])
    work_s = work_of(work, uncached)
    most, least = holds, FEWEST_DECODING
    if terms.output_tokens <= 1.0:
        share = uncached / terms.chunk_tokens if terms.chunk_tokens > 0.0 else 1.0
        most = 1.0 / max(share * work.seconds[0] + work_s, LEAST_S)
        least = SLOWEST * most
    ratio, kept, beyond = (most / least) ** (1.0 / (STEPS - 1)), most, most
    best = point_at(most, uncached, work_s, holds, figures)
    for step in range(1, STEPS):
        if best.kept:
            break
        beyond, kept = kept, most / ratio**step
        best = point_at(kept, uncached, work_s, holds, figures)
    for _ in range(HALVINGS if best.kept and kept < beyond else 0):
        middle = np.sqrt(kept * beyond)
        point = point_at(middle, uncached, work_s, holds, figures)
        if point.kept:
            kept, best = middle, point
        else:
            beyond = middle
    return best


@compiled
def point_at(
    tried: float, uncached: float, work_s: float, holds: float, figures: LoadFigures
) -> OperatingPoint:
    """The steady state with `tried` requests that decode; at that rate, where no output is decoded."""
    terms, work = LoadTerms(*figures[0]), WorkCurve(*figures[1])
    steps, chunk = terms.output_tokens - 1.0, terms.chunk_tokens
    share = uncached / chunk if chunk > 0.0 else 1.0
    idle_s, batch_s, busy, rate = work.seconds[0], 0.0, 0.0, tried
    if steps > 0.0:
        batch_s, busy = itl_s(tried, figures), min(tried, 1.0)
        rate = tried / (steps * batch_s + tried * work_s)
    iteration_s = busy * batch_s + (1.0 - busy) * idle_s
    own_s = np.ceil(share) * iteration_s + work_s
    service_s = share * iteration_s + work_s
    used = rate * service_s
    if used >= 1.0:
        return OperatingPoint(rate, np.inf, np.inf, tried, False)
    ttft_s = own_s + used * service_s / (2.0 * (1.0 - used)) + busy * batch_s / 2.0
    tpot_s = 0.0
    if steps > 0.0:
        even_s = batch_s / (1.0 - rate * work_s)
        lasts_s = max(steps * even_s, LEAST_S)
        settles_s = max(used * service_s / (1.0 - used) ** 2, LEAST_S)
        lingering = settles_s / lasts_s * -np.expm1(-lasts_s / settles_s)
        tpot_s = even_s + lingering * (batch_s + used * work_s / share - even_s)
    decoding = rate * steps * tpot_s
    kept = ttft_s <= terms.ttft_s and tpot_s <= terms.tpot_s and decoding + rate * own_s <= holds
    return OperatingPoint(rate, ttft_s, tpot_s, decoding, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceCapacity:
    """Capacities of one GPU type from its profile."""

    profile: Profile
    rules: EngineRules
    _surfaces: tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        surfaces, decode = engine_surfaces(self.profile), self.profile.decode
        # Copies: compiled code is made for writable arrays.
        edges = np.array(decode.domain.context_tokens), np.array(decode.domain.last_kv)
        plain = tuple(surfaces.work), tuple(surfaces.itl), (*edges, float(decode.largest_batch))
        object.__setattr__(self, "_surfaces", plain)

    def fill(self, asked: LoadQuery, among: Candidates, out: FloatArray) -> None:
        """The loads of all candidates of this type."""
        role = ROLE_CODES[asked.role]
        fill_loads(role, among.table, among.slots, among.cached, among.kind, self.figures(asked), out)

    def capacity(
        self, input_tokens: float, output_tokens: float, role: Role, slo: RequestSlo, cached: float = 0.0
    ) -> float:
        """Concurrent requests of these lengths (below 1 token counts as 1) that a replica bears."""
        asked = LoadQuery(input_tokens=input_tokens, output_tokens=output_tokens, role=role, slo=slo)
        figures, code = self.figures(asked), ROLE_CODES[role]
        load = load_of(code, max(1.0, input_tokens - cached), held(code, figures), figures)
        return 0.0 if load == inf else 1.0 / load

    def figures(self, asked: LoadQuery) -> LoadFigures:
        """A request and this type in numbers, for the compiled functions."""
        input_tokens = max(1.0, float(asked.input_tokens))
        terms = (
            input_tokens,
            max(1.0, float(asked.output_tokens)),
            float(asked.slo.ttft_s),
            float(asked.slo.tpot_s),
            float(self.rules.transfer_s(ceil(input_tokens))),
            float(self.rules.chunk_tokens),
            float(self.rules.max_batch_size),
        )
        return (terms, *self._surfaces)
