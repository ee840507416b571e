"""Remarks on samples that are not monotone: where, how often, and by how much at worst.

A first token is not expected sooner for a longer prompt, nor the next token sooner in a fuller batch. Real
measurements do that; the surfaces keep them as they are, and these notes say so, one line per curve.
"""

import numpy as np

from interp.arrays import FloatArray
from interp.lines import lines_of
from interp.samples import DecodeSamples, PrefillSamples

MS_PER_S = 1000.0


def falls_of_prefill(samples: PrefillSamples) -> list[str]:
    """The note, if any, on TTFT that falls as ISL rises; `samples` in order."""
    return _falls("prefill TTFT", "ISL", samples.isl_tokens, samples.ttft_s)


def falls_of_decode(samples: DecodeSamples) -> list[str]:
    """The notes on ITL that falls as KV usage rises, one per context line; `samples` merged."""
    notes: list[str] = []
    for line in lines_of(samples):
        notes += _falls(f"decode ITL at context {line.context_tokens:g}", "kv", line.kv, line.itl_s)
    return notes


def _falls(what: str, along: str, axis: FloatArray, seconds: FloatArray) -> list[str]:
    steps = np.diff(seconds)
    if not (steps < 0).any():
        return []
    worst, ms = int(np.argmin(steps)), seconds * MS_PER_S
    share = steps[worst] / seconds[worst]
    times = np.count_nonzero(steps < 0)
    where = f"between {along} {axis[worst]:.4g} and {axis[worst + 1]:.4g}"
    by = f"from {ms[worst]:.4g} to {ms[worst + 1]:.4g} ms ({share:.1%})"
    return [f"{what} falls {times} time{'s' if times > 1 else ''}, most {where}: {by}"]
