"""Profiles without a GPU: sample a latency estimator on grids, once per tensor-parallel size.

Every engine is opened first, which finds sizes that do not fit before any work is done. What one engine
cannot answer skips that size with the reason; when no size is left, the reasons become the error.

Prefill, batch of one:  ttft = T_prefill(isl),      throughput per GPU = isl / ttft / gpus   [tokens/s/GPU]
Decode, n requests at context c:  itl = T_decode(n, c),  throughput per GPU = n / itl / gpus  [tokens/s/GPU],
                        kv_usage = n·c / max_kv_tokens   (0..1)

Decode lines run from a single request to the largest batch that batch limit and KV capacity allow.
"""

import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.profiling import ProfilingError, refuse_what_exists
from headway.profiling.sweep.points import LONGEST_ISL_TOKENS, MIN_CONTEXT_TOKENS, log_spaced, prefill_grid
from headway_studies.estimator.request import (
    EngineSpec,
    EstimatedProfile,
    EstimateError,
    EstimateRequest,
    Estimates,
    LatencyEstimator,
    OpenEstimator,
)
from interp import DecodeSamples, PrefillSamples, ProfileError, save_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """One decode sample: `batch` requests with `context_tokens` tokens each."""

    batch: int
    context_tokens: int


def decode_grid(
    contexts: Sequence[int], *, max_batch: int, max_kv_tokens: int, batches: int
) -> tuple[DecodePoint, ...]:
    """Decode samples, line by line: batches from 1 to min(`max_batch`, capacity at that context).

    A context of which not even one request fits into `max_kv_tokens` has no line.
    """
    points: list[DecodePoint] = []
    for context in contexts:
        largest = min(max_batch, max_kv_tokens // context)
        if largest >= 1:
            line = log_spaced(1, largest, batches)
            points.extend(DecodePoint(batch=batch, context_tokens=context) for batch in line)
    return tuple(points)


MS_PER_S = 1000.0
Tick = Callable[[], None]


def fill_prefill(
    estimator: LatencyEstimator, isl_tokens: Sequence[int], gpus: int, tick: Tick
) -> PrefillSamples:
    """Sample prefill at each input length (at least two); `tick` is called after each sample."""
    ttft = [_seconds(estimator.prefill_ms(isl), f"prefill at {isl} tokens", tick) for isl in isl_tokens]
    isl, ttft_s = np.asarray(isl_tokens, dtype=np.float64), np.asarray(ttft, dtype=np.float64)
    return PrefillSamples.timed(isl, ttft_s, gpus)


def fill_decode(
    estimator: LatencyEstimator, points: Sequence[DecodePoint], gpus: int, tick: Tick
) -> DecodeSamples:
    """Sample decode at each point (at least one); `tick` is called after each sample."""
    itl = [
        _seconds(
            estimator.decode_ms(point.batch, point.context_tokens),
            f"decode at batch {point.batch} and {point.context_tokens} tokens",
            tick,
        )
        for point in points
    ]
    batch = np.array([point.batch for point in points], dtype=np.float64)
    context = np.array([point.context_tokens for point in points], dtype=np.float64)
    itl_s, capacity = np.asarray(itl, dtype=np.float64), float(estimator.facts.max_kv_tokens)
    return DecodeSamples.timed(batch, context, itl_s, max_kv_tokens=capacity, gpus=gpus)


def _seconds(latency_ms: float, what: str, tick: Tick) -> float:
    """Convert a latency, when it is one: finite and above zero."""
    if not (math.isfinite(latency_ms) and latency_ms > 0.0):
        raise EstimateError(f"{what}: the estimator answered {latency_ms} ms, which is no latency")
    tick()
    return latency_ms / MS_PER_S


Progress = Callable[[int, int, str], None]


def estimate(
    request: EstimateRequest, progress: Progress | None = None, open_estimator: OpenEstimator | None = None
) -> Estimates:
    """Estimate a profile for each tensor-parallel size of `request`.

    `progress(done, total, label)` is called after each sample, over all sizes together. `open_estimator`
    makes the source of latencies, AI Configurator by default. Raises `ProfilingError`: `EstimateError` when
    no size has an estimate, otherwise as the source does (extra not installed, unknown names).
    """
    plans, skipped = _plan(request, open_estimator or _open_aiconfigurator)
    count = _SampleCount(total=sum(plan.samples for plan in plans.values()), report=progress)
    profiles: list[EstimatedProfile] = []
    for tp, plan in plans.items():
        try:
            profiles.append(_profile(request, tp, plan, count))
        except EstimateError as error:
            skipped[tp] = str(error)
    if not profiles:
        raise EstimateError("; ".join(skipped[tp] for tp in request.tps))
    return Estimates(profiles=tuple(profiles), skipped=skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """An opened engine and its grids."""

    estimator: LatencyEstimator
    isl_tokens: tuple[int, ...]
    points: tuple[DecodePoint, ...]

    @property
    def samples(self) -> int:
        return len(self.isl_tokens) + len(self.points)


@dataclass(slots=True, kw_only=True)
class _SampleCount:
    """Counts samples and reports them."""

    total: int
    report: Progress | None
    done: int = 0

    def advance(self, label: str) -> None:
        self.done += 1
        if self.report is not None:
            self.report(self.done, self.total, label)


def _plan(request: EstimateRequest, open_estimator: OpenEstimator) -> tuple[dict[int, _Plan], dict[int, str]]:
    plans: dict[int, _Plan] = {}
    skipped: dict[int, str] = {}
    for tp in request.tps:
        try:
            plans[tp] = _grids(request, open_estimator(request.engine(tp)))
        except EstimateError as error:
            skipped[tp] = str(error)
    return plans, skipped


def _grids(request: EstimateRequest, estimator: LatencyEstimator) -> _Plan:
    facts = estimator.facts
    longest = min(facts.max_context_tokens, facts.max_kv_tokens)
    max_isl = min(longest, request.max_isl_tokens or LONGEST_ISL_TOKENS)
    isl_tokens = prefill_grid(max_isl, request.isl_points)
    if len(isl_tokens) < 2:
        raise EstimateError(
            f"{request.model}: only {longest} tokens fit into the KV cache, too few for a profile"
        )
    points = decode_grid(
        log_spaced(MIN_CONTEXT_TOKENS, longest, request.context_points),
        max_batch=request.max_batch,
        max_kv_tokens=facts.max_kv_tokens,
        batches=request.batch_points,
    )
    return _Plan(estimator=estimator, isl_tokens=isl_tokens, points=points)


def _profile(request: EstimateRequest, tp: int, plan: _Plan, count: _SampleCount) -> EstimatedProfile:
    name = request.directory_name(tp)
    prefill = fill_prefill(plan.estimator, plan.isl_tokens, tp, lambda: count.advance(f"{name}: prefill"))
    decode = fill_decode(plan.estimator, plan.points, tp, lambda: count.advance(f"{name}: decode"))
    return EstimatedProfile(
        name=name, prefill=prefill, decode=decode, meta=_meta(request, tp, plan.estimator)
    )


def _meta(request: EstimateRequest, tp: int, estimator: LatencyEstimator) -> Mapping[str, Any]:
    """Content of meta.json; no date and no path, so that the same request gives the same bytes."""
    facts, source = estimator.facts, estimator.provenance()
    return {
        "source": f"estimated with {source.tool} {source.tool_version}, not measured end to end",
        "command": request.command(tp),
        "tool": source.tool,
        "tool_version": source.tool_version,
        "database_mode": source.database_mode,
        "model": request.model,
        "system": request.system,
        "backend": request.backend,
        "backend_version": source.backend_version,
        "tp": tp,
        "gpus_per_engine": tp,
        "quantization": request.quantization or "native",
        "weights_dtype": facts.weights_dtype,
        "kv_cache_dtype": facts.kv_cache_dtype,
        "memory_fraction": request.memory_fraction,
        "max_batch_size": request.max_batch,
        "max_context_tokens": facts.max_context_tokens,
        "max_kv_tokens": facts.max_kv_tokens,
        "kv_bytes_per_token": facts.kv_bytes_per_token,
        "notes": list(source.notes),
    }


def _open_aiconfigurator(spec: EngineSpec) -> LatencyEstimator:
    from headway_studies.estimator.aiconfigurator import AiConfigurator

    return AiConfigurator(spec)


def write_estimates(
    profiles: Iterable[EstimatedProfile], directory: pathlib.Path, *, overwrite: bool = False
) -> tuple[pathlib.Path, ...]:
    """Write each profile to `directory`/<its name> and return those directories.

    Raises `OutputExistsError` before anything is written when one of them is there, is not empty and
    `overwrite` is not set; `ProfilingError` when a directory holds something that is no profile, or the file
    system refuses.
    """
    places = {directory / profile.name: profile for profile in profiles}
    for place in places:
        refuse_what_exists(place, overwrite=overwrite)
    for place, profile in places.items():
        try:
            save_profile(place, profile.prefill, profile.decode, profile.meta)
        except ProfileError as error:
            raise ProfilingError(str(error)) from error
    return tuple(places)


def check_output(request: EstimateRequest, directory: pathlib.Path, *, overwrite: bool = False) -> None:
    """Raise `OutputExistsError` where `write_estimates` would; for use before the work of estimating."""
    for tp in request.tps:
        refuse_what_exists(directory / request.directory_name(tp), overwrite=overwrite)
