"""Which tensor-parallel sizes serve a load best under its SLO, and from when on to scale.

    prefill    of the sizes whose TTFT at the ISL meets its target, the one of the highest throughput per GPU;
               if none does, the one of the least TTFT
    decode     of the sizes that can meet the ITL target at a context of ISL + OSL/2, the one whose best point
               (`interp`: the highest throughput per GPU under the target) is highest; if none can, the one of
               the least ITL
    scaling    prefill queue, in waiting prompts per replica: more replicas above 1.2 · target / TTFT - 1,
               fewer below 0.8 · target / TTFT - 1, neither below 0.1
               decode KV usage: more replicas above that of the best point + 0.2 (at most 1), fewer below it -
               0.2 (at least 0.1)

Documents 000 and 001 ask for this; the numbers of the thresholds are those of Dynamo's profile_sla. Ties go
to the smaller size. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headway.planning.types import Slo
from headway.profiling.errors import RequestError
from interp import Profile

QUEUE_MORE, QUEUE_FEWER, LEAST_QUEUE = 1.2, 0.8, 0.1
KV_BAND, LEAST_KV = 0.2, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
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
class Choice:
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

    load: Load
    prefill: Choice
    decode: Choice


def recommend(profiles: Mapping[int, Profile], load: Load) -> Recommendation:
    """The best of `profiles` by tensor-parallel size; at least one."""
    tps = sorted(profiles)
    return Recommendation(
        load=load,
        prefill=_best([_prefill(tp, profiles[tp], load) for tp in tps]),
        decode=_best([_decode(tp, profiles[tp], load) for tp in tps]),
    )


def _best(choices: list[Choice]) -> Choice:
    feasible = [choice for choice in choices if choice.feasible]
    if feasible:
        return max(feasible, key=lambda choice: choice.throughput_per_gpu)
    return min(choices, key=lambda choice: choice.latency_s)


def _prefill(tp: int, profile: Profile, load: Load) -> Choice:
    surface, target_s = profile.prefill, load.slo.ttft_s
    ttft_s = surface.ttft_s(load.isl_tokens)
    return Choice(
        tp=tp,
        latency_s=ttft_s,
        throughput_per_gpu=surface.throughput_per_gpu(load.isl_tokens),
        feasible=ttft_s <= target_s,
        extrapolated=surface.extrapolated(load.isl_tokens),
        scale_up_above=max(LEAST_QUEUE, QUEUE_MORE * target_s / ttft_s - 1.0),
        scale_down_below=max(LEAST_QUEUE, QUEUE_FEWER * target_s / ttft_s - 1.0),
    )


def _decode(tp: int, profile: Profile, load: Load) -> Choice:
    best = profile.decode.best_throughput_per_gpu(load.slo.itl_s, load.context_tokens)
    return Choice(
        tp=tp,
        latency_s=best.itl_s,
        throughput_per_gpu=best.throughput_per_gpu,
        feasible=best.feasible,
        extrapolated=best.extrapolated,
        scale_up_above=min(1.0, best.kv_usage + KV_BAND),
        scale_down_below=max(LEAST_KV, best.kv_usage - KV_BAND),
        kv_usage=best.kv_usage,
    )
