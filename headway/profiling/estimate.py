"""Profiles without a GPU: sample a latency estimator on the grids, once per tensor-parallel size.

Open every engine first (that finds sizes that do not fit before any work is done), then fill the tables.
What one engine cannot answer skips that size with the reason; when no size is left, the reasons become the
error.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headway.profiling.errors import EstimateError
from headway.profiling.estimator import EngineSpec, LatencyEstimator, OpenEstimator
from headway.profiling.grids import DecodePoint, decode_contexts, decode_grid, prefill_grid
from headway.profiling.request import LONGEST_ISL_TOKENS, EstimatedProfile, EstimateRequest, Estimates
from headway.profiling.tables import fill_decode, fill_prefill

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
    meter = _Meter(total=sum(plan.samples for plan in plans.values()), report=progress or _ignore)
    profiles: list[EstimatedProfile] = []
    for tp, plan in plans.items():
        try:
            profiles.append(_profile(request, tp, plan, meter))
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
class _Meter:
    """Counts samples and reports them."""

    total: int
    report: Progress
    done: int = 0

    def advance(self, label: str) -> None:
        self.done += 1
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
        decode_contexts(longest, request.context_points),
        max_batch=request.max_batch,
        max_kv_tokens=facts.max_kv_tokens,
        batches=request.batch_points,
    )
    return _Plan(estimator=estimator, isl_tokens=isl_tokens, points=points)


def _profile(request: EstimateRequest, tp: int, plan: _Plan, meter: _Meter) -> EstimatedProfile:
    name = request.directory_name(tp)
    prefill = fill_prefill(plan.estimator, plan.isl_tokens, tp, lambda: meter.advance(f"{name}: prefill"))
    decode = fill_decode(plan.estimator, plan.points, tp, lambda: meter.advance(f"{name}: decode"))
    return EstimatedProfile(
        name=name, prefill=prefill, decode=decode, meta=_meta(request, tp, plan.estimator)
    )


def _meta(request: EstimateRequest, tp: int, estimator: LatencyEstimator) -> Mapping[str, Any]:
    """What meta.json says; no date and no path, so that the same request gives the same bytes."""
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
    from headway.profiling.aiconfigurator import AiConfigurator

    return AiConfigurator(spec)


def _ignore(done: int, total: int, label: str) -> None:
    """Report nothing."""
