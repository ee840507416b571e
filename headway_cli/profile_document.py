"""Profiles as plain data for tables and pages, latencies in milliseconds as profile files have them."""

from collections.abc import Mapping, Sequence
from typing import Any

from headway.profiling.recommendation import Choice, Recommendation
from interp import Profile

Document = Mapping[str, Any]


def profile_entry(
    name: str,
    profile: Profile,
    prefill_spread: Sequence[float] | None = None,
    decode_spread: Sequence[float] | None = None,
) -> Document:
    """One profile: its samples in their order, what it says of itself, and remarks."""
    prefill, decode = profile.prefill.samples, profile.decode.samples
    said = profile.meta.get("notes", [])
    return {
        "name": name,
        "source": str(profile.meta.get("source", "not said")),
        "gpus": {"prefill": profile.prefill.gpus_per_engine, "decode": profile.decode.gpus_per_engine},
        "max_kv_tokens": profile.decode.table.max_kv_tokens,
        "prefill": {
            "isl": prefill.isl_tokens.tolist(),
            "ttft_ms": (prefill.ttft_s * 1e3).tolist(),
            "throughput": prefill.throughput_per_gpu.tolist(),
            "spread": prefill_spread,
        },
        "decode": {
            "kv_usage": decode.kv_usage.tolist(),
            "context": decode.context_tokens.tolist(),
            "itl_ms": (decode.itl_s * 1e3).tolist(),
            "throughput": decode.throughput_per_gpu.tolist(),
            "spread": decode_spread,
        },
        "notes": [*profile.notes, *(map(str, said) if isinstance(said, list) else [])],
    }


def chosen(found: Recommendation) -> Document:
    """The recommendation."""
    load = found.load
    return {
        "isl": load.isl_tokens,
        "osl": load.osl_tokens,
        "ttft_ms": load.slo.ttft_s * 1e3,
        "itl_ms": load.slo.itl_s * 1e3,
        "prefill": _choice(found.prefill),
        "decode": _choice(found.decode),
    }


def _choice(choice: Choice) -> Document:
    return {
        "tp": choice.tp,
        "latency_ms": choice.latency_s * 1e3,
        "throughput": choice.throughput_per_gpu,
        "met": choice.feasible,
        "extrapolated": choice.extrapolated,
        "scale_up_above": choice.scale_up_above,
        "scale_down_below": choice.scale_down_below,
        "kv_usage": choice.kv_usage,
    }


def recommendation_lines(found: Document) -> list[str]:
    """The recommendation in sentences."""
    return [_line("prefill", "TTFT", found["prefill"], found), _line("decode", "ITL", found["decode"], found)]


def _line(role: str, latency: str, choice: Document, found: Document) -> str:
    target_ms = found[f"{latency.lower()}_ms"]
    verdict = "within" if choice["met"] else "MISSES"
    outside = ", outside what was sampled" if choice["extrapolated"] else ""
    what = "waiting prompts per replica" if role == "prefill" else "KV usage"
    return (
        f"{role}: TP {choice['tp']}, {latency} {choice['latency_ms']:.4g} ms "
        f"({verdict} {target_ms:g} ms{outside}), {choice['throughput']:,.0f} tokens/s/GPU; "
        f"scale up above {choice['scale_up_above']:.2f} and down below {choice['scale_down_below']:.2f} "
        f"{what}"
    )
