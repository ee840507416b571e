"""The trained latency model at every candidate of a forecast, compiled.

The same figures as `predictors.latency` gives for the features of `forecast.features_of`: its loop over
candidates takes microseconds where a dozen calls of numpy, each of them quick, take hundreds. A curve is a
table of plain figures, two rows for what it adds everywhere and what bounds it (`curve.Span`), and one for
each ramp:

    [w of the constant, w of the prior, low_s, high_s], [base_s, slope, least, most],
    [input, start, width, w], …

A target without rows is not asked for.
"""

from math import isfinite, isnan
from typing import Any, NamedTuple

import numpy as np

from headway.routing.fleet.table import DECODE_ROLE, PREFILL_ROLE, FleetRow, FloatArray, SlotArray
from headway.routing.predict.forecast import ForecastRow, features_of, is_idle
from interp.jit import compiled, compiled_in_place
from predictors.latency import LatencyModel, TargetModel
from predictors.latency.curve import LONGEST_S, SHORTEST_S, UNBOUNDED
from predictors.latency.features import FIELDS, INPUTS, LARGEST

PREFIX_SCORE = FIELDS.index("prefix_score")
"""The one feature that is no input: the last input is what it leaves to compute."""

UNCACHED = len(INPUTS) - 1
assert (*FIELDS[:PREFIX_SCORE], *FIELDS[PREFIX_SCORE + 1 :]) == INPUTS[:UNCACHED]


HEADER = 2
NO_CURVE = np.empty((0, 4))


class ModelCurves(NamedTuple):
    """A model, as a table of each target: f8[2 + ramps, 4], or NO_CURVE."""

    ttft: FloatArray
    tpot: FloatArray


def curves_of(model: LatencyModel) -> ModelCurves:
    """The model's tables."""
    return ModelCurves(_table(model.ttft), _table(model.tpot))


def _table(model: TargetModel) -> FloatArray:
    if model.learned is None:
        return NO_CURVE
    curve = model.learned.centre
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
def corrected(  # noqa: PLR0917 - plain figures, compiled
    role: int,
    table: FloatArray,
    slots: SlotArray,
    cached: FloatArray,
    input_tokens: float,
    prior: FloatArray,
    figures: tuple[Any, ...],
) -> FloatArray:
    """`prior` f8[ROWS, C] corrected by `figures`, which are those of `correct_at`."""
    out, inputs = prior.copy(), np.empty(UNCACHED + 1)
    for place in range(len(slots)):
        correct_at(role, table, slots[place], cached[place], input_tokens, out, place, figures, inputs)
    return out


@compiled_in_place
def correct_at(  # noqa: PLR0917 - plain figures, compiled
    role: int,
    table: FloatArray,
    slot: int,
    cached: float,
    input_tokens: float,
    rows: FloatArray,
    place: int,
    figures: tuple[Any, ...],
    inputs: FloatArray,
) -> None:
    """Correct the column `place` of a prior's `rows` f8[ROWS, C], the candidate in `slot`.

    `figures`: what comes on top of TTFT (s), the curves of TTFT and TPOT, the limits f8[4, kinds + 1] and the
    weight that their evidence has (`evidence`). `inputs` f8[8] are written anew.
    """
    further_s, ttft, tpot, limits, weight = figures
    busy, kind = limits.shape[1] - 1, int(table[FleetRow.KIND, slot])
    idle = is_idle(table, slot)
    rows[ForecastRow.TTFT_S, place] += further_s
    if len(ttft) or len(tpot):
        values = features_of(role, table, slot, cached, input_tokens)
        for number in range(UNCACHED):
            # Not by min and max, which lose NaN.
            value = values[number + (number >= PREFIX_SCORE)]
            inputs[number] = 0.0 if value < 0.0 else LARGEST if value > LARGEST else value
        inputs[UNCACHED] = input_tokens * (1.0 - min(max(values[PREFIX_SCORE], 0.0), 1.0))
    if role != DECODE_ROLE:
        base_s = rows[ForecastRow.TTFT_S, place]
        column = kind if idle else busy if len(ttft) else -1
        seconds = _learned_at(ttft, inputs, weight, base_s)
        if column >= 0 and isfinite(seconds):
            seconds = min(max(seconds, limits[0, column] * base_s), limits[1, column] * base_s)
        rows[ForecastRow.TTFT_S, place] = seconds
    if role != PREFILL_ROLE:
        base_s = rows[ForecastRow.TPOT_S, place]
        column = kind if idle else busy if len(tpot) else -1
        seconds = _learned_at(tpot, inputs, weight, base_s)
        if column >= 0 and isfinite(seconds):
            seconds = min(max(seconds, limits[2, column] * base_s), limits[3, column] * base_s)
        rows[ForecastRow.TPOT_S, place] = seconds
        rows[ForecastRow.OTHERS_TPOT_S, place] *= seconds / base_s


@compiled_in_place
def _learned_at(curve: FloatArray, inputs: FloatArray, weight: float, prior_s: float) -> float:
    """The target's seconds for one candidate; the prior's where nothing was learned or there is no answer."""
    if len(curve) == 0 or not isfinite(prior_s):
        return float(prior_s)
    seconds = _curve_at(curve, inputs, prior_s)
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
