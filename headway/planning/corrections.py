"""Correction factors: how much slower (above 1) or faster the fleet is than its profile says.

    prefill_correction = actual_ttft / expected_ttft       expected: prefill surface at the observed ISL
    decode_correction  = actual_itl / expected_itl         expected: decode surface at (kv_usage, context)
        context     = isl + osl / 2                                                tokens
        concurrency = requests / ready decode replicas * request_duration / interval       (Little's law)
        kv_usage    = min(1, concurrency * context / max_kv_tokens)

Source: SLA planner, "Correction Factor Calculation"; Planner Design, "Step 2"; concurrency as in the
published planner's code. The factors are applied raw, without smoothing, as documented.
Where a measurement is missing, the last factor is kept, and `basis` says which one was missing.
"""

from dataclasses import dataclass, field

from headway.planning.load import Lengths, positive
from headway.planning.surfaces import DecodeSurface, PrefillSurface
from headway.planning.types import Observation, Role


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
    duration_s, source = _request_duration(observation, lengths)
    missing = _missing(
        itl=observation.itl_s, isl=lengths.isl_tokens, osl=lengths.osl_tokens, request_duration=duration_s
    )
    if missing:
        return Correction(value=last, basis=f"kept: {missing} not measured")
    ready = observation.pools[Role.DECODE].ready
    if ready <= 0:
        return Correction(value=last, basis="kept: no decode replica is ready")
    concurrency = observation.requests / ready * duration_s / observation.interval_s
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


def _request_duration(observation: Observation, lengths: Lengths) -> tuple[float, str]:
    if positive(observation.request_duration_s):
        return observation.request_duration_s, "measured"
    return observation.ttft_s + observation.itl_s * lengths.osl_tokens, "ttft + itl * osl"


def _missing(**series: float) -> str:
    return ", ".join(name for name, value in series.items() if not positive(value))


def _measured(actual_s: float, expected_s: float, details: dict[str, float | str]) -> Correction:
    return Correction(
        value=actual_s / expected_s,
        basis="measured",
        details={"actual_s": actual_s, "expected_s": expected_s, **details},
    )
