"""The compiled inner loops: look-ups in product tables, and the best point of a decode curve.

Tables are given as plain arrays (see `DecodeTable`, `PrefillTable`). `ttft_at` and `bilinear` are compiled
functions of scalars that other compiled code may call; the `*_many` functions loop over flat arrays. NaN
arguments give NaN. Without fast-math a look-up at a point that `best_many` returned gives exactly its ITL.

Best point. At a fixed context the blended ITL and throughput are piecewise linear in KV usage with the same
nodes. The points whose ITL meets a target are then a union of intervals, and a linear function over an
interval is largest at one of its ends; an end is a node, the end of the domain, or the point where a
segment's ITL crosses the target. Looking at those from the far end, and keeping the last seen of the highest,
is exact also where ITL is not monotone. Two bounds shorten the walk at both ends (`DecodeBounds`).
"""

import numpy as np

from interp.arrays import BoolArray, FloatArray
from interp.jit import compiled, compiled_in_place

Tables = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""KV axis f8[M], 1 / context axis f8[L], ITL f8[L, M], throughput f8[L, M]."""

Bounds = tuple[FloatArray, FloatArray]
"""Per row, the least ITL from each node on, and the highest throughput up to each node: f8[L, M] each."""

Point = tuple[float, float, float, bool]
"""KV usage, ITL in seconds, throughput per GPU, and whether the ITL meets the target."""

ROUNDING = 1.0 + 1e-12
"""Slack on a bound made of blends, which are rounded."""


@compiled_in_place
def ttft_at(isl: float, isl_axis: FloatArray, ttft: FloatArray, linear: float, quadratic: float) -> float:
    """TTFT in seconds at `isl` tokens: held below the axis, linear between nodes, the fitted growth above."""
    last = isl_axis[-1]
    if isl > last:
        return float(ttft[-1] + (isl - last) * (linear + quadratic * (isl + last)))
    cell, fraction = locate(isl_axis, isl)
    return blend(ttft[cell], ttft[cell + 1], fraction)


@compiled_in_place
def bilinear(
    kv: float, inv_context: float, kv_axis: FloatArray, inv_axis: FloatArray, table: FloatArray
) -> float:
    """`table[L, M]` at (`inv_context`, `kv`): linear in both, clamped at the edges of the axes."""
    row, down = locate(inv_axis, inv_context)
    column, along = locate(kv_axis, kv)
    left = blend(table[row, column], table[row + 1, column], down)
    right = blend(table[row, column + 1], table[row + 1, column + 1], down)
    return blend(left, right, along)


@compiled_in_place
def locate(axis: FloatArray, value: float) -> tuple[int, float]:
    """The cell of ascending `axis` (two nodes or more) that holds `value`, and how far along, in [0, 1]."""
    low, high = 0, len(axis) - 1
    while high - low > 1:
        # Both are set each time, so that no processor has to guess which.
        middle = (low + high) >> 1
        reached = axis[middle] <= value
        low, high = middle if reached else low, high if reached else middle
    return low, along_cell(axis, low, value)


@compiled_in_place
def along_cell(axis: FloatArray, cell: int, value: float) -> float:
    """The part of its cell that lies below `value`, clamped to [0, 1]; NaN stays NaN."""
    fraction = (value - axis[cell]) / (axis[cell + 1] - axis[cell])
    if fraction < 0.0:
        return 0.0
    if fraction > 1.0:
        return 1.0
    return float(fraction)


@compiled_in_place
def blend(start: float, end: float, fraction: float) -> float:
    """`start` and `end` mixed, exact at both."""
    # start + 1.0 * (end - start) may differ from `end` by rounding; nodes must give their own values.
    return end if fraction == 1.0 else start + fraction * (end - start)


@compiled
def ttft_many(
    isl: FloatArray, isl_axis: FloatArray, ttft: FloatArray, linear: float, quadratic: float
) -> FloatArray:
    """`ttft_at` for each of `isl`, f8[Q]."""
    out = np.empty(len(isl))
    for i in range(len(isl)):
        out[i] = ttft_at(isl[i], isl_axis, ttft, linear, quadratic)
    return out


@compiled
def bilinear_many(
    kv: FloatArray, inv_context: FloatArray, kv_axis: FloatArray, inv_axis: FloatArray, table: FloatArray
) -> FloatArray:
    """`bilinear` for each pair of `kv` and `inv_context`, f8[Q]."""
    out = np.empty(len(kv))
    for i in range(len(kv)):
        out[i] = bilinear(kv[i], inv_context[i], kv_axis, inv_axis, table)
    return out


@compiled
def best_at(
    target: float, inv_context: float, reach: tuple[float, float], tables: Tables, bounds: Bounds
) -> Point:
    """The best point among the KV usages from reach[0] to reach[1] at one context."""
    kv_axis, inv_axis, itl, throughput = tables
    row, down = locate(inv_axis, inv_context)
    first, last = locate(kv_axis, reach[0])[0], locate(kv_axis, reach[1])[0]
    best = (reach[1], np.inf, 0.0, False)
    last = min(last, last_within(bounds[0], row, down, target))
    right = node(itl, throughput, row, last + 1, down)
    for cell in range(last, first - 1, -1):
        most = blend(bounds[1][row, cell + 1], bounds[1][row + 1, cell + 1], down)
        if best[3] and best[2] > most * ROUNDING:
            break
        left = node(itl, throughput, row, cell, down)
        start, stop = ends_in_cell(kv_axis, cell, reach, left, right)
        best = better(best, stop, target)
        if (start[1] <= target) != (stop[1] <= target):
            kv, part = crossing(kv_axis, cell, (left[0], right[0]), (start[0], stop[0]), target)
            best = better(best, mixed(left, right, kv, part), target)
        best = better(best, start, target)
        right = left
    return best if best[3] else least_at(row, down, reach, tables)


@compiled
def least_at(row: int, down: float, reach: tuple[float, float], tables: Tables) -> Point:
    """The point of least ITL, marked as one that does not meet the target."""
    kv_axis, _, itl, throughput = tables
    first, last = locate(kv_axis, reach[0])[0], locate(kv_axis, reach[1])[0]
    start, stop = end_point(reach[0], row, down, tables), end_point(reach[1], row, down, tables)
    least = (start[0], start[1], start[2], False)
    for column in range(first + 1, last + 1):
        itl_here = blend(itl[row, column], itl[row + 1, column], down)
        if itl_here <= least[1]:
            rate = blend(throughput[row, column], throughput[row + 1, column], down)
            least = nearer(least, (kv_axis[column], itl_here, rate))
    return nearer(least, stop)


@compiled
def end_point(kv: float, row: int, down: float, tables: Tables) -> tuple[float, float, float]:
    """The point at any KV usage between two context rows."""
    kv_axis, _, itl, throughput = tables
    cell, part = locate(kv_axis, kv)
    left = node(itl, throughput, row, cell, down)
    right = node(itl, throughput, row, cell + 1, down)
    return mixed(left, right, kv, part)


@compiled
def last_within(least_itl_after: FloatArray, row: int, down: float, target: float) -> int:
    """The last cell that may hold an ITL of at most `target`, given each row's least ITL from a node on.

    That blend never exceeds a blended ITL further along, and it never falls along the axis, so it can be
    bisected.
    """
    low, high = 0, least_itl_after.shape[1] - 1
    while high - low > 1:
        middle = (low + high) // 2
        if blend(least_itl_after[row, middle], least_itl_after[row + 1, middle], down) <= target * ROUNDING:
            low = middle
        else:
            high = middle
    return low


@compiled
def ends_in_cell(
    kv_axis: FloatArray,
    cell: int,
    reach: tuple[float, float],
    left: tuple[float, float],
    right: tuple[float, float],
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """The first and last points of a cell within `reach`, given its nodes."""
    start, stop = (kv_axis[cell], left[0], left[1]), (kv_axis[cell + 1], right[0], right[1])
    if start[0] < reach[0]:
        start = mixed(left, right, reach[0], along_cell(kv_axis, cell, reach[0]))
    if stop[0] > reach[1]:
        stop = mixed(left, right, reach[1], along_cell(kv_axis, cell, reach[1]))
    return start, stop


@compiled
def node(itl: FloatArray, throughput: FloatArray, row: int, column: int, down: float) -> tuple[float, float]:
    """ITL and throughput at a node of the KV axis, mixed between two context rows."""
    return (
        blend(itl[row, column], itl[row + 1, column], down),
        blend(throughput[row, column], throughput[row + 1, column], down),
    )


@compiled
def mixed(
    left: tuple[float, float], right: tuple[float, float], kv: float, part: float
) -> tuple[float, float, float]:
    """The point at `kv`, which lies `part` of the way from node `left` to node `right`."""
    return kv, blend(left[0], right[0], part), blend(left[1], right[1], part)


@compiled
def crossing(
    kv_axis: FloatArray, cell: int, ends: tuple[float, float], span: tuple[float, float], target: float
) -> tuple[float, float]:
    """Where in `span` of a cell, whose ITL goes from ends[0] to ends[1], it crosses `target`.

    As a KV usage and as the part of the cell, rounded to the side that meets the target.
    """
    start, stop = span
    rising = ends[0] < ends[1]
    width = kv_axis[cell + 1] - kv_axis[cell]
    kv = kv_axis[cell] + width * ((target - ends[0]) / (ends[1] - ends[0]))
    kv = min(max(kv, start), stop)
    # Rounding may put the crossing a bit past the target: step back, doubling, until the ITL meets it.
    meets, step = (start if rising else stop), 2.0**-52 * stop
    while kv != meets and blend(ends[0], ends[1], along_cell(kv_axis, cell, kv)) > target:
        kv = max(kv - step, start) if rising else min(kv + step, stop)
        step *= 2.0
    return kv, along_cell(kv_axis, cell, kv)


@compiled
def better(best: Point, point: tuple[float, float, float], target: float) -> Point:
    """The preferred of `best` and a `point` not further along: meets the target, then highest, then first."""
    kv, itl, throughput = point
    preferred = itl <= target and (not best[3] or throughput >= best[2])
    return (kv, itl, throughput, True) if preferred else best


@compiled
def nearer(least: Point, point: tuple[float, float, float]) -> Point:
    """The preferred of `least` and a `point` further along: least ITL, then highest, then first."""
    kv, itl, throughput = point
    preferred = itl < least[1] or (itl == least[1] and throughput > least[2])
    return (kv, itl, throughput, False) if preferred else least


@compiled
def best_many(
    target: FloatArray,
    inv_context: FloatArray,
    reach: tuple[FloatArray, FloatArray],
    tables: Tables,
    bounds: Bounds,
) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
    """`best_at` for each question: KV usage, ITL and throughput f8[Q], feasible bool[Q]; NaN for NaN."""
    count = len(target)
    kv, itl, throughput = np.empty(count), np.empty(count), np.empty(count)
    feasible = np.zeros(count, dtype=np.bool_)
    for i in range(count):
        if np.isnan(target[i]) or np.isnan(inv_context[i]):
            kv[i] = itl[i] = throughput[i] = np.nan
        else:
            point = best_at(target[i], inv_context[i], (reach[0][i], reach[1][i]), tables, bounds)
            kv[i], itl[i], throughput[i], feasible[i] = point
    return kv, itl, throughput, feasible
