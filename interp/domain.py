"""Where a decode surface is measured, and how far its continued lines may reach into that region.

The sampled domain is the region between the lines' first and last samples, both edges linear in context from
line to line; for a sweep that was limited by batch size its far edge is exactly that constant batch. Inside
it every answer must lie between the smallest and the largest sample. A blend of two lines uses, near the
edge, nodes where one of them has already run out of samples and is continued, so those nodes are bounded
here: in each cell of the table that touches the domain, the part of the domain in it is enclosed in a box of
KV usage by context. The surface is bilinear over the box (in 1 / context), so its extremes are the box's
corners, and at a corner

    w * value + (1 - w) * other  <=  highest     gives     value  <=  other + (highest - other) / w

with w the largest weight that the continued line has in the box, and likewise from below. Far from the
domain, or where its weight is small, a line is continued as the roofline says.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from interp.arrays import BoolArray, FloatArray
from interp.lines import Line

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
        """Whether each point lies inside; NaN does not."""
        low = np.interp(context, self.context_tokens, self.first_kv) - TOLERANCE
        high = np.interp(context, self.context_tokens, self.last_kv) + TOLERANCE
        covered = (context >= self.context_tokens[0]) & (context <= self.context_tokens[-1])
        inside: BoolArray = covered & (kv >= low) & (kv <= high)
        return inside

    def far_edge(self, context: FloatArray) -> FloatArray:
        """The last sampled KV usage at each context; below the shortest line at that line's batch size."""
        shortest = np.minimum(context / self.context_tokens[0], 1.0)
        return np.asarray(np.interp(context, self.context_tokens, self.last_kv) * shortest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Boxes:
    """The M - 1 cells between two lines: which touch the domain, and each line's largest weight there."""

    touched: BoolArray
    weight_shorter: FloatArray
    weight_longer: FloatArray


def bounded(
    values: FloatArray, axis: FloatArray, domain: SampledDomain, span: tuple[float, float]
) -> FloatArray:
    """`values[L, M]` with the nodes past each line's samples limited so that the domain stays within `span`.

    `span` is the smallest and the largest sample. A line that rises stays one that rises.
    """
    sampled = (axis >= domain.first_kv[:, None]) & (axis <= domain.last_kv[:, None])
    lower, upper = np.full_like(values, -np.inf), np.full_like(values, np.inf)
    for shorter in range(len(values) - 1):
        boxes = _boxes(axis, domain, shorter)
        for row, other, weight in (
            (shorter, shorter + 1, boxes.weight_shorter),
            (shorter + 1, shorter, boxes.weight_longer),
        ):
            for side in (slice(None, -1), slice(1, None)):
                anchor = np.where(sampled[other, side], values[other, side], np.nan)
                least, most = _limits(anchor, np.where(boxes.touched, weight, 0.0), span)
                lower[row, side] = np.maximum(lower[row, side], least)
                upper[row, side] = np.minimum(upper[row, side], most)
    upper = np.minimum.accumulate(upper[:, ::-1], axis=1)[:, ::-1]
    return np.where(sampled, values, np.clip(values, lower, upper))


def _boxes(axis: FloatArray, domain: SampledDomain, shorter: int) -> _Boxes:
    pair = slice(shorter, shorter + 2)
    near, far = domain.first_kv[pair], domain.last_kv[pair]
    low_near, high_near = _where_below(near, axis[1:])
    low_far, high_far = _where_below(-far, -axis[:-1])
    low, high = np.maximum(low_near, low_far), np.minimum(high_near, high_far)
    start, end = domain.context_tokens[pair]
    weight_of_shorter = [_inverse_weight(start, end, np.clip(part, 0.0, 1.0)) for part in (low, high)]
    return _Boxes(
        touched=low < high, weight_shorter=weight_of_shorter[0], weight_longer=1.0 - weight_of_shorter[1]
    )


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
