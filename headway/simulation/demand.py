"""The demand of a trace on a profile: load per interval, the fleet it needs, and what no fleet can give.

    fleet    the reference formulas with correction factors of 1 (`headway.planning.sizing`); a mixed replica
             does both works, so a mixed pool needs the sum of both requirements, before rounding. Prompts
             slow down the outputs beside them, which averages do not show: the mixed fleet with which a
             simulation begins is found by replay of the first interval
    reach    where an idle replica's TTFT for a request's input (each chunk of a prompt is an iteration), or
             its least ITL at the request's context, is above the SLO of its class, no fleet meets that
             request; the other requests are attainable
    demand   per role, GPU-seconds that the trace's work needs at the best throughput under the SLO (the fluid
             bound of `results`, prompts and output apart; no prefix reuse)
    load     of a fixed fleet: the largest of demand / (replicas × GPUs per replica × duration) over the
             pools; a mixed replica does both works, so there the demands add up

The load is proportional to the rate, which gives the rate scale for a wanted load. Prefix reuse, which
shortens prefills, is not counted in `reach`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, isfinite

import numpy as np
from numpy.typing import NDArray

from headway.engine import EngineRules
from headway.engine.surfaces import idle_itl_s, idle_prompt_s
from headway.planning import LoadForecast, PolicySettings, Role, Slo
from headway.planning.deciding import fit
from headway.planning.replay import ReplayEngine, Requests, least_replicas, mixed_losses
from headway.planning.sizing import Aim, Requirement, size_decode, size_prefill
from headway.planning.types import PoolLimits
from headway.simulation.results import FluidBound
from headway.simulation.scenario import ClassMix
from headway.workload import RequestChunk, Trace, interval_series
from interp import Profile

FloatArray = NDArray[np.float64]


def first_interval(trace: Trace, interval_s: float) -> tuple[LoadForecast, float]:
    """The load of the trace's first interval, and its length in seconds."""
    span_s = min(interval_s, trace.duration_s) or interval_s
    requests, inputs, outputs = 0, 0, 0
    for part in _first_chunks(trace, span_s):
        requests += len(part.arrival_s)
        inputs += int(part.input_tokens.sum())
        outputs += int(part.output_tokens.sum())
    return load_of(requests, inputs, outputs), span_s


def _first_chunks(trace: Trace, span_s: float) -> Iterator[Requests]:
    """The requests that come within `span_s`, in chunks."""
    for chunk in trace.chunks():
        within = int(np.searchsorted(chunk.arrival_s, span_s, side="right"))
        columns = chunk.arrival_s, chunk.input_tokens, chunk.output_tokens
        yield Requests(*(column[:within].astype(np.float64) for column in columns))
        if within < len(chunk):
            break


MOST_REPLAYED = 20_000
"""Requests of a first interval that are replayed: a few seconds of work."""


def replayed_fleet(
    trace: Trace, interval_s: float, settings: PolicySettings, engine: ReplayEngine, may_miss: float
) -> Mapping[Role, int]:
    """The fewest mixed replicas that lose at most `may_miss` of the first interval's attainable requests."""
    requests = Requests(*np.zeros((3, 0)))
    for part in _first_chunks(trace, interval_s):
        requests = requests.followed_by(part).where(slice(MOST_REPLAYED))
        if len(requests.arrival_s) == MOST_REPLAYED:
            break
    wished = least_replicas(lambda guess: mixed_losses(engine, requests, 0, guess), may_miss)
    return fit({Role.MIXED: wished}, settings.limits, settings.max_gpu_budget).targets


def load_of(requests: int, input_tokens: int, output_tokens: int) -> LoadForecast:
    """Totals as a load; lengths are 0 without requests."""
    count = max(1, requests)
    return LoadForecast(
        requests=float(requests), isl_tokens=input_tokens / count, osl_tokens=output_tokens / count
    )


def interval_loads(trace: Trace, interval_s: float) -> Iterator[tuple[LoadForecast, float]]:
    """The loads of the trace's intervals that have any, and their length; a short trace is one interval."""
    if trace.duration_s <= interval_s:
        yield first_interval(trace, interval_s)
        return
    series = interval_series(trace, interval_s)
    columns = (series.requests, series.isl_tokens, series.osl_tokens)
    for n, isl, osl in zip(*(column.tolist() for column in columns), strict=True):
        if n > 0:
            yield LoadForecast(requests=n, isl_tokens=isl, osl_tokens=osl), interval_s


def size_fleet(
    load: LoadForecast, interval_s: float, settings: PolicySettings, profile: Profile
) -> Mapping[Role, int]:
    """Replicas per pool for a constant load, within limits and budget; the minimum without requests."""
    if load.requests == 0:
        return {role: pool.min_replicas for role, pool in settings.limits.items()}
    need = requirements(load, interval_s, settings, profile)
    wished = {
        role: ceil(replicas) if isfinite(replicas) else settings.limits[role].max_replicas
        for role, replicas in need.items()
    }
    return fit(wished, settings.limits, settings.max_gpu_budget).targets


def requirements(
    load: LoadForecast, interval_s: float, settings: PolicySettings, profile: Profile
) -> Mapping[Role, float]:
    """Replicas per pool before rounding; infinite where the profile gives no throughput."""
    if Role.MIXED in settings.limits:
        gpus = settings.limits[Role.MIXED].gpus_per_replica
        both = _both(load, interval_s, settings.slo, profile, dict.fromkeys(Role, gpus))
        return {Role.MIXED: sum(need.replicas for need in both.values())}
    gpus_of = {role: pool.gpus_per_replica for role, pool in settings.limits.items()}
    both = _both(load, interval_s, settings.slo, profile, gpus_of)
    return {role: both[role].replicas for role in settings.limits}


def _both(
    load: LoadForecast, interval_s: float, slo: Slo, profile: Profile, gpus: Mapping[Role, int]
) -> Mapping[Role, Requirement]:
    prefill = Aim(slo_s=slo.ttft_s, correction=1.0, gpus_per_replica=gpus[Role.PREFILL])
    decode = Aim(slo_s=slo.itl_s, correction=1.0, gpus_per_replica=gpus[Role.DECODE])
    return {
        Role.PREFILL: size_prefill(load, interval_s, prefill, profile.prefill),
        Role.DECODE: size_decode(load, interval_s, decode, profile.decode),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleEngine:
    """Replicas on which nothing waits: their profile and rules, mixed or in split pools."""

    profile: Profile
    rules: EngineRules
    mixed: bool

    def ttft_s(self, isl_tokens: FloatArray) -> FloatArray:
        """TTFT by input tokens: in split pools with the transfer and one idle iteration."""
        ttft_s = idle_prompt_s(self.profile, isl_tokens, self.rules.chunk_tokens)
        if self.mixed:
            return ttft_s
        return ttft_s + self.rules.transfer_s(isl_tokens) + idle_itl_s(self.profile, isl_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Requests of a trace against profile and SLO: how many the samples do not cover, how many can be met.

    `isl_outside` and `context_outside` count requests outside the sampled input lengths and contexts;
    `ttft_missed` and `itl_missed` those whose SLO an idle replica misses, `attainable` the requests that miss
    neither. `best_ttft_s` and `best_itl_s` are what an idle replica gives the mean request.
    """

    requests: int = 0
    isl_outside: int = 0
    context_outside: int = 0
    ttft_missed: int = 0
    itl_missed: int = 0
    attainable: int = 0
    best_ttft_s: float = float("nan")
    best_itl_s: float = float("nan")


def reach(trace: Trace, slo: Slo | ClassMix, idle: IdleEngine) -> Reach:
    """One pass over `trace`."""
    mix = slo if isinstance(slo, ClassMix) else ClassMix((), slo, 0)
    counts = np.zeros(6)
    tokens = np.zeros(2)
    for chunk in trace.chunks():
        places = mix.draw(round(counts[0]) + np.arange(len(chunk)))
        counts += _counts(chunk, mix.limits_s[:, places], idle)
        tokens += (chunk.input_tokens.sum(), chunk.output_tokens.sum())
    whole = [round(count) for count in counts]
    isl, osl = tokens / max(1, whole[0])
    return Reach(
        **dict(zip(Reach.__slots__, whole, strict=False)),
        best_ttft_s=float(idle.ttft_s(np.array([isl]))[0]) if isl else float("nan"),
        best_itl_s=float(idle_itl_s(idle.profile, np.array([isl + osl / 2]))[0]) if isl else float("nan"),
    )


def _counts(chunk: RequestChunk, limits_s: FloatArray, idle: IdleEngine) -> FloatArray:
    ttft_s, itl_s = limits_s
    isl, osl = chunk.input_tokens.astype(np.float64), chunk.output_tokens.astype(np.float64)
    covered = idle.profile.coverage(isl, osl)
    late = idle.ttft_s(isl) > ttft_s
    slow = (idle_itl_s(idle.profile, isl + osl / 2) > itl_s) & (osl > 1)
    too_long = isl + osl > idle.profile.decode.table.max_kv_tokens
    return np.array(
        [
            len(chunk),
            covered.isl_outside * len(chunk),
            covered.context_outside * len(chunk),
            late.sum(),
            slow.sum(),
            len(chunk) - (late | slow | too_long).sum(),
        ]
    )


def demand_gpu_s(
    trace: Trace, profile: Profile, slo: Slo, *, shared_iterations: bool
) -> Mapping[Role, float]:
    """GPU-seconds of prefill and of decode work in `trace`, as it is read."""
    prefill = FluidBound(profile, slo, shared_iterations=shared_iterations)
    both = FluidBound(profile, slo, shared_iterations=shared_iterations)
    for chunk in trace.chunks():
        context = chunk.input_tokens + chunk.output_tokens / 2.0
        prefill.add(chunk.input_tokens, np.zeros_like(chunk.output_tokens), context)
        both.add(chunk.input_tokens, chunk.output_tokens - 1, context)
    return {Role.PREFILL: prefill.gpu_seconds, Role.DECODE: both.gpu_seconds - prefill.gpu_seconds}


def offered_load(
    demand: Mapping[Role, float],
    fleet: Mapping[Role, int],
    pools: Mapping[Role, PoolLimits],
    duration_s: float,
) -> float:
    """The load of the busiest pool; 1 is 100 %."""
    have = {role: count * pools[role].gpus_per_replica * duration_s for role, count in fleet.items()}
    if Role.MIXED in have:
        return sum(demand.values()) / have[Role.MIXED]
    return max(demand[role] / have[role] for role in have)
