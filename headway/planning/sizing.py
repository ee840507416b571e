"""The formulas of the published SLA planner: correction factors, the load to expect, and replicas for it.

Correction factors say how much slower (above 1) or faster the fleet is than its profile.

    prefill_correction = actual_ttft / expected_ttft       expected: prefill surface at the observed ISL
    decode_correction  = actual_itl / expected_itl         expected: decode surface at (kv_usage, context)
        context     = isl + osl / 2                                                tokens
        concurrency = requests / ready decode replicas * request_duration / interval       (Little's law)
        kv_usage    = min(1, concurrency * context / max_kv_tokens)

Source: SLA planner, "Correction Factor Calculation"; Planner Design, "Step 2"; concurrency as in the
published planner's code. The factors are applied raw, without smoothing, as documented. Where a measurement
is missing, the last factor is kept, and `basis` says which one was missing.

A count is known when it is finite and not negative, a length or latency when it is finite and above 0. The
constant forecast (the next interval is like this one) stands in for whatever the predictors left open.

Replicas, before any limit:

    prefill:  load       = next_requests * next_isl / interval * min(1, prefill_correction)      tokens/s
              replicas   = load / throughput_per_gpu(next_isl) / gpus_per_engine
    decode:   itl        = itl_slo / decode_correction                                            s
              best       = best throughput per GPU with ITL <= itl at context next_isl + next_osl / 2
              replicas   = next_requests * next_osl / interval / best.throughput_per_gpu / gpus_per_engine

Source: SLA planner, "Calculating Number of Replicas" (prefill, decode), and Planner Design, "Step 4".
Replicas are rounded up. An infeasible SLO does not change the formulas: decode is sized at the point of least
ITL, prefill (whose published formula ignores the TTFT target) as always; both carry the best achievable
value. A throughput of 0 needs "as many as there are": the pool's maximum.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil, isfinite

from headway.engine.replica_speeds import Lengths
from headway.planning.types import NAN, LoadForecast, Observation, Role
from interp import DecodeSurface, PrefillSurface


def positive(value: float) -> bool:
    """True for a latency or a length that is known."""
    return isfinite(value) and value > 0


def counted(requests: float) -> bool:
    """True for a number of requests that is known."""
    return isfinite(requests) and requests >= 0


def known_lengths(observation: Observation, last: Lengths) -> Lengths:
    """The observed lengths, each replaced by the last known one where it was not observed."""
    return Lengths(
        isl_tokens=observation.isl_tokens if positive(observation.isl_tokens) else last.isl_tokens,
        osl_tokens=observation.osl_tokens if positive(observation.osl_tokens) else last.osl_tokens,
    )


def resolve_forecast(observation: Observation, lengths: Lengths, interval_s: float) -> LoadForecast:
    """The load of the next `interval_s`, constant where nothing was forecast; lengths stay NaN where none is
    known.
    """
    observed = observation.requests * (interval_s / observation.interval_s)
    given = observation.forecast or LoadForecast(requests=NAN, isl_tokens=NAN, osl_tokens=NAN)
    is_given = {
        "requests": counted(given.requests),
        "isl_tokens": positive(given.isl_tokens),
        "osl_tokens": positive(given.osl_tokens),
    }
    return LoadForecast(
        requests=given.requests if is_given["requests"] else observed,
        isl_tokens=given.isl_tokens if is_given["isl_tokens"] else lengths.isl_tokens,
        osl_tokens=given.osl_tokens if is_given["osl_tokens"] else lengths.osl_tokens,
        source={
            series: given.source.get(series, "given") if known else "constant (no forecast)"
            for series, known in is_given.items()
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A factor, where it comes from (`measured`, `off` or `kept: ...`), and what it was computed from."""

    value: float = 1.0
    basis: str = "off"
    details: dict[str, float | str] = field(default_factory=dict)


def correct_prefill(
    observation: Observation, lengths: Lengths, last: float, surface: PrefillSurface
) -> Correction:
    """Actual over expected TTFT."""
    if missing := _missing(ttft=observation.ttft_s, isl=lengths.isl_tokens):
        return Correction(value=last, basis=f"kept: {missing} not measured")
    expected_s = float(surface.ttft_s(lengths.isl_tokens))
    return _measured(observation.ttft_s, expected_s, {"isl_tokens": lengths.isl_tokens})


def correct_decode(
    observation: Observation, lengths: Lengths, last: float, surface: DecodeSurface
) -> Correction:
    """Actual over expected ITL at the observed concurrency."""
    duration_s, source = observation.request_duration_s, "measured"
    if not positive(duration_s):
        duration_s = observation.ttft_s + observation.itl_s * lengths.osl_tokens
        source = "ttft + itl * osl"
    missing = _missing(
        itl=observation.itl_s, isl=lengths.isl_tokens, osl=lengths.osl_tokens, request_duration=duration_s
    )
    if missing:
        return Correction(value=last, basis=f"kept: {missing} not measured")
    ready = observation.pools[Role.DECODE].ready
    if ready <= 0:
        return Correction(value=last, basis="kept: no decode replica is ready")
    # Repeats are served like all others.
    arrived = observation.requests + observation.repeats
    concurrency = arrived / ready * duration_s / observation.interval_s
    context_tokens = lengths.context_tokens
    kv_usage = min(1.0, concurrency * context_tokens / float(surface.table.max_kv_tokens))
    details: dict[str, float | str] = {
        "request_duration_s": duration_s,
        "request_duration_source": source,
        "concurrency": concurrency,
        "context_tokens": context_tokens,
        "kv_usage": kv_usage,
    }
    return _measured(observation.itl_s, float(surface.itl_s(kv_usage, context_tokens)), details)


def _missing(**series: float) -> str:
    return ", ".join(name for name, value in series.items() if not positive(value))


def _measured(actual_s: float, expected_s: float, details: dict[str, float | str]) -> Correction:
    return Correction(
        value=actual_s / expected_s,
        basis="measured",
        details={"actual_s": actual_s, "expected_s": expected_s, **details},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """A latency target below what one idle replica can do, in seconds."""

    metric: str
    target_s: float
    best_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Tokens per second to serve, tokens per second and GPU to be had, and the replicas that follow.

    `replicas` is not yet rounded; infinite when the throughput is 0.
    """

    load_tokens_per_s: float
    throughput_per_gpu: float
    gpus_per_replica: int
    infeasible: Infeasible | None = None
    extrapolated: bool = False

    @property
    def replicas(self) -> float:
        """Replicas before rounding."""
        if self.load_tokens_per_s == 0:
            return 0.0
        if self.throughput_per_gpu <= 0:
            return float("inf")
        return self.load_tokens_per_s / self.throughput_per_gpu / self.gpus_per_replica

    def wished(self, max_replicas: int) -> int:
        """Whole replicas; `max_replicas` when no number of them would do."""
        return ceil(self.replicas) if isfinite(self.replicas) else max_replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """The steps of one decision up to the replicas wished.

    `kind` is sized, zero_traffic or hold. `held` roles repeat their last target; the others have a
    `requirement` when the kind is sized.
    """

    kind: str
    wished: Mapping[Role, int]
    lengths: Lengths
    corrections: Mapping[Role, Correction]
    forecast: LoadForecast | None = None
    requirement: Mapping[Role, Requirement] = field(default_factory=dict)
    held: tuple[Role, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """The latency target of a role in seconds, the correction to apply, and the GPUs of one replica."""

    slo_s: float
    correction: float
    gpus_per_replica: int


def size_prefill(load: LoadForecast, interval_s: float, aim: Aim, surface: PrefillSurface) -> Requirement:
    """Prefill replicas for a load; correction factors above 1 (queueing) never raise them, as published."""
    tokens_per_s = load.requests * load.isl_tokens / interval_s * min(1.0, aim.correction)
    best_s = float(surface.ttft_s(load.isl_tokens))
    return Requirement(
        load_tokens_per_s=tokens_per_s,
        throughput_per_gpu=float(surface.throughput_per_gpu(load.isl_tokens)),
        gpus_per_replica=aim.gpus_per_replica,
        infeasible=Infeasible(metric="ttft", target_s=aim.slo_s, best_s=best_s)
        if best_s > aim.slo_s
        else None,
        extrapolated=bool(surface.extrapolated(load.isl_tokens)),
    )


def size_decode(load: LoadForecast, interval_s: float, aim: Aim, surface: DecodeSurface) -> Requirement:
    """Decode replicas for a load at the best throughput under the corrected ITL target."""
    corrected_s = aim.slo_s / aim.correction
    best = surface.best_throughput_per_gpu(corrected_s, load.isl_tokens + load.osl_tokens / 2)
    reach = Infeasible(metric="itl", target_s=corrected_s, best_s=float(best.itl_s))
    return Requirement(
        load_tokens_per_s=load.requests * load.osl_tokens / interval_s,
        throughput_per_gpu=float(best.throughput_per_gpu),
        gpus_per_replica=aim.gpus_per_replica,
        infeasible=None if best.feasible else reach,
        extrapolated=bool(best.extrapolated),
    )
