"""The trained latency model at every candidate of a forecast, compiled.

The same figures as `predictors.latency` gives for the features of `forecast.features_of`: its loop over
candidates takes microseconds where a dozen calls of numpy, each of them quick, take hundreds. A curve is a
table of plain figures, two rows for what it adds everywhere and what bounds it (`curve.Span`), and one for
each ramp:

    [w of the constant, w of the prior, low_s, high_s], [base_s, slope, least, most],
    [input, start, width, w], …

A target has two, its centre and its calibrated quantile; one without rows is not asked for. Where trees were
found to help, they correct both, for up to MOST_FOR_TREES candidates: a tree takes as long as all ramps.

What they say stays within limits, ratios to the prior, and has the weight that its evidence has (`evidence`).
"""

from math import exp, isfinite, isnan
from typing import Any, NamedTuple

import numpy as np

from headway.routing.fleet.table import DECODE_ROLE, PREFILL_ROLE, FleetRow, FloatArray, SlotArray
from headway.routing.predict.forecast import ForecastRow, features_of
from interp.jit import compiled, compiled_in_place
from predictors.latency import LatencyModel, TargetModel
from predictors.latency.curve import LONGEST_S, SHORTEST_S, UNBOUNDED, Curve
from predictors.latency.features import FIELDS, INPUTS, LARGEST
from predictors.latency.forest import DEPTH, NODES, Forest

PREFIX_SCORE = FIELDS.index("prefix_score")
"""The one feature that is no input: the last input is what it leaves to compute."""

UNCACHED = len(INPUTS) - 1
assert (*FIELDS[:PREFIX_SCORE], *FIELDS[PREFIX_SCORE + 1 :]) == INPUTS[:UNCACHED]


class TargetCurves(NamedTuple):
    """One target: f8[2 + ramps, 4] each, f8[0, 4] for one that is not asked for; `factor` of the quantile.

    The last three are a `Forest`, of no trees where there is none.
    """

    centre: FloatArray
    quantile: FloatArray
    factor: float
    sources: SlotArray
    thresholds: FloatArray
    leaves: FloatArray


HEADER = 2
MOST_FOR_TREES = 256
NO_CURVE = np.empty((0, 4))
NO_FOREST = Forest(
    source=np.empty((0, NODES), dtype=np.intp), threshold=np.empty((0, NODES)), leaf=np.empty((0, NODES + 1))
)
NOTHING = TargetCurves(NO_CURVE, NO_CURVE, 1.0, NO_FOREST.source, NO_FOREST.threshold, NO_FOREST.leaf)


class ModelCurves(NamedTuple):
    """A model, as tables."""

    ttft: TargetCurves
    tpot: TargetCurves


def curves_of(model: LatencyModel, *, quantile: bool) -> ModelCurves:
    """The model's tables, its quantiles among them if they are what is asked for."""
    return ModelCurves(_target(model.ttft, quantile), _target(model.tpot, quantile))


def _target(model: TargetModel, quantile: bool) -> TargetCurves:
    learned = model.learned
    if learned is None:
        return NOTHING
    upper = _table(learned.quantile) if quantile else NO_CURVE
    forest = learned.forest or NO_FOREST
    # Copies, which may be written to: those of a model that came through Ray may not, and loops would be
    # compiled for them anew, in the middle of the traffic.
    trees = np.array(forest.source), np.array(forest.threshold), np.array(forest.leaf)
    return TargetCurves(_table(learned.centre), upper, learned.factor, *trees)


def _table(curve: Curve) -> FloatArray:
    basis, weights = curve.basis, curve.weights
    # A curve without a prior is bounded by nothing.
    span = curve.span if basis.has_prior else UNBOUNDED
    fixed = weights[: basis.size - len(basis.source)]
    table = np.zeros((HEADER + len(basis.source), 4))
    table[0, : len(fixed)] = fixed
    table[0, 2:] = span.low_s, span.high_s
    table[1] = span.base_s, span.slope, span.least, span.most
    table[HEADER:] = np.column_stack([basis.source, basis.start, basis.width, weights[len(fixed) :]])
    return table


@compiled
def _inputs(
    role: int, table: FloatArray, slots: SlotArray, cached: FloatArray, input_tokens: float
) -> FloatArray:
    """The model's inputs, f8[8, C]: at least 0 and at most LARGEST; NaN stays."""
    out = np.empty((UNCACHED + 1, len(slots)))
    for place in range(len(slots)):
        values = features_of(role, table, slots[place], cached[place], input_tokens)
        for number in range(UNCACHED):
            out[number, place] = values[number + (number >= PREFIX_SCORE)]
        out[UNCACHED, place] = input_tokens * (1.0 - min(max(values[PREFIX_SCORE], 0.0), 1.0))
    for row in out:
        for place in range(len(row)):
            # Not by min and max, which lose NaN.
            value = row[place]
            row[place] = 0.0 if value < 0.0 else LARGEST if value > LARGEST else value
    return out


@compiled
def _curve_s(curve: FloatArray, inputs: FloatArray, prior_s: FloatArray) -> FloatArray:
    """Seconds, f8[C], positive and finite; NaN where an input or the prior is."""
    base, slope, least, most = curve[1]
    within_s = np.minimum(np.maximum(prior_s, curve[0, 2]), curve[0, 3])
    seconds = curve[0, 0] + curve[0, 1] * within_s
    for number in range(HEADER, len(curve)):
        _, start, width, weight = curve[number]
        row = inputs[int(curve[number, 0])]
        for place in range(len(seconds)):
            over = row[place] - start
            over = 0.0 if over < 0.0 else over
            seconds[place] += weight * (width if over > width else over)
    for place in range(len(seconds)):
        alone_s = base + slope * prior_s[place]
        if prior_s[place] != within_s[place]:
            seconds[place] *= alone_s / (base + slope * within_s[place])
        seconds[place] = min(max(seconds[place], least * alone_s), most * alone_s)
    return np.asarray(np.minimum(np.maximum(seconds, SHORTEST_S), LONGEST_S))


@compiled
def _bound(
    columns: SlotArray, least: FloatArray, most: FloatArray, base_s: FloatArray, row_s: FloatArray
) -> None:
    """Keep seconds within least and most of `base_s`; negative columns have no limits."""
    for place in range(len(row_s)):
        column = columns[place]
        if column >= 0 and isfinite(row_s[place]):
            row_s[place] = min(max(row_s[place], least[column] * base_s[place]), most[column] * base_s[place])


@compiled
def _times(sources: SlotArray, thresholds: FloatArray, leaves: FloatArray, inputs: FloatArray) -> FloatArray:
    """What the trees multiply by, f8[C]."""
    total = np.zeros(inputs.shape[1])
    if len(leaves) == 0 or inputs.shape[1] > MOST_FOR_TREES:
        return np.ones(inputs.shape[1])
    for tree in range(len(leaves)):
        source, threshold, leaf = sources[tree], thresholds[tree], leaves[tree]
        for place in range(len(total)):
            node = 0
            # Without a branch: which way it goes cannot be foreseen.
            for _ in range(DEPTH):
                node = 2 * node + 1 + int(inputs[source[node], place] > threshold[node])
            total[place] += leaf[node - NODES]
    return np.exp(total)


@compiled
def _learn(target: tuple[Any, ...], inputs: FloatArray, weight: float, row_s: FloatArray) -> None:
    """Put the target's seconds for the prior's, but where nothing was learned, or curves have no answer."""
    centre, quantile, factor, sources, thresholds, leaves = target
    if len(centre) == 0:
        return
    times = _times(sources, thresholds, leaves, inputs)
    seconds = times * _curve_s(centre, inputs, row_s)
    seconds = np.minimum(np.maximum(seconds, SHORTEST_S), LONGEST_S)
    if len(quantile):
        upper_s = factor * times * _curve_s(quantile, inputs, row_s)
        seconds = np.minimum(np.maximum(upper_s, seconds), LONGEST_S)
    for place in range(len(row_s)):
        if isfinite(row_s[place]) and not isnan(seconds[place]):
            faded = 1.0 if weight == 1.0 else (row_s[place] / seconds[place]) ** (1.0 - weight)
            row_s[place] = faded * seconds[place]


@compiled
def _columns(table: FloatArray, slots: SlotArray, busy: int) -> SlotArray:
    """The column of `limits` of each candidate: its kind if nothing is there, else `busy`."""
    out = np.empty(len(slots), np.int64)
    for place in range(len(slots)):
        slot = slots[place]
        there = table[FleetRow.WAITING, slot] + table[FleetRow.COMING, slot]
        there += table[FleetRow.RUNNING, slot] + table[FleetRow.OTHER_REQUESTS, slot]
        kind = int(table[FleetRow.KIND, slot])
        out[place] = kind if there == 0.0 else busy
    return out


@compiled
def corrected(  # noqa: PLR0917 - one loop over candidates, compiled
    role: int,
    table: FloatArray,
    slots: SlotArray,
    cached: FloatArray,
    input_tokens: float,
    prior: FloatArray,
    further_s: float,
    ttft: tuple[Any, ...],
    tpot: tuple[Any, ...],
    limits: FloatArray,
    weight: float,
) -> FloatArray:
    """`prior` f8[ROWS, C] with `further_s` in TTFT; TTFT and TPOT by the curves, which are plain.

    `limits` f8[4, kinds + 1] as `Evidence.limits`.
    """
    out = prior.copy()
    out[ForecastRow.TTFT_S] += further_s
    inputs = _inputs(role, table, slots, cached, input_tokens)
    busy = limits.shape[1] - 1
    if role != DECODE_ROLE:
        base_s = out[ForecastRow.TTFT_S].copy()
        _learn(ttft, inputs, weight, out[ForecastRow.TTFT_S])
        columns = _columns(table, slots, busy if len(ttft[0]) else -1)
        _bound(columns, limits[0], limits[1], base_s, out[ForecastRow.TTFT_S])
    if role != PREFILL_ROLE:
        _learn(tpot, inputs, weight, out[ForecastRow.TPOT_S])
        columns = _columns(table, slots, busy if len(tpot[0]) else -1)
        _bound(columns, limits[2], limits[3], prior[ForecastRow.TPOT_S], out[ForecastRow.TPOT_S])
        out[ForecastRow.OTHERS_TPOT_S] *= out[ForecastRow.TPOT_S] / prior[ForecastRow.TPOT_S]
    return out


@compiled_in_place
def corrected_at(  # noqa: PLR0917 - plain figures, compiled
    role: int,
    table: FloatArray,
    slot: int,
    cached: float,
    input_tokens: float,
    rows: FloatArray,
    further_s: float,
    ttft: tuple[Any, ...],
    tpot: tuple[Any, ...],
    limits: FloatArray,
    weight: float,
    inputs: FloatArray,
) -> None:
    """The same for one candidate, in place of its `rows` f8[ROWS, 1]; `inputs` f8[8] are written anew."""
    busy, kind = limits.shape[1] - 1, int(table[FleetRow.KIND, slot])
    there = table[FleetRow.WAITING, slot] + table[FleetRow.COMING, slot]
    there += table[FleetRow.RUNNING, slot] + table[FleetRow.OTHER_REQUESTS, slot]
    rows[ForecastRow.TTFT_S, 0] += further_s
    if len(ttft[0]) or len(tpot[0]):
        values = features_of(role, table, slot, cached, input_tokens)
        for number in range(UNCACHED):
            value = values[number + (number >= PREFIX_SCORE)]
            inputs[number] = 0.0 if value < 0.0 else LARGEST if value > LARGEST else value
        inputs[UNCACHED] = input_tokens * (1.0 - min(max(values[PREFIX_SCORE], 0.0), 1.0))
    if role != DECODE_ROLE:
        base_s = rows[ForecastRow.TTFT_S, 0]
        column = kind if there == 0.0 else busy if len(ttft[0]) else -1
        seconds = _learned_at(ttft, inputs, weight, base_s)
        if column >= 0 and isfinite(seconds):
            seconds = min(max(seconds, limits[0, column] * base_s), limits[1, column] * base_s)
        rows[ForecastRow.TTFT_S, 0] = seconds
    if role != PREFILL_ROLE:
        base_s = rows[ForecastRow.TPOT_S, 0]
        column = kind if there == 0.0 else busy if len(tpot[0]) else -1
        seconds = _learned_at(tpot, inputs, weight, base_s)
        if column >= 0 and isfinite(seconds):
            seconds = min(max(seconds, limits[2, column] * base_s), limits[3, column] * base_s)
        rows[ForecastRow.TPOT_S, 0] = seconds
        rows[ForecastRow.OTHERS_TPOT_S, 0] *= seconds / base_s


@compiled_in_place
def _learned_at(target: tuple[Any, ...], inputs: FloatArray, weight: float, prior_s: float) -> float:
    """The target's seconds for one candidate; the prior's where nothing was learned or there is no answer."""
    centre, quantile, factor, sources, thresholds, leaves = target
    if len(centre) == 0 or not isfinite(prior_s):
        return float(prior_s)
    times = _times_at(sources, thresholds, leaves, inputs)
    seconds = times * _curve_at(centre, inputs, prior_s)
    seconds = seconds if isnan(seconds) else min(max(seconds, SHORTEST_S), LONGEST_S)
    if len(quantile):
        seconds = min(max(factor * times * _curve_at(quantile, inputs, prior_s), seconds), LONGEST_S)
    if isnan(seconds):
        return float(prior_s)
    faded = 1.0 if weight == 1.0 else (prior_s / seconds) ** (1.0 - weight)
    return float(faded * seconds)


@compiled_in_place
def _curve_at(curve: FloatArray, inputs: FloatArray, prior_s: float) -> float:
    base, slope, least, most = curve[1, 0], curve[1, 1], curve[1, 2], curve[1, 3]
    within_s = min(max(prior_s, curve[0, 2]), curve[0, 3])
    seconds = curve[0, 0] + curve[0, 1] * within_s
    for number in range(HEADER, len(curve)):
        over = inputs[int(curve[number, 0])] - curve[number, 1]
        over, width = 0.0 if over < 0.0 else over, curve[number, 2]
        seconds += curve[number, 3] * (width if over > width else over)
    alone_s = base + slope * prior_s
    if prior_s != within_s:
        seconds *= alone_s / (base + slope * within_s)
    if isnan(seconds):
        return float(seconds)
    seconds = min(max(seconds, least * alone_s), most * alone_s)
    return float(min(max(seconds, SHORTEST_S), LONGEST_S))


@compiled_in_place
def _times_at(sources: SlotArray, thresholds: FloatArray, leaves: FloatArray, inputs: FloatArray) -> float:
    total = 0.0
    for tree in range(len(leaves)):
        node = 0
        for _ in range(DEPTH):
            node = 2 * node + 1 + int(inputs[sources[tree, node]] > thresholds[tree, node])
        total += leaves[tree, node - NODES]
    return exp(total)
