"""Profiles as plain data for tables and pages, latencies in milliseconds as profile files have them."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from headway.profiling.comparison import Ratios, Recommendation, TpChoice
from headway_cli.terminal import print_facts, print_notes
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


def _choice(choice: TpChoice) -> Document:
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


def print_profile(entry: Document, out: Console) -> None:
    """What one profile holds."""
    prefill, decode = entry["prefill"], entry["decode"]
    contexts = sorted(set(decode["context"]))
    facts = {
        "Profile": f"{entry['name']}, {entry['source']}",
        "GPUs": f"prefill {entry['gpus']['prefill']}, decode {entry['gpus']['decode']} per engine",
        "Prefill": f"{len(prefill['isl'])} samples, ISL {_range(prefill['isl'])} tokens, "
        f"TTFT {_range(prefill['ttft_ms'])} ms",
        "Decode": f"{len(decode['itl_ms'])} samples on {len(contexts)} contexts of {_range(contexts)} "
        f"tokens, KV usage {_range(decode['kv_usage'])}, ITL {_range(decode['itl_ms'])} ms",
        "KV cache": f"{entry['max_kv_tokens']:,.0f} tokens",
    }
    print_facts(facts, out)
    print_notes(entry["notes"], out, rest="--plot")


def print_ratios(title: str, ratios: Mapping[str, Ratios], out: Console) -> None:
    """The table of a comparison."""
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for column in ("", "median", "least", "most", "samples", "outside"):
        table.add_column(column, justify="left" if not column else "right")
    for name, one in ratios.items():
        figures = [_ratio(value) for value in (one.median, one.least, one.most)]
        table.add_row(name, *figures, str(one.points), str(one.outside))
    out.print(table)


def _range(values: list[float]) -> str:
    return f"{min(values):,.4g} to {max(values):,.4g}"


def _ratio(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"
