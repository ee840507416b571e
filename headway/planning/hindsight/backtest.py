"""Backtest: the losses and costs that each forecast, times a safety factor, would have had in the past.

Forecasts of a pool's work come from the work of past intervals, several at once. Work is in replica-seconds
per second: how many replicas the interval would have kept busy. Of a series y, with smoothing a:

    level a   s ← s + a (y − s)          the forecast for any time to come is s
    peak      p ← max(p, y)

The levels are simple exponential smoothing (Brown, 1956); at the start a is 1, 1/2, 1/3, … until it falls to
its value, so that the first values weigh alike. Predictors' forecasts are judged beside them (`predicted`).

After interval i − h, forecast j said f_ij for interval i, h being the lead. Had x f_ij replicas been there,

    lost_jx = Σ_i w_i L_i(⌈x f_ij⌉)          cost_jx = Σ_i w_i ⌈x f_ij⌉ / Σ_i w_i

with L_i the loss curve of the interval (see `headway.planning.replay`) and w_i = 2^(−age / half-life). One
figure holds the forecast's error, burstiness, lengths and queueing together, in the unit that counts.

The peak does not forecast an interval. It is a fleet that is held while bursts come and go faster than a
level can follow. Of k + 1 bursts that are alike, the next is the largest with a chance of 1 / (k + 1). So an
interval is judged by the most work that was known a lead before, or that came in a later burst, and
cost_peak,x is what x times today's peak costs. Judged by the peak as it was known then, each burst that was
the largest so far would raise the factor, and that factor would multiply a peak which has grown by the same
burst. A burst lasts until work is less than a SURPRISE-th of the interval's: a slow rise is one burst, whose
crest did not hold its slope.

What has not been seen yet. The past is a small sample: h intervals are about one independent observation of
the forecast's error, so n intervals are n / h, and the next may be worse than all of them with a chance of
about 1 / (n / h + 1). With that weight every interval is judged as if load had grown by d in the lead (and
where replicas would be fewer than the level of the work times 1 + d, as lost):

    d = unknown · (d0 + d1 lead) + (1 − unknown) · VOLATILITY · 90 % of the level's changes over a lead

unknown = h / (n + h), a fall being a negative change. d0 and d1 are a first guess for any traffic: 5 %, and
10 % a minute. For the peak it is the mean of its own changes, those without precedent (below) left out. The
first intervals, of which no forecast could speak, are judged by what was said some time after them, as if
they had come again.

What could not be known. Work of more than SURPRISE times all that had been seen when its forecast was made is
held against no forecast: none is multiplied for a jump that has no precedent. Neither is the interval before
it, in whose last seconds it may have begun, nor those after it whose forecasts were made before it was known:
in them its queue drains. When it comes again, it has a precedent. That it may do so soon is not known either,
so in the part of the past that stands for what has not been seen it counts against all but the peak: for as
long as a jump weighs there, the peak is what holds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import log

import numpy as np

from headway.planning.hindsight.history import SMOOTHING, PoolHistory, Predicted
from headway.planning.replay.curve import least_within, under_load
from headway.planning.types import BoolArray, FloatArray, IntArray
from interp.jit import compiled

SMOOTHINGS = (0.5, 0.2, 0.05)
"""a of each level, from quick to slow."""

FORECASTS = (*(f"level {smoothing:g}" for smoothing in SMOOTHINGS), "peak")
"""The names of the rows of `forecasts`."""

STEADY, PEAK = FORECASTS.index("level 0.2"), FORECASTS.index("peak")
"""The row whose changes say how fast the load grows, and that of the peak."""


def forecasts(work: FloatArray) -> FloatArray:
    """What each of FORECASTS says after each interval: f8[len(FORECASTS), N]."""
    said = np.empty((len(FORECASTS), len(work)))
    for row, smoothing in enumerate(SMOOTHINGS):
        _smooth(work, smoothing, said[row])
    said[PEAK] = np.maximum.accumulate(work)
    return said


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

USUAL = SMOOTHINGS.index(SMOOTHING)
"""The row of `forecasts` that turns requests into work."""

STEEP: Callable[[FloatArray], float] = partial(np.quantile, q=0.9)

NO_PREDICTORS = Predicted()

SURPRISE = 2.0
AFTERWARDS = 3
"""Times the intervals that no forecast could speak of, after which they are looked back on."""

USUAL_LOSS = 0.01
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Backtest:
    """The result for one pool, J forecasts by X factors: `lost` requests and `cost` in replicas f8[J, X].

    `names` are those of the forecasts: FORECASTS, and predictors by their own. `replicas` i8[J, X] is what
    each would order now with each of `factors` f8[X], `requests` how many were judged, `growth` f8[J] what
    was assumed for the lead, and `expected` f8[J] the work that each forecast expects. `typical` is the
    median over intervals of the least replicas that lose at most USUAL_LOSS of the requests; `surprising` of
    the judged requests came in jumps without precedent.
    """

    names: tuple[str, ...]
    lost: FloatArray
    cost: FloatArray
    replicas: IntArray
    factors: FloatArray
    requests: float
    growth: FloatArray
    expected: FloatArray
    typical: float
    surprising: float


def backtest(
    history: PoolHistory,
    lead: int,
    interval_s: float,
    half_life: float,
    predicted: Predicted = NO_PREDICTORS,
) -> Backtest:
    """All forecasts and factors over a past that is not empty; `lead` and `half_life` in intervals."""
    levels = forecasts(history.work)
    predictors = predicted.of_work(levels[USUAL], lead)
    past = _Past.of(history, np.vstack([levels, *predictors.values()]), lead, half_life)
    growth = np.full(len(past.said), _growth(levels[STEADY], STEEP, lead, interval_s))
    growth[PEAK] = _growth(levels[PEAK], _usual, lead, interval_s)
    lost, cost = _seen_part(past)
    lost += _unseen_part(past, growth)
    lost += _first_part(past)
    requests = history.requests[past.judged] * past.weights[past.first :]
    came = past.judged[history.requests[past.judged] > 0]
    least = least_within(history.starts, history.lost, USUAL_LOSS)[came]
    return Backtest(
        names=(*FORECASTS, *predictors),
        lost=lost,
        cost=cost,
        replicas=past.ordered,
        factors=past.factors,
        requests=float(requests.sum()),
        growth=growth,
        expected=past.said[:, -1],
        typical=float(np.median(least)) if len(least) else 0.0,
        surprising=float(requests[history.work[past.judged] > SURPRISE * past.precedent].sum()),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Past:
    """The N intervals of a history, and what each of J forecasts `said` after each of them, f8[J, N].

    The intervals `judged`, from `first` on, are judged by what was said after those `heard`, `lag` before,
    which is a lead unless the past is too short; `weights` f8[N] by age, of which the share `unseen` stands
    for what has not been seen. `precedent` is the most work that had been seen then, and `near` the most from
    then up to the interval after the judged one: a `sudden` one had no precedent.
    """

    history: PoolHistory
    said: FloatArray
    first: int
    judged: IntArray
    heard: IntArray
    lag: int
    weights: FloatArray
    unseen: float
    precedent: FloatArray
    near: FloatArray

    @classmethod
    def of(cls, history: PoolHistory, said: FloatArray, lead: int, half_life: float) -> "_Past":
        count = len(history)
        mature = count - 1 >= lead + MATURE
        first = lead + MATURE if mature else max(0, min(MATURE, count - 2))
        judged = np.arange(first, count)
        lag = lead if mature else 0
        heard = judged - lag
        weights = 0.5 ** (np.arange(count)[::-1] / half_life)
        work = np.append(history.work, 0.0)
        near = [work[judged + place] for place in range(1, -max(1, lag), -1)]
        return cls(
            history=history,
            said=said,
            first=first,
            judged=judged,
            heard=heard,
            lag=lag,
            weights=weights,
            unseen=1.0 / (float(weights[first:].sum()) / lead + 1.0),
            precedent=np.maximum.accumulate(history.work)[heard],
            near=np.max(near, axis=0),
        )

    @property
    def factors(self) -> FloatArray:
        return FACTORS * self.history.slack

    @property
    def sudden(self) -> BoolArray:
        """Which of the judged intervals are held against no forecast."""
        return self.near > SURPRISE * np.maximum(self.precedent, ROUNDING)

    @property
    def ordered(self) -> IntArray:
        """Replicas that each forecast and factor would order now, i8[J, X]."""
        wanted = np.ceil(self.factors * self.said[:, -1:] - ROUNDING)
        return np.maximum(1, wanted).astype(np.int64)

    @property
    def foreseen(self) -> FloatArray:
        """What each forecast said of each judged interval, the peak by later bursts, too; f8[J, I].

        What had no precedent was foreseen by all.
        """
        said = self.said[:, self.heard]
        later = np.append(np.maximum.accumulate(self.history.work[::-1])[::-1], 0.0)
        over = np.maximum(self.judged + self.lag, _burst_ends(self.history.work)[self.judged])
        said[PEAK] = np.maximum(said[PEAK], later[np.minimum(over, len(later) - 1)])
        return np.where(self.sudden, self.near, said)

    def totals(
        self, said: FloatArray, weights: FloatArray, intervals: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Lost and cost, f8[J, X] each, of fleets for what was `said` of the intervals, f8[J, I]."""
        curves = (self.history.starts, self.history.lost.astype(np.float64), intervals)
        return _totals(said, weights, self.factors, curves)


def _seen_part(past: _Past) -> tuple[FloatArray, FloatArray]:
    """Lost and cost, f8[J, X] each: the intervals as they came, the peak held from now on."""
    weights = past.weights[past.first :] * (1.0 - past.unseen)
    lost, cost = past.totals(past.foreseen, weights, past.judged)
    cost[PEAK] = past.ordered[PEAK]
    return lost, cost


def _unseen_part(past: _Past, growth: FloatArray) -> FloatArray:
    """Lost, f8[J, X]: the same intervals, had load grown by `growth` f8[J] in the lead."""
    again = past.said[:, past.heard]
    again[PEAK] = past.foreseen[PEAK]
    weights = past.weights[past.first :] * past.unseen
    return _lost_grown(past.history, past.said[STEADY], (again, weights, past.judged), growth)


def _first_part(past: _Past) -> FloatArray:
    """Lost, f8[J, X]: the first intervals, by what was said some time after them."""
    first, last = past.first, len(past.history) - 1
    afterwards = past.said[:, np.full(first, min(AFTERWARDS * first, last))]
    return past.totals(afterwards, past.weights[:first] * past.unseen, np.arange(first))[0]


@compiled
def _burst_ends(work: FloatArray) -> IntArray:
    """Where the burst of each interval is over: the next with less than a SURPRISE-th of its work, i8[N]."""
    ends = np.zeros(len(work), np.int64)
    for i in range(len(work)):
        end = i + 1
        while end < len(work) and SURPRISE * work[end] >= work[i]:
            end += 1
        ends[i] = end
    return ends


def _usual(changes: FloatArray) -> float:
    """Mean change of the logarithm of a peak, jumps without precedent left out."""
    known = changes[changes <= log(SURPRISE)]
    return float(known.mean()) if len(known) else 0.0


def _growth(said: FloatArray, expected: Callable[[FloatArray], float], lead: int, interval_s: float) -> float:
    """The growth of the load to expect in a lead, as a fraction, `expected` of a forecast's changes."""
    guess = SURE_GROWTH + GROWTH_PER_MINUTE * lead * interval_s / 60.0
    logs = np.log(np.maximum(said[MATURE:], ROUNDING))
    count = len(logs)
    if count < 6:
        return guess
    span = max(1, min(lead, count // 3))
    change = max(0.0, float(expected(logs[span:] - logs[:-span])))
    unknown = lead / (count + lead)
    return unknown * guess + (1.0 - unknown) * min(VOLATILITY * change * lead / span, 2.0 * guess)


def _lost_grown(
    history: PoolHistory,
    level: FloatArray,
    said: tuple[FloatArray, FloatArray, IntArray],
    growth: FloatArray,
) -> FloatArray:
    """Requests lost by factor, f8[J, X], had load grown since each forecast was `said`.

    `said` is the forecasts f8[J, I], and the weights and numbers of the I intervals.
    """
    forecast, weights, judged = said
    lost, factors = np.empty((len(forecast), len(FACTORS))), FACTORS * history.slack
    for each in np.unique(growth):
        rows = growth == each
        curves = (*under_load(history.starts, history.lost, level, 1.0 + each), judged)
        lost[rows], _ = _totals(forecast[rows], weights, factors, curves)
    return lost


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
