"""A profile corrected and extended where traffic has been: bounded, versioned, never compounding.

Replicas report what a prefill took at its ISL, and the ITL of a batch at its mean context
(`observed_latency`). Each report gives a ratio to the profile that was measured beforehand, at

    KV usage = min(1, batch · context / KV capacity of the profile)

    r = ln(measured / profile), held within ± ln MOST_RATIO
    mean' = mean + max(1 / count, FORGETTING) · (r - mean)           per cell

A cell is half an octave of tokens, and for decode a tenth of the KV cache. From LEAST_SAMPLES on its samples
take the cell's ratio; where it has none, one is added at the mean place of the traffic (for decode on the
nearest sampled context, unless the traffic lies beyond all of them). Everywhere else the profile, and the
largest batch everywhere, is as it was. At most MOST_CELLS are kept; the one fed longest ago goes first.
`version` rises with every change. A report that is not finite and positive is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import exp, floor, isfinite, log
from typing import NamedTuple

import numpy as np

from headway.profiling import Phase
from headway.profiling.observed_latency import LatencyReport, octave
from interp import DecodeSamples, PrefillSamples, Profile, build_profile

MOST_RATIO = 2.0
FORGETTING = 0.02
LEAST_SAMPLES = 20
MOST_CELLS = 256
CELLS_OF_KV = 10
MATERIAL = 0.02
"""Relative change of a cell's ratio that is worth a new profile."""


class RefinementCell(NamedTuple):
    """A part of one phase's samples."""

    phase: Phase
    tokens: int
    kv: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CellMemory:
    """Means of the traffic in a cell: ln of the ratio, ln of tokens, and KV usage."""

    count: int = 0
    log_ratio: float = 0.0
    log_tokens: float = 0.0
    kv_usage: float = 0.0

    def with_seen(self, log_ratio: float, tokens: float, kv_usage: float) -> "CellMemory":
        """With one more report."""
        count = self.count + 1
        weight = max(1.0 / count, FORGETTING)
        return CellMemory(
            count=count,
            log_ratio=self.log_ratio + weight * (log_ratio - self.log_ratio),
            log_tokens=self.log_tokens + weight * (log(tokens) - self.log_tokens),
            kv_usage=self.kv_usage + weight * (kv_usage - self.kv_usage),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Everything that traffic has shown; cells in the order in which they were last fed."""

    version: int = 0
    cells: Mapping[RefinementCell, CellMemory] = field(default_factory=dict)

    @property
    def sure(self) -> Mapping[RefinementCell, CellMemory]:
        """The cells that have seen enough."""
        return {cell: memory for cell, memory in self.cells.items() if memory.count >= LEAST_SAMPLES}


def learn(refinement: Refinement, profile: Profile, reports: Iterable[LatencyReport]) -> Refinement:
    """With more reports; `profile` is the one measured beforehand, not a refined one."""
    cells, bound = dict(refinement.cells), log(MOST_RATIO)
    usable = [
        seen
        for seen in reports
        if all(isfinite(value) and value > 0.0 for value in (seen.tokens, seen.latency_s, seen.batch))
    ]
    for seen in usable:
        if seen.phase is Phase.PREFILL:
            kv_usage, expected_s = 0.0, profile.prefill.ttft_s(seen.tokens)
        else:
            kv_usage = min(1.0, seen.batch * seen.tokens / float(profile.decode.table.max_kv_tokens))
            expected_s = profile.decode.itl_s(kv_usage, seen.tokens)
        cell = _cell(seen.phase, seen.tokens, kv_usage)
        ratio = log(seen.latency_s / expected_s)
        # Taken out and put in again: the order of the dict is the order in which cells were last fed.
        memory = cells.pop(cell, CellMemory())
        cells[cell] = memory.with_seen(min(max(ratio, -bound), bound), seen.tokens, kv_usage)
    for oldest in list(cells)[: max(0, len(cells) - MOST_CELLS)]:
        del cells[oldest]
    return Refinement(version=refinement.version + 1, cells=cells) if usable else refinement


def moved(before: Refinement, after: Refinement) -> bool:
    """True if the profile of `after` differs from that of `before` by more than MATERIAL, or in its cells."""
    then, now, most = before.sure, after.sure, log(1.0 + MATERIAL)
    return then.keys() != now.keys() or any(
        abs(memory.log_ratio - then[cell].log_ratio) > most for cell, memory in now.items()
    )


def refined(profile: Profile, refinement: Refinement) -> Profile:
    """`profile` with what is sure; itself while nothing is. Its `meta` says `refined`: version and cells."""
    sure = refinement.sure
    if not sure:
        return profile
    said = {
        "max_batch_size": max(1.0, profile.decode.largest_batch),
        "refined": {"version": refinement.version, "cells": len(sure)},
    }
    return build_profile(
        _refined_prefill(profile, sure), _refined_decode(profile, sure), {**profile.meta, **said}
    )


def _cell(phase: Phase, tokens: float, kv_usage: float) -> RefinementCell:
    kv = 0 if phase is Phase.PREFILL else min(CELLS_OF_KV - 1, floor(CELLS_OF_KV * kv_usage))
    return RefinementCell(phase, octave(tokens), kv)


def _refined_prefill(profile: Profile, sure: Mapping[RefinementCell, CellMemory]) -> PrefillSamples:
    known, surface = profile.prefill.samples, profile.prefill
    cells = [_cell(Phase.PREFILL, tokens, 0.0) for tokens in known.isl_tokens]
    added = _added(sure, Phase.PREFILL, cells)
    new = np.array([exp(memory.log_tokens) for memory in added])
    ratio = _ratios(sure, cells, added)
    return PrefillSamples(
        isl_tokens=np.append(known.isl_tokens, new),
        ttft_s=np.append(known.ttft_s, surface.ttft_s(new)) * ratio,
        throughput_per_gpu=np.append(known.throughput_per_gpu, surface.throughput_per_gpu(new)) / ratio,
    )


def _refined_decode(profile: Profile, sure: Mapping[RefinementCell, CellMemory]) -> DecodeSamples:
    known, surface = profile.decode.samples, profile.decode
    cells = [
        _cell(Phase.DECODE, tokens, kv)
        for tokens, kv in zip(known.context_tokens, known.kv_usage, strict=True)
    ]
    added = _added(sure, Phase.DECODE, cells)
    contexts = np.array([_line(profile, exp(memory.log_tokens)) for memory in added])
    kv_usage = np.array([memory.kv_usage for memory in added])
    ratio = _ratios(sure, cells, added)
    throughput = surface.throughput_per_gpu(kv_usage, contexts)
    return DecodeSamples(
        max_kv_tokens=known.max_kv_tokens,
        kv_usage=np.append(known.kv_usage, kv_usage),
        context_tokens=np.append(known.context_tokens, contexts),
        itl_s=np.append(known.itl_s, surface.itl_s(kv_usage, contexts)) * ratio,
        throughput_per_gpu=np.append(known.throughput_per_gpu, throughput) / ratio,
    )


def _added(
    sure: Mapping[RefinementCell, CellMemory], phase: Phase, cells: list[RefinementCell]
) -> list[CellMemory]:
    """Cells of the phase in which the profile has no sample."""
    sampled = set(cells)
    return [memory for cell, memory in sure.items() if cell.phase is phase and cell not in sampled]


def _ratios(
    sure: Mapping[RefinementCell, CellMemory], cells: list[RefinementCell], added: list[CellMemory]
) -> np.ndarray:
    memories = [*(sure.get(cell, CellMemory()) for cell in cells), *added]
    return np.exp([memory.log_ratio for memory in memories])


def _line(profile: Profile, context_tokens: float) -> float:
    """The nearest sampled context; beyond them all the context itself."""
    known = profile.decode.domain.context_tokens
    if not known[0] <= context_tokens <= known[-1]:
        return context_tokens
    return float(known[np.argmin(np.abs(np.log(known / context_tokens)))])
