"""A profile: the two surfaces of one engine configuration, and what is known about it.

GPUs per engine are not in the tables but follow from them: an engine yields isl / ttft input tokens per
second in prefill and n / itl output tokens per second in decode; the tables say how much of that falls on one
GPU; the ratio, at the median sample, is the count. `meta` overrides it where it says `gpus_per_engine` or
`tp`.

`notes` say what looks odd: repeats, GPU counts that do not fit, and curves that are not monotone. A first
token is not expected sooner for a longer prompt, nor the next token sooner in a fuller batch. Real
measurements do that; the surfaces keep them as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from interp.arrays import FloatArray, ProfileError, RealOrArray, query
from interp.decode_table import DecodeBounds, lines_of
from interp.samples import DecodeSamples, PrefillSamples
from interp.surfaces import DecodeSurface, PrefillSurface

MS_PER_S = 1000.0

MISFIT = 0.25
"""Relative distance of the tables from a whole number of GPUs above which a note says so."""

MOST = 1e9
"""No count in `meta` is larger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """The shares of requests, in [0, 1], outside the sampled input lengths and the sampled contexts."""

    requests: int
    isl_outside: float
    context_outside: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """The surfaces of one engine. `notes` are one-line remarks on the tables, for people.

    `doubts` are those of the notes that may mean that a table is not what it says.
    """

    prefill: PrefillSurface
    decode: DecodeSurface
    meta: Mapping[str, Any]
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    @property
    def gpus_per_engine(self) -> int:
        """GPUs of one engine; the larger count where the prefill and the decode engine differ."""
        return max(self.prefill.gpus_per_engine, self.decode.gpus_per_engine)

    def coverage(self, isl_tokens: RealOrArray, osl_tokens: RealOrArray) -> Coverage:
        """Shares of a load outside the samples, given each request's input and output tokens.

        A request's mean context is isl + osl / 2. NaN counts as outside. Without requests the shares are 0.
        """
        asked = query(isl=isl_tokens, osl=osl_tokens)
        isl, osl = asked.flat
        if len(isl) == 0:
            return Coverage(requests=0, isl_outside=0.0, context_outside=0.0)
        known, contexts = self.prefill.table.isl_tokens, self.decode.domain.context_tokens
        return Coverage(
            requests=len(isl),
            isl_outside=_share_outside(isl, known[0], known[-1]),
            context_outside=_share_outside(isl + osl / 2, contexts[0], contexts[-1]),
        )


def build_profile(
    prefill: PrefillSamples, decode: DecodeSamples, meta: Mapping[str, Any] | None = None
) -> Profile:
    """The profile through samples; `meta` may carry `gpus_per_engine` or `tp`, and `max_batch_size`.

    Raises ProfileError naming a `meta` key that is not a number from 1 to 1e9.
    """
    meta = dict(meta or {})
    prefill, prefill_repeats = prefill.merged()
    decode, decode_repeats = decode.merged()
    gpus, gpu_notes = _gpus_per_engine(prefill, decode, meta)
    max_batch = _count(meta, "max_batch_size")
    notes = (
        *prefill_repeats,
        *decode_repeats,
        *gpu_notes,
        *_falls("prefill TTFT", "ISL", prefill.isl_tokens, prefill.ttft_s),
        *(
            note
            for line in lines_of(decode)
            for note in _falls(f"decode ITL at context {line.context_tokens:g}", "kv", line.kv, line.itl_s)
        ),
    )
    return Profile(
        prefill=PrefillSurface.through(prefill, gpus["prefill"], float(decode.itl_s.min())),
        decode=DecodeSurface.through(decode, gpus["decode"], np.inf if max_batch is None else max_batch),
        meta=meta,
        notes=notes,
        doubts=tuple(gpu_notes),
    )


def _share_outside(values: FloatArray, low: float, high: float) -> float:
    return float(1.0 - np.mean((values >= low) & (values <= high)))


def _gpus_per_engine(
    prefill: PrefillSamples, decode: DecodeSamples, meta: Mapping[str, Any]
) -> tuple[dict[str, int], list[str]]:
    """GPUs per role, from `meta` or from the tables, and what does not fit together."""
    ratios = {
        "prefill": float(np.median(prefill.isl_tokens / prefill.ttft_s / prefill.throughput_per_gpu)),
        "decode": float(np.median(decode.batch_size / decode.itl_s / decode.throughput_per_gpu)),
    }
    stated = _stated_gpus(meta)
    gpus = {role: stated or max(1, round(ratio)) for role, ratio in ratios.items()}
    notes = [
        f"{role} tables look like {ratio:.3g} GPUs per engine, taken as {gpus[role]}"
        for role, ratio in ratios.items()
        if abs(ratio - gpus[role]) > MISFIT * gpus[role]
    ]
    if gpus["prefill"] != gpus["decode"]:
        notes.append(f"prefill has {gpus['prefill']} GPUs per engine, decode has {gpus['decode']}")
    return gpus, notes


def _stated_gpus(meta: Mapping[str, Any]) -> int | None:
    for key in ("gpus_per_engine", "tp"):
        count = _count(meta, key)
        if count is not None:
            if count != int(count):
                raise ProfileError(f"meta.json: {key}: must be a whole number, is {meta[key]!r}")
            return int(count)
    return None


def _count(meta: Mapping[str, Any], key: str) -> float | None:
    value = meta.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MOST:
        raise ProfileError(f"meta.json: {key}: must be a number from 1 to {MOST:g}, is {value!r:.80}")
    return float(value)


def _falls(what: str, along: str, axis: FloatArray, seconds: FloatArray) -> list[str]:
    steps = np.diff(seconds)
    if not (steps < 0).any():
        return []
    worst, ms = int(np.argmin(steps)), seconds * MS_PER_S
    share = steps[worst] / seconds[worst]
    times = np.count_nonzero(steps < 0)
    where = f"between {along} {axis[worst]:.4g} and {axis[worst + 1]:.4g}"
    by = f"from {ms[worst]:.4g} to {ms[worst + 1]:.4g} ms ({100.0 * share:.1f} %)"
    return [f"{what} falls {times} time{'s' if times > 1 else ''}, most {where}: {by}"]


def scaled(profile: Profile, speed: float, decode_speed: float | None = None) -> Profile:
    """`profile` at `speed` times its pace, with a note that says so; `profile` itself at speed 1.

    `decode_speed` is that of decoding where it is another than that of prefill.

    Every time is divided by the speed and every throughput multiplied by it; lengths, batches, KV capacity
    and GPUs stay. All rules of the surfaces (blends, bounds, continuations, work curves) are linear in time,
    so scaling the tables gives the surfaces that the scaled samples would give. Raises ProfileError for a
    speed that is not positive and finite.
    """
    decode_speed = speed if decode_speed is None else decode_speed
    for each in (speed, decode_speed):
        if not (isfinite(each) and each > 0):
            raise ProfileError(f"speed: must be positive and finite, is {each:g}")
    if speed == decode_speed == 1:
        return profile
    pace = f"{speed:g}" if speed == decode_speed else f"{speed:g} (prefill) and {decode_speed:g} (decode)"
    return replace(
        profile,
        prefill=_scaled_prefill(profile.prefill, speed),
        decode=_scaled_decode(profile.decode, decode_speed),
        notes=(*profile.notes, f"all times scaled: an engine {pace} times as fast as the one profiled"),
    )


def _scaled_prefill(surface: PrefillSurface, speed: float) -> PrefillSurface:
    samples, table = surface.samples, surface.table
    return replace(
        surface,
        samples=replace(
            samples, ttft_s=samples.ttft_s / speed, throughput_per_gpu=samples.throughput_per_gpu * speed
        ),
        table=replace(
            table,
            ttft_s=table.ttft_s / speed,
            linear_s_per_token=table.linear_s_per_token / speed,
            quadratic_s_per_token2=table.quadratic_s_per_token2 / speed,
        ),
    )


def _scaled_decode(surface: DecodeSurface, speed: float) -> DecodeSurface:
    samples, table = surface.samples, surface.table
    table = replace(table, itl_s=table.itl_s / speed, throughput_per_gpu=table.throughput_per_gpu * speed)
    return replace(
        surface,
        samples=replace(
            samples, itl_s=samples.itl_s / speed, throughput_per_gpu=samples.throughput_per_gpu * speed
        ),
        table=table,
        bounds=DecodeBounds.of(table),
    )
