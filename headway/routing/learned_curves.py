"""The trained latency model at every candidate of a forecast, compiled.

The same figures as `predictors.latency` gives for the features of `forecast.features_of`: its loop over
candidates takes microseconds where a dozen calls of numpy, each of them quick, take hundreds. A curve is a
table of plain figures, one row for what it adds everywhere and one for each ramp:

    [w of the constant, w of the prior, 0, 0], [input, start, width, w], …

A target has two, its centre and its calibrated quantile; one without rows is not asked for.
"""

from math import isfinite, isnan
from typing import Any, NamedTuple

import numpy as np

from headway.routing.forecast import DECODE_ROLE, PREFILL_ROLE, ForecastRow, features_of
from headway.routing.table import FloatArray, SlotArray
from interp.jit import compiled
from predictors.latency import LatencyModel, TargetModel
from predictors.latency.curve import LONGEST_S, SHORTEST_S, Curve
from predictors.latency.features import FIELDS, INPUTS, LARGEST

PREFIX_SCORE = FIELDS.index("prefix_score")
OF_INPUTS = np.array([FIELDS.index(name) for name in INPUTS[:-1]])
"""The features that are inputs as they are; the last input is what the prefix cache leaves to compute."""

INPUT_TOKENS, UNCACHED = FIELDS.index("input_tokens"), len(INPUTS) - 1


class TargetCurves(NamedTuple):
    """One target: f8[1 + ramps, 4] each, f8[0, 4] for one that is not asked for; `factor` of the quantile."""

    centre: FloatArray
    quantile: FloatArray
    factor: float


NOTHING = TargetCurves(np.empty((0, 4)), np.empty((0, 4)), 1.0)


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
    upper = _table(learned.quantile) if quantile else NOTHING.quantile
    return TargetCurves(_table(learned.centre), upper, learned.factor)


def _table(curve: Curve) -> FloatArray:
    basis, weights = curve.basis, curve.weights
    fixed = weights[: basis.size - len(basis.source)]
    table = np.zeros((1 + len(basis.source), 4))
    table[0, : len(fixed)] = fixed
    table[1:] = np.column_stack([basis.source, basis.start, basis.width, weights[len(fixed) :]])
    return table


@compiled
def _inputs(  # noqa: PLR0917 - plain figures, compiled
    role: int, table: FloatArray, slot: int, cached_tokens: float, input_tokens: float, out: FloatArray
) -> None:
    """The model's inputs for one candidate, f8[8]: at least 0 and at most LARGEST; NaN stays."""
    values = features_of(role, table, slot, cached_tokens, input_tokens)
    for place in range(UNCACHED):
        out[place] = values[OF_INPUTS[place]]
    out[UNCACHED] = values[INPUT_TOKENS] * (1.0 - min(max(values[PREFIX_SCORE], 0.0), 1.0))
    for place in range(len(out)):
        if not isnan(out[place]):
            out[place] = min(max(out[place], 0.0), LARGEST)


@compiled
def _curve_s(curve: FloatArray, inputs: FloatArray, prior_s: float) -> float:
    """Seconds, positive and finite; NaN where an input is."""
    seconds = curve[0, 0] + curve[0, 1] * prior_s
    for row in range(1, len(curve)):
        value = inputs[int(curve[row, 0])]
        if isnan(value):
            return float(np.nan)
        seconds += curve[row, 3] * min(max(value - curve[row, 1], 0.0), curve[row, 2])
    return float(min(max(seconds, SHORTEST_S), LONGEST_S))


@compiled
def _learned_s(target: tuple[Any, ...], inputs: FloatArray, prior_s: float) -> float:
    """The target's seconds; the prior's where nothing was learned, or the curves have no answer."""
    centre, quantile, factor = target
    if len(centre) == 0 or not isfinite(prior_s):
        return prior_s
    seconds = _curve_s(centre, inputs, prior_s)
    upper_s = factor * _curve_s(quantile, inputs, prior_s) if len(quantile) else seconds
    if isnan(seconds) or isnan(upper_s):
        return prior_s
    return float(min(max(upper_s, seconds), LONGEST_S))


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
) -> FloatArray:
    """`prior` f8[ROWS, C] with `further_s` in TTFT; TTFT and TPOT by the curves, which are plain."""
    out, inputs = prior.copy(), np.empty(8)
    for place in range(len(slots)):
        out[ForecastRow.TTFT_S, place] += further_s
        _inputs(role, table, slots[place], cached[place], input_tokens, inputs)
        if role != DECODE_ROLE:
            out[ForecastRow.TTFT_S, place] = _learned_s(ttft, inputs, out[ForecastRow.TTFT_S, place])
        if role != PREFILL_ROLE:
            prior_s = prior[ForecastRow.TPOT_S, place]
            tpot_s = _learned_s(tpot, inputs, prior_s)
            out[ForecastRow.OTHERS_TPOT_S, place] *= tpot_s / prior_s
            out[ForecastRow.TPOT_S, place] = tpot_s
    return out
