"""Backtest: the losses and costs that each forecast, times a safety factor, would have had in the past.

Forecasts of a pool's work come from the work of past intervals, by several levels at once. Work is in
replica-seconds per second: how many replicas the interval would have kept busy. Of a series y, with smoothing
a:

    s ← s + a (y − s)          the forecast for any time to come is s

Simple exponential smoothing (Brown, 1956). At the start a is 1, 1/2, 1/3, … until it falls to its value, so
that the first values weigh alike. Predictors' forecasts are judged beside them (`predicted`).

After interval i − h, forecast j said f_ij for interval i, h being the lead. Had x f_ij replicas been there,

    lost_jx = Σ_i w_i L_i(⌈x f_ij⌉)          cost_jx = Σ_i w_i ⌈x f_ij⌉ / Σ_i w_i

with L_i the loss curve of the interval (see `headway.planning.replay`) and w_i = 2^(−age / half-life). One
figure holds the forecast's error, burstiness, lengths and queueing together, in the unit that counts.

What has not been seen yet. The past is a small sample: h intervals are about one independent observation of
the forecast's error, so n intervals are n / h, and the next may be worse than all of them with a chance of
about 1 / (n / h + 1). With that weight every interval is judged as if load had grown by d in the lead (and
where replicas would be fewer than the level of the work times 1 + d, as lost):

    d = unknown · (d0 + d1 lead) + (1 − unknown) · (d0 + VOLATILITY · 90 % of the level's changes over a lead)

unknown = h / (n + h). d0 and d1 are a first guess for any traffic: 5 %, and 10 % a minute.

What could not be known. Work of more than SURPRISE times all that had been seen when its forecast was made is
judged as if it had been SURPRISE times that: no average is multiplied by more for a jump that has no
precedent. When it comes again, it has one.
"""

from dataclasses import dataclass

import numpy as np

from headway.planning.hindsight.predicted import SMOOTHING, Predicted
from headway.planning.hindsight.state import PoolHistory
from headway.planning.types import FloatArray, IntArray
from interp.jit import compiled

SMOOTHINGS = (0.5, 0.2, 0.1, 0.05)
"""a of each row of `forecasts`, from quick to slow."""


def forecasts(work: FloatArray) -> FloatArray:
    """The level by each of SMOOTHINGS after each interval: f8[len(SMOOTHINGS), N]."""
    levels = np.empty((len(SMOOTHINGS), len(work)))
    for row, smoothing in enumerate(SMOOTHINGS):
        _smooth(work, smoothing, levels[row])
    return levels


@compiled
def _smooth(work: FloatArray, smoothing: float, out: FloatArray) -> None:
    level = 0.0
    for i in range(len(work)):
        level += max(smoothing, 1.0 / (i + 1)) * (work[i] - level)
        out[i] = level


FACTORS = np.geomspace(0.6, 10.0, 72)
"""Safety factors that are tried, 4 % apart, times the slack that the pool needs over its work."""

SURE_GROWTH, GROWTH_PER_MINUTE = 0.05, 0.1
VOLATILITY = 1.2
MATURE = 4
"""Intervals that a forecast must have seen before it is judged."""

STEADY = SMOOTHINGS.index(0.2)
"""The row of `forecasts` whose changes say how fast the load grows."""

USUAL = SMOOTHINGS.index(SMOOTHING)
"""The row of `forecasts` that turns requests into work."""

NO_PREDICTORS = Predicted()

SURPRISE = 2.0
USUAL_LOSS = 0.01
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Backtest:
    """The result for one pool, J forecasts by X factors: `lost` requests and `cost` in replicas f8[J, X].

    `names` are those of the forecasts: levels as `level 0.2`, predictors by their own. `replicas` i8[J, X] is
    what each would order now with each of `factors` f8[X], `requests` how many were judged, `growth` what was
    assumed for the lead, and `expected` f8[J] the work that each forecast expects. `typical` is the median
    over intervals of the least replicas that lose at most USUAL_LOSS of the requests.
    """

    names: tuple[str, ...]
    lost: FloatArray
    cost: FloatArray
    replicas: IntArray
    factors: FloatArray
    requests: float
    growth: float
    expected: FloatArray
    typical: float


def backtest(
    history: PoolHistory,
    lead: int,
    interval_s: float,
    half_life: float,
    predicted: Predicted = NO_PREDICTORS,
) -> Backtest:
    """All forecasts and factors over a past that is not empty; `lead` and `half_life` in intervals."""
    said = forecasts(history.work)
    predictors = predicted.of_work(said[USUAL], lead)
    said = np.vstack([said, *predictors.values()])
    count = len(history)
    mature = count - 1 >= lead + MATURE
    first = lead + MATURE if mature else max(0, min(MATURE, count - 2))
    judged = np.arange(first, count)
    heard = judged - lead if mature else judged
    precedent = np.maximum.accumulate(history.work)[heard]
    surprise = np.maximum(1.0, history.work[judged] / np.maximum(SURPRISE * precedent, ROUNDING))
    foreseen = said[:, heard] * surprise
    weights = 0.5 ** ((count - 1 - judged) / half_life)
    unseen = 1.0 / (float(weights.sum()) / lead + 1.0)
    growth = _growth(said[STEADY], lead, interval_s)
    curves = (history.starts, history.lost.astype(np.float64), judged)
    factors = FACTORS * history.slack
    lost, cost = _totals(foreseen, weights * (1.0 - unseen), factors, curves)
    grown = (*_grown(history.starts, history.lost, said[STEADY], 1.0 + growth), judged)
    worse, _ = _totals(foreseen, weights * unseen, factors, grown)
    least = _least(history.starts, history.lost, judged[history.requests[judged] > 0])
    ordered = np.maximum(1, np.ceil(factors * said[:, -1:] - ROUNDING)).astype(np.int64)
    return Backtest(
        names=(*(f"level {smoothing:g}" for smoothing in SMOOTHINGS), *predictors),
        lost=lost + worse,
        cost=cost,
        replicas=ordered,
        factors=factors,
        requests=float(history.requests[judged] @ weights),
        growth=growth,
        expected=said[:, -1],
        typical=float(np.median(least)) if len(least) else 0.0,
    )


def _growth(level: FloatArray, lead: int, interval_s: float) -> float:
    """The growth of the load to expect in a lead, as a fraction."""
    guess = SURE_GROWTH + GROWTH_PER_MINUTE * lead * interval_s / 60.0
    steady = np.log(np.maximum(level[MATURE:], ROUNDING))
    count = len(steady)
    if count < 6:
        return guess
    span = max(1, min(lead, count // 3))
    change = float(np.quantile(np.abs(steady[span:] - steady[:-span]), 0.9))
    seen = SURE_GROWTH + VOLATILITY * change * lead / span
    unknown = lead / (count + lead)
    return unknown * guess + (1.0 - unknown) * min(seen, 2.0 * guess)


@compiled
def _least(starts: IntArray, lost: IntArray, judged: IntArray) -> IntArray:
    least = np.zeros(len(judged), np.int64)
    for i in range(len(judged)):
        start, end = starts[judged[i]], starts[judged[i] + 1]
        while least[i] < end - start - 1 and lost[start + least[i]] > USUAL_LOSS * lost[start]:
            least[i] += 1
    return least


@compiled
def _grown(starts: IntArray, lost: IntArray, level: FloatArray, times: float) -> tuple[IntArray, FloatArray]:
    """The curves as if load had been so many times as large; between two counts logarithms are averaged."""
    count = len(starts) - 1
    begins = np.zeros(count + 1, np.int64)
    for i in range(count):
        begins[i + 1] = begins[i] + int(np.ceil((starts[i + 1] - starts[i] - 1) * times)) + 1
    grown = np.zeros(begins[count])
    for i in range(count):
        start, last = starts[i], starts[i + 1] - starts[i] - 1
        for n in range(begins[i + 1] - begins[i]):
            place = min(n / times, float(last))
            low = int(place)
            share = place - low
            below, above = np.log1p(lost[start + low]), np.log1p(lost[start + min(low + 1, last)])
            grown[begins[i] + n] = np.expm1((1.0 - share) * below + share * above)
            if n < level[i] * times:
                grown[begins[i] + n] = lost[start]
    return begins, grown


@compiled
def _totals(
    said: FloatArray,
    weights: FloatArray,
    factors: FloatArray,
    curves: tuple[IntArray, FloatArray, IntArray],
) -> tuple[FloatArray, FloatArray]:
    starts, lost, judged = curves
    losses = np.zeros((said.shape[0], len(factors)))
    costs = np.zeros((said.shape[0], len(factors)))
    reached = np.zeros(len(factors))
    for j in range(said.shape[0]):
        for i in range(len(judged)):
            start, end = starts[judged[i]], starts[judged[i] + 1]
            # Apart, the first of these loops runs on vectors.
            for x in range(len(factors)):
                count = max(1.0, np.ceil(factors[x] * said[j, i] - ROUNDING))
                costs[j, x] += weights[i] * count
                reached[x] = min(count, float(end - start - 1))
            for x in range(len(factors)):
                losses[j, x] += weights[i] * lost[start + int(reached[x])]
    return losses, costs / max(weights.sum(), 1e-300)
