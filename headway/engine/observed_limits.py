"""The limits of engines that others run, as their metrics show them: their KV cache, and their largest batch.

KV cache. Engines say how many tokens it holds. Its size differs a little from start to start, so the median
counts, and what was known or profiled stays while it is within SAME_KV of that.

Largest batch. No engine says it. But an engine with room takes in whoever waits, so where requests wait

    though the KV cache has room                    KV usage < FULL_KV
    and iterations have room for prompts            tokens of an iteration < HALF of a chunk

the batch is full. Then many readings show one size, which none exceeds. It is taken for the limit when there
are LEAST_FULL full readings, and SHARE of them show the largest batch of all RECENT ones. A limit stays known
when the fleet grows and no batch is full any more; an engine that runs more than it ends it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from interp import DecodeSamples, Profile, build_profile

if TYPE_CHECKING:
    # It loads a compiler, which engines do without.
    from headway.engine.observed_metrics import EngineReading

FULL_KV, HALF = 0.9, 0.5
LEAST_WAITING = 2.0
"""Requests that wait where a batch is full; one may have come in mid-iteration."""
LEAST_FULL, SHARE, RECENT = 6, 0.8, 256
SAME_KV = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What is known of an engine's limits; None for what is not.

    `recent` has the size of the batch at each of the last readings, and 1 where it was full, else 0.
    """

    kv_tokens: float | None = None
    batch: int | None = None
    recent: tuple[tuple[int, int], ...] = ()

    def with_readings(
        self, readings: "Iterable[EngineReading]", chunk_tokens: int, profiled_kv_tokens: float
    ) -> "EngineLimits":
        """After more readings; an iteration computes at most `chunk_tokens` prompt tokens, 0: one prompt."""
        seen = list(readings)
        told = [each.load.kv_tokens for each in seen if each.load.kv_tokens > 0]
        kv_tokens, batch = self.kv_tokens, self.batch
        if told and abs(median(told) / (kv_tokens or profiled_kv_tokens) - 1.0) > SAME_KV:
            kv_tokens = median(told)
        # An engine that only computes prompts has no batch that decodes.
        shown = [each for each in seen if isfinite(each.load.running) and each.gained.gaps > 0]
        new = [(round(each.load.running), int(_full(each, chunk_tokens))) for each in shown]
        recent = self.recent
        if batch is not None and any(size > batch for size, _ in new):
            batch, recent = None, ()
        recent = (*recent, *new)[-RECENT:]
        largest = max((size for size, _ in recent), default=0)
        full = [size for size, is_full in recent if is_full]
        if len(full) >= LEAST_FULL and full.count(largest) >= SHARE * len(full):
            batch = largest
        return EngineLimits(kv_tokens=kv_tokens, batch=batch, recent=recent)

    @property
    def known(self) -> Mapping[str, float]:
        """What is known of them."""
        both = {"kv_tokens": self.kv_tokens, "batch": self.batch}
        return {name: value for name, value in both.items() if value is not None}


def _full(reading: "EngineReading", chunk_tokens: int) -> bool:
    """True where requests wait at the end of a reading for nothing but a place in the batch."""
    gained, load = reading.gained, reading.load
    if not (load.waiting >= LEAST_WAITING and load.kv_usage < FULL_KV and gained.gap_s > 0):
        return False
    seconds = reading.ended_s - reading.begun_s
    iterations = gained.iterations or seconds * gained.gaps / gained.gap_s
    tokens = gained.asked_tokens - gained.cached_tokens + gained.gaps
    return gained.first_tokens == 0 or tokens < HALF * chunk_tokens * iterations


def with_kv_tokens(profile: Profile, kv_tokens: float | None) -> Profile:
    """The same times by tokens and batch, with a KV cache that holds so many; itself for None."""
    samples = profile.decode.samples
    if kv_tokens is None or kv_tokens == samples.max_kv_tokens:
        return profile
    usage = samples.kv_usage * samples.max_kv_tokens / kv_tokens
    kept = usage <= max(1.0, float(usage.min()))
    return build_profile(
        profile.prefill.samples,
        DecodeSamples(
            max_kv_tokens=kv_tokens,
            kv_usage=np.minimum(1.0, usage[kept]),
            context_tokens=samples.context_tokens[kept],
            itl_s=samples.itl_s[kept],
            throughput_per_gpu=samples.throughput_per_gpu[kept],
        ),
        {**profile.meta, "max_batch_size": max(1.0, profile.decode.largest_batch)},
    )
