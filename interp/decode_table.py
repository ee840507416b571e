"""Decode samples → product tables: ITL and throughput over KV usage and 1 / context.

A context line is the samples of one context, linear in KV usage between them. Before its first sample it is
held; past its last it continues with the slope of the fitted roofline (`interp.fit`), which in KV usage is
max_kv_tokens * (b + c / context). Throughput outside a line's samples is that of the engine's arithmetic,
n / ITL, times what the sample at that end measured relative to it; so it goes to 0 with KV usage.

Nodes of the table in KV usage are 0, every sampled value, and 1; nodes in 1 / context are 0 (an endless
context), every context line, and 1 (one token). Between nodes a value is linear in both, as the roofline
a + b * K + c * n  is at a fixed number of tokens K in the cache, where n = K / context. Above the longest
context ITL is held, and throughput falls as 1 / context. Below the shortest ITL grows by the batch term,
c * K * (1 - 1 / context_min) at one token, and throughput as n / ITL.

The sampled domain is the region between the lines' first and last samples, both edges linear in context from
line to line; for a sweep that was limited by batch size its far edge is exactly that constant batch. Inside
it every answer must lie between the smallest and the largest sample. A blend of two lines uses, near the
edge, nodes where one of them has already run out of samples and is continued, so those nodes are bounded: in
each cell of the table that touches the domain, the part of the domain in it is enclosed in a box of KV usage
by context. The surface is bilinear over the box (in 1 / context), so its extremes are the box's corners, and
at a corner

    w * value + (1 - w) * other  <=  highest     gives     value  <=  other + (highest - other) / w

with w the largest weight that the continued line has in the box, and likewise from below.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from interp.arrays import BoolArray, FloatArray, ProfileError, ascending_union
from interp.fit import DecodeModel, fit_decode
from interp.samples import DecodeSamples


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """The samples of one context, by ascending KV usage: f8[S] each."""

    context_tokens: float
    kv: FloatArray
    itl_s: FloatArray
    throughput_per_gpu: FloatArray

    def itl_along(self, axis: FloatArray, model: DecodeModel, max_kv_tokens: float) -> FloatArray:
        """ITL at each KV usage of `axis`, f8[M], continued by `model` past the last sample."""
        beyond = np.maximum(axis - self.kv[-1], 0.0)
        slope = max_kv_tokens * (model.per_kv_token_s + model.per_sequence_s / self.context_tokens)
        return np.asarray(np.interp(axis, self.kv, self.itl_s) + slope * beyond)

    def throughput_along(self, axis: FloatArray, itl_s: FloatArray, per_kv: float) -> FloatArray:
        """Throughput at each KV usage of `axis`, f8[M], given the ITL there.

        `per_kv` is batch size per GPU at KV usage 1, what the arithmetic says where an edge sample is empty
        (kv 0).
        """
        first, last = self._measured_per_kv(0, per_kv), self._measured_per_kv(-1, per_kv)
        before, after = axis < self.kv[0], axis > self.kv[-1]
        between = np.interp(axis, self.kv, self.throughput_per_gpu)
        outside = axis / itl_s * np.where(before, first, last)
        return np.where(before | after, outside, between)

    def _measured_per_kv(self, edge: int, otherwise: float) -> float:
        kv = self.kv[edge]
        return float(self.throughput_per_gpu[edge] * self.itl_s[edge] / kv) if kv > 0 else otherwise


def lines_of(samples: DecodeSamples) -> list[Line]:
    """The context lines of merged `samples`, by ascending context."""
    contexts, starts = np.unique(samples.context_tokens, return_index=True)
    columns = (samples.kv_usage, samples.itl_s, samples.throughput_per_gpu)
    parts = (np.split(values, starts[1:]) for values in columns)
    return [
        Line(context_tokens=float(context), kv=kv, itl_s=itl, throughput_per_gpu=throughput)
        for context, kv, itl, throughput in zip(contexts, *parts, strict=True)
    ]


TOLERANCE = 1e-11
"""KV usage by which a point may miss the domain without lying outside: samples are rounded to 1e-12."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledDomain:
    """First and last sampled KV usage of each context line, by ascending context: f8[L] each."""

    context_tokens: FloatArray
    first_kv: FloatArray
    last_kv: FloatArray

    @classmethod
    def of(cls, lines: list[Line]) -> Self:
        """The domain of `lines`, given by ascending context."""
        return cls(
            context_tokens=np.array([line.context_tokens for line in lines]),
            first_kv=np.array([line.kv[0] for line in lines]),
            last_kv=np.array([line.kv[-1] for line in lines]),
        )

    def contains(self, kv: FloatArray, context: FloatArray) -> BoolArray:
        """True for each point that lies inside; NaN does not."""
        low = np.interp(context, self.context_tokens, self.first_kv) - TOLERANCE
        high = np.interp(context, self.context_tokens, self.last_kv) + TOLERANCE
        covered = (context >= self.context_tokens[0]) & (context <= self.context_tokens[-1])
        inside: BoolArray = covered & (kv >= low) & (kv <= high)
        return inside

    def far_edge(self, context: FloatArray) -> FloatArray:
        """The last sampled KV usage at each context; below the shortest line at that line's batch size."""
        shortest = np.minimum(context / self.context_tokens[0], 1.0)
        return np.asarray(np.interp(context, self.context_tokens, self.last_kv) * shortest)


def bounded(
    values: FloatArray, axis: FloatArray, domain: SampledDomain, span: tuple[float, float]
) -> FloatArray:
    """`values[L, M]` with the nodes past each line's samples limited so that the domain stays within `span`.

    `span` is the smallest and the largest sample. A line that rises stays one that rises.
    """
    sampled = (axis >= domain.first_kv[:, None]) & (axis <= domain.last_kv[:, None])
    lower, upper = np.full_like(values, -np.inf), np.full_like(values, np.inf)
    for shorter in range(len(values) - 1):
        of_shorter, of_longer = _weights(axis, domain, shorter)
        for row, other, weight in ((shorter, shorter + 1, of_shorter), (shorter + 1, shorter, of_longer)):
            for side in (slice(None, -1), slice(1, None)):
                anchor = np.where(sampled[other, side], values[other, side], np.nan)
                least, most = _limits(anchor, weight, span)
                lower[row, side] = np.maximum(lower[row, side], least)
                upper[row, side] = np.minimum(upper[row, side], most)
    upper = np.minimum.accumulate(upper[:, ::-1], axis=1)[:, ::-1]
    return np.where(sampled, values, np.clip(values, lower, upper))


def _weights(axis: FloatArray, domain: SampledDomain, shorter: int) -> tuple[FloatArray, FloatArray]:
    """The largest weights of two neighbouring lines in the part of the domain in each of the M - 1 cells.

    Both are 0 where a cell does not touch the domain.
    """
    pair = slice(shorter, shorter + 2)
    near, far = domain.first_kv[pair], domain.last_kv[pair]
    low_near, high_near = _where_below(near, axis[1:])
    low_far, high_far = _where_below(-far, -axis[:-1])
    low, high = np.maximum(low_near, low_far), np.minimum(high_near, high_far)
    start, end = domain.context_tokens[pair]
    at_low, at_high = (_inverse_weight(start, end, np.clip(part, 0.0, 1.0)) for part in (low, high))
    return np.where(low < high, at_low, 0.0), np.where(low < high, 1.0 - at_high, 0.0)


def _where_below(ends: FloatArray, levels: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The part of [0, 1] over which a line from ends[0] to ends[1] lies below each level; empty as (1, 0)."""
    start, rise = ends[0], ends[1] - ends[0]
    whole = start < levels
    if rise == 0:
        return np.where(whole, 0.0, 1.0), np.where(whole, 1.0, 0.0)
    with np.errstate(over="ignore"):
        crossing = np.clip((levels - start) / rise, 0.0, 1.0)
    return (np.zeros_like(crossing), crossing) if rise > 0 else (crossing, np.ones_like(crossing))


def _inverse_weight(start: float, end: float, part: FloatArray) -> FloatArray:
    """Weight of the line at `start` when blending in 1 / context, `part` of the way (in context) to `end`."""
    context = start + (end - start) * part
    return np.asarray(start * (end - context) / (context * (end - start)))


def _limits(
    anchor: FloatArray, weight: FloatArray, span: tuple[float, float]
) -> tuple[FloatArray, FloatArray]:
    """Bounds of a node against the other line's `anchor`, the span itself where that is NaN (continued too).

    The bounds are never narrower than the span, whatever rounding does.
    """
    lowest, highest = span
    with np.errstate(divide="ignore", invalid="ignore"):
        least = np.fmin(anchor - (anchor - lowest) / weight, lowest)
        most = np.fmax(anchor + (highest - anchor) / weight, highest)
    idle = weight <= 0
    return np.where(idle, -np.inf, least), np.where(idle, np.inf, most)


MOST_NODES = 2_000_000
"""Table size that is refused: thousands of samples without two on one line, some 100 MB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeTable:
    """ITL and throughput as arrays, for compiled code: bilinear between nodes, clamped at the edges.

    `kv` f8[M] and `inv_context` f8[L] (1 / tokens) ascend; `itl_s` in seconds and `throughput_per_gpu` in
    output tokens per second per GPU are f8[L, M].
    """

    kv: FloatArray
    inv_context: FloatArray
    itl_s: FloatArray
    throughput_per_gpu: FloatArray
    max_kv_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodeBounds:
    """Bounds of what a row of a table can still offer, f8[L, M] each; they end the search for the best point.

    `least_itl_after_s`: the least ITL from a node on; `most_throughput_before`: the highest up to a node.
    """

    least_itl_after_s: FloatArray
    most_throughput_before: FloatArray

    @classmethod
    def of(cls, table: DecodeTable) -> Self:
        """The bounds of `table`."""
        backwards = np.minimum.accumulate(table.itl_s[:, ::-1], axis=1)
        return cls(
            least_itl_after_s=np.ascontiguousarray(backwards[:, ::-1]),
            most_throughput_before=np.maximum.accumulate(table.throughput_per_gpu, axis=1),
        )


def build_table(samples: DecodeSamples, domain: SampledDomain, gpus_per_engine: int) -> DecodeTable:
    """The product table of merged `samples`. Raises ProfileError for one of more than `MOST_NODES`."""
    axis = ascending_union([0.0], samples.kv_usage, [1.0])
    _refuse_vast(len(domain.context_tokens), len(axis))
    model = fit_decode(samples)
    itl, throughput = _continued_lines(samples, domain, axis, gpus_per_engine, model)
    contexts = domain.context_tokens
    if contexts[0] > 1:
        itl, throughput = _with_one_token_line(
            itl, throughput, axis * samples.max_kv_tokens, contexts[0], model
        )
        contexts = np.concatenate([[1.0], contexts])
    # In an endless context any KV usage holds no whole request: no throughput, the ITL of the longest line.
    endless = np.zeros((1, len(axis)))
    return DecodeTable(
        kv=axis,
        inv_context=np.concatenate([[0.0], 1.0 / contexts[::-1]]),
        itl_s=np.vstack([itl[-1:], itl[::-1]]),
        throughput_per_gpu=np.vstack([endless, throughput[::-1]]),
        max_kv_tokens=samples.max_kv_tokens,
    )


def _refuse_vast(contexts: int, usages: int) -> None:
    if contexts * usages > MOST_NODES:
        raise ProfileError(
            f"decode samples: {contexts} different contexts and {usages} different KV usages make a table of "
            f"more than {MOST_NODES} nodes; sweep a grid"
        )


def _continued_lines(
    samples: DecodeSamples, domain: SampledDomain, axis: FloatArray, gpus: int, model: DecodeModel
) -> tuple[FloatArray, FloatArray]:
    """ITL and throughput of each line over `axis`, by ascending context: f8[lines, M] each."""
    lines, capacity = lines_of(samples), samples.max_kv_tokens
    itl = np.vstack([line.itl_along(axis, model, capacity) for line in lines])
    itl = bounded(itl, axis, domain, (samples.itl_s.min(), samples.itl_s.max()))
    throughput = np.vstack(
        [
            line.throughput_along(axis, row, per_kv=capacity / line.context_tokens / gpus)
            for line, row in zip(lines, itl, strict=True)
        ]
    )
    span = (samples.throughput_per_gpu.min(), samples.throughput_per_gpu.max())
    return itl, bounded(throughput, axis, domain, span)


def _with_one_token_line(
    itl: FloatArray, throughput: FloatArray, kv_tokens: FloatArray, shortest: float, model: DecodeModel
) -> tuple[FloatArray, FloatArray]:
    """The lines with one for a context of one token before the `shortest`."""
    itl_there = itl[0] + model.per_sequence_s * kv_tokens * (1.0 - 1.0 / shortest)
    throughput_there = throughput[0] * shortest * itl[0] / itl_there
    return np.vstack([itl_there, itl]), np.vstack([throughput_there, throughput])
