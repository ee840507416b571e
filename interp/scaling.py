"""The profile of an engine that is `speed` times as fast, in all its parts.

Every time is divided by the speed and every throughput multiplied by it; lengths, batches, KV capacity and
GPUs stay. All rules of the surfaces (blends, bounds, continuations, work curves) are linear in time, so
scaling the tables gives the surfaces that the scaled samples would give.
"""

from dataclasses import replace
from math import isfinite

from interp.decode import DecodeSurface
from interp.decode_table import DecodeBounds
from interp.errors import ProfileError
from interp.prefill import PrefillSurface
from interp.profile import Profile


def scaled(profile: Profile, speed: float) -> Profile:
    """`profile` at `speed` times its pace, with a note that says so; `profile` itself at speed 1.

    Raises ProfileError for a speed that is not positive and finite.
    """
    if not (isfinite(speed) and speed > 0):
        raise ProfileError(f"speed: must be positive and finite, is {speed:g}")
    if speed == 1:
        return profile
    return replace(
        profile,
        prefill=_scaled_prefill(profile.prefill, speed),
        decode=_scaled_decode(profile.decode, speed),
        notes=(*profile.notes, f"all times scaled: an engine {speed:g} times as fast as the one profiled"),
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
