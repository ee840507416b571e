"""Figures of a result in words and numbers for people; tables and the page share them."""

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]

LATENCIES = (("ttft_s", "TTFT"), ("itl_s", "ITL"), ("tpot_s", "TPOT"), ("e2e_s", "E2E"))
QUANTILES = ("mean", "p50", "p90", "p95", "p99")


def headline(document: Document) -> str:
    """What was simulated, in one line."""
    trace = document["trace"]
    scale = f" × {trace['rate_scale']:g}" if trace["rate_scale"] != 1 else ""
    return f"{document['policy']} on {trace['name']}{scale}, profile {document['profile']}"


def figures(document: Document) -> dict[str, str]:
    """The headline figures by name, as sentences."""
    slo = document["slo"]
    ended = ", ".join(f"{document[key]:,} {key}" for key in ("completed", "failed", "shed") if document[key])
    return {
        "Requests": f"{document['requests']:,} in {duration(document['simulated_s'])}: {ended}",
        "Attainment": f"{percent(document['attainment'])} within {_promised(document)}, "
        f"aim {percent(slo['attainment'])}, "
        f"attainable {percent(document['attainable'])}",
        "Goodput": f"{document['goodput_rps']:.4g} requests/s",
        "GPU-hours": f"{document['gpu_hours']:.4g}, {ratio(document['fluid_bound_ratio'])} "
        f"the fluid bound of {document['fluid_bound_gpu_hours']:.4g}",
        "Fleet": f"{fleet(document)}; {plural(document['scale_events'], 'scale event')}, "
        f"{plural(document['direction_reversals'], 'reversal')}",
    }


def _promised(document: Document) -> str:
    """What requests were judged by."""
    slo = document["slo"]
    if "classes" in document:
        return "what their classes are promised"
    return f"TTFT {slo['ttft_s'] * 1e3:g} ms and ITL {slo['itl_s'] * 1e3:g} ms"


def fleet(document: Document) -> str:
    """`prefill 2 to 5, decode 4`: the range of desired counts per role."""
    parts = []
    for role, series in document["replicas"].items():
        low, high = min(series["desired"]), max(series["desired"])
        parts.append(f"{role} {low}" if low == high else f"{role} {low} to {high}")
    return ", ".join(parts)


def percent(share: float | None) -> str:
    """A share in percent; enough digits that 99.99 % is not 100 %."""
    return "n/a" if share is None else f"{share * 100:.4g} %"


def ratio(value: float | None) -> str:
    """A multiple."""
    return "n/a" if value is None else f"{value:.2f} ×"


def milliseconds(value_s: float | None) -> str:
    """Seconds in milliseconds, to four digits or whole."""
    if value_s is None:
        return "n/a"
    return f"{value_s * 1e3:,.0f}" if value_s >= 1 else f"{value_s * 1e3:.4g}"


def plural(count: int, thing: str) -> str:
    """`1 reversal`, `2 reversals`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time span as a person says it."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
