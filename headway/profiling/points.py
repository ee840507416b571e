"""Loads that somebody measured → the tables of a profile.

A point is what whole engines did at one load: mean input and output tokens, the requests that decode at once,
TTFT and the time per token. Points at one input length differ in queueing, so that

    prefill   ttft(isl) = the least TTFT at that input length
    decode    context   = isl + osl / 2,   itl = TPOT
              n         = rate · (osl - 1) · TPOT            by Little's law; at least 1
              kv usage  = n · context / max_kv_tokens        at most 1

Outputs of one token say nothing about decode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from headway.profiling import ForeignProfileError
from headway.workload.known_files import KnownFile
from interp import DecodeSamples, PrefillSamples, ProfileError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForeignProfile:
    """The tables of one engine on `tp` GPUs, and what meta.json should say of them."""

    tp: int
    prefill: PrefillSamples
    decode: DecodeSamples
    meta: Mapping[str, Any]


class Point(NamedTuple):
    """Means of one load on one engine."""

    isl_tokens: float
    osl_tokens: float
    batch: float
    ttft_s: float
    itl_s: float

    @classmethod
    def by_rate(cls, isl: float, osl: float, rate_rps: float, ttft_s: float, itl_s: float) -> Self:
        """The point at a rate."""
        return cls(isl, osl, max(1.0, rate_rps * (osl - 1.0) * itl_s), ttft_s, itl_s)


def profile_of(
    points: Sequence[Point], path: Path, kind: KnownFile, *, max_kv_tokens: int | None, gpus: int
) -> ForeignProfile:
    """The profile of engines on `gpus` GPUs through points that were read from `path`.

    Raises ForeignProfileError: what the file was taken for, what it lacks, and what to do instead.
    """
    least: dict[float, float] = {}
    for point in points:
        least[point.isl_tokens] = min(point.ttft_s, least.get(point.isl_tokens, inf))
    decoding = np.array([point for point in points if point.osl_tokens > 1.0])
    taken = f"{path}: taken for {kind.name}"
    if len(least) < 2:
        lengths = ", ".join(f"{isl:g}" for isl in least) or "none"
        raise ForeignProfileError(
            f"{taken}: prompt lengths {lengths}, and a profile needs first-token times at two or more: "
            f"{kind.profile}"
        )
    if not len(decoding):
        raise ForeignProfileError(f"{taken}: no output of more than one token: {kind.profile}")
    if min(least.values()) <= 0.0:
        raise ForeignProfileError(f"{taken}: first-token times must be positive")
    if max_kv_tokens is None:
        raise ForeignProfileError(f"--max-kv-tokens: needed for {kind.name}, which does not say it")
    isl, osl, batch, _, itl_s = decoding.T
    context, isl_tokens = isl + osl / 2.0, np.array(sorted(least))
    try:
        return ForeignProfile(
            tp=gpus,
            prefill=PrefillSamples.timed(isl_tokens, np.array([least[each] for each in isl_tokens]), gpus),
            decode=DecodeSamples(
                max_kv_tokens=max_kv_tokens,
                kv_usage=np.minimum(batch * context / max_kv_tokens, 1.0),
                context_tokens=context,
                itl_s=itl_s,
                throughput_per_gpu=batch / itl_s / gpus,
            ),
            meta={"source": f"{kind.name} {path.name}: TTFTs hold the queueing of its loads", "tp": gpus},
        )
    except ProfileError as error:
        raise ForeignProfileError(f"{taken}: {error}") from error
