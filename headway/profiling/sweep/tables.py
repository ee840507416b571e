"""Measured points → the two tables of a profile.

prefill    throughput per GPU = isl / ttft / gpus
decode     kv_usage = n · c / capacity,    throughput per GPU = n / itl / gpus
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headway.profiling.errors import IncompleteError
from headway.profiling.sweep.points import Phase, SweepPoint
from headway.profiling.sweep.store import Measured
from interp import DecodeSamples, PrefillSamples

LEAST_POINTS = {Phase.PREFILL: 2, Phase.DECODE: 1}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweptTables:
    """The tables, the relative spread of each of their samples, and remarks on what was measured."""

    prefill: PrefillSamples
    decode: DecodeSamples
    prefill_spread: tuple[float, ...]
    decode_spread: tuple[float, ...]
    notes: tuple[str, ...]


def swept_tables(measured: Mapping[SweepPoint, Measured], *, gpus: int, max_kv_tokens: int) -> SweptTables:
    """The tables of one engine on `gpus` GPUs. Raises IncompleteError where too little was measured."""
    prefill, decode = _rows(measured, Phase.PREFILL), _rows(measured, Phase.DECODE)
    isl, ttft_s, _ = _columns(prefill)
    context, itl_s, batch = _columns(decode)
    return SweptTables(
        prefill=PrefillSamples(isl_tokens=isl, ttft_s=ttft_s, throughput_per_gpu=isl / ttft_s / gpus),
        decode=DecodeSamples(
            max_kv_tokens=max_kv_tokens,
            kv_usage=batch * context / max_kv_tokens,
            context_tokens=context,
            itl_s=itl_s,
            throughput_per_gpu=batch / itl_s / gpus,
        ),
        prefill_spread=tuple(_spreads(prefill)),
        decode_spread=tuple(_spreads(decode)),
        notes=tuple(_notes(measured)),
    )


Rows = list[tuple[SweepPoint, Measured]]


def _rows(measured: Mapping[SweepPoint, Measured], phase: Phase) -> Rows:
    rows = [
        (point, found) for point, found in sorted(measured.items()) if point.phase is phase and found.runs_s
    ]
    if len(rows) < LEAST_POINTS[phase]:
        reasons = sorted({found.unmeasurable for found in measured.values() if found.unmeasurable})
        because = f" ({reasons[0]})" if reasons else "; start again to go on from here"
        raise IncompleteError(
            f"{len(rows)} {phase} points measured, at least {LEAST_POINTS[phase]} make a profile{because}"
        )
    return rows


def _columns(rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, seconds and batch of each row: f8[N]."""
    seconds = [found.summary.value_s for _, found in rows if found.summary]
    return (
        np.array([point.tokens for point, _ in rows], np.float64),
        np.array(seconds, np.float64),
        np.array([point.batch for point, _ in rows], np.float64),
    )


def _spreads(rows: Rows) -> list[float]:
    return [found.summary.spread for _, found in rows if found.summary]


def _notes(measured: Mapping[SweepPoint, Measured]) -> list[str]:
    remarks = ((point, _remark(found)) for point, found in sorted(measured.items()))
    return [f"{point}: {remark}" for point, remark in remarks if remark]


def _remark(found: Measured) -> str:
    summary = found.summary
    if summary is None:
        return f"not measured, {found.unmeasurable}"
    parts = (
        [f"{summary.outliers} of {len(found.runs_s)} runs left out as outliers"] if summary.outliers else []
    )
    if not summary.steady:
        parts.append(f"{summary.runs} runs spread by {summary.spread:.0%}")
    return ", ".join(parts)
