"""Profiles side by side: ratios of two, and the tensor-parallel size that serves a load best.

A ratio is the second profile over the first, at the first one's samples: 1.1 in TTFT or ITL means that the
second is a tenth slower there. Only samples within the second one's sampled range count; the others are
counted apart.

    prefill    of the sizes whose TTFT at the ISL meets its target, the one of the highest throughput per GPU;
               if none does, the one of the least TTFT
    decode     of the sizes that can meet the ITL target at a context of ISL + OSL/2, the one whose best point
               (`interp`: the highest throughput per GPU under the target) is highest; if none can, the one of
               the least ITL
    scaling    prefill queue, in waiting prompts per replica: more replicas above 1.2 · target / TTFT - 1,
               fewer below 0.8 · target / TTFT - 1, neither below 0.1
               decode KV usage: more replicas above that of the best point + 0.2 (at most 1), fewer below it -
               0.2 (at least 0.1)

The numbers of the thresholds are those of Dynamo's profile_sla. Ties go to the smaller size.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headway.planning.types import Slo
from headway.profiling import RequestError
from interp import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratios:
    """Second over first at `points` samples; None where there is none. `outside` samples are not covered."""

    points: int
    outside: int
    median: float | None
    least: float | None
    most: float | None


def compare_profiles(first: Profile, second: Profile) -> Mapping[str, Ratios]:
    """Ratios of TTFT, ITL, and throughput per GPU in prefill and decode."""
    isl = first.prefill.samples.isl_tokens
    kv, context = first.decode.samples.kv_usage, first.decode.samples.context_tokens
    # The second engine may hold more or less: the same batch is what can be compared.
    kv = kv * (first.decode.table.max_kv_tokens / second.decode.table.max_kv_tokens)
    prefill_inside = ~second.prefill.extrapolated(isl)
    decode_inside = ~second.decode.extrapolated(np.minimum(kv, 1.0), context) & (kv <= 1.0)
    a, b = first.prefill, second.prefill
    c, d = first.decode.samples, second.decode
    kv = np.minimum(kv, 1.0)
    return {
        "TTFT": _ratios(b.ttft_s(isl) / a.samples.ttft_s, prefill_inside),
        "prefill throughput per GPU": _ratios(
            b.throughput_per_gpu(isl) / a.samples.throughput_per_gpu, prefill_inside
        ),
        "ITL": _ratios(d.itl_s(kv, context) / c.itl_s, decode_inside),
        "decode throughput per GPU": _ratios(
            d.throughput_per_gpu(kv, context) / c.throughput_per_gpu, decode_inside
        ),
    }


def _ratios(values: np.ndarray, inside: np.ndarray) -> Ratios:
    kept = values[inside]
    if len(kept) == 0:
        return Ratios(points=0, outside=len(values), median=None, least=None, most=None)
    return Ratios(
        points=len(kept),
        outside=int(np.count_nonzero(~inside)),
        median=float(np.median(kept)),
        least=float(kept.min()),
        most=float(kept.max()),
    )


QUEUE_MORE, QUEUE_FEWER, LEAST_QUEUE = 1.2, 0.8, 0.1
KV_BAND, LEAST_KV = 0.2, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetLoad:
    """Mean input and output tokens of a request, and the SLO."""

    isl_tokens: float
    osl_tokens: float
    slo: Slo

    def __post_init__(self) -> None:
        for name, value in (
            ("isl", self.isl_tokens),
            ("osl", self.osl_tokens),
            ("ttft-ms", self.slo.ttft_s),
            ("itl-ms", self.slo.itl_s),
        ):
            if not 0.0 < value < float("inf"):
                raise RequestError(f"{name}: expected a number above 0, got {value:g}")

    @property
    def context_tokens(self) -> float:
        """The mean context of a decode."""
        return self.isl_tokens + self.osl_tokens / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TpChoice:
    """A tensor-parallel size for one phase, what it does there, and the band outside which to scale.

    `latency_s` is TTFT or ITL, `throughput_per_gpu` in input or output tokens per second; `scale_up_above`
    and `scale_down_below` are waiting prompts per replica (prefill) or KV usage (decode). `extrapolated`: the
    load lies outside what was sampled.
    """

    tp: int
    latency_s: float
    throughput_per_gpu: float
    feasible: bool
    extrapolated: bool
    scale_up_above: float
    scale_down_below: float
    kv_usage: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The two choices for a load."""

    load: TargetLoad
    prefill: TpChoice
    decode: TpChoice


def recommend(profiles: Mapping[int, Profile], load: TargetLoad) -> Recommendation:
    """The best of `profiles` by tensor-parallel size; at least one."""
    tps = sorted(profiles)
    return Recommendation(
        load=load,
        prefill=_best([_prefill(tp, profiles[tp], load) for tp in tps]),
        decode=_best([_decode(tp, profiles[tp], load) for tp in tps]),
    )


def _best(choices: list[TpChoice]) -> TpChoice:
    feasible = [choice for choice in choices if choice.feasible]
    if feasible:
        return max(feasible, key=lambda choice: choice.throughput_per_gpu)
    return min(choices, key=lambda choice: choice.latency_s)


def _prefill(tp: int, profile: Profile, load: TargetLoad) -> TpChoice:
    surface, target_s = profile.prefill, load.slo.ttft_s
    ttft_s = surface.ttft_s(load.isl_tokens)
    return TpChoice(
        tp=tp,
        latency_s=ttft_s,
        throughput_per_gpu=surface.throughput_per_gpu(load.isl_tokens),
        feasible=ttft_s <= target_s,
        extrapolated=surface.extrapolated(load.isl_tokens),
        scale_up_above=max(LEAST_QUEUE, QUEUE_MORE * target_s / ttft_s - 1.0),
        scale_down_below=max(LEAST_QUEUE, QUEUE_FEWER * target_s / ttft_s - 1.0),
    )


def _decode(tp: int, profile: Profile, load: TargetLoad) -> TpChoice:
    best = profile.decode.best_throughput_per_gpu(load.slo.itl_s, load.context_tokens)
    return TpChoice(
        tp=tp,
        latency_s=best.itl_s,
        throughput_per_gpu=best.throughput_per_gpu,
        feasible=best.feasible,
        extrapolated=best.extrapolated,
        scale_up_above=min(1.0, best.kv_usage + KV_BAND),
        scale_down_below=max(LEAST_KV, best.kv_usage - KV_BAND),
        kv_usage=best.kv_usage,
    )
