"""Replicas that a load needs: the sizing formulas of the published SLA planner, before any limit.

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

from headway.planning.corrections import Correction
from headway.planning.load import Lengths
from headway.planning.surfaces import DecodeSurface, PrefillSurface
from headway.planning.types import LoadForecast, Role


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
