"""The latency model as it is kept up while requests come in: its window, its training, its recent errors.

    online = OnlineLatency()
    online.learn(samples, now_s)              # as requests are measured, oldest first
    online.train(priors)                      # now and then
    online.model(now_s).predict(features)     # the model in place, corrected by its recent errors

A sample is first predicted by the model in place, then put into the window. So recent errors are those of
predictions of what was not yet known, and a target without a trained curve has none.

What the latest outcomes say of a model's predictions: a factor for its centre, another for its quantile.

A trained curve is as old as its training, and it does not see what is about to come: when a burst begins or
ends, all requests are late or early alike. With r_i = log(measured / predicted) of the latest requests, the
predictions being those of the model as it was trained:

    centre      exp(m_h),  m_h = Σ w_i r_i / (Σ w_i + ½),  w_i = 2^(-age_i / h),  h of `HALF_LIVES`

An age is a number of later requests. Of these means, and of none, the one is used that would have predicted
the last requests best, by their mean absolute percentage error; a mean has to be better than none by `GAIN`.
The half-life of that judgement is `JUDGED` requests, or `JUDGED_CALLS` times what one call brings: large
batches are judged by some of them. So where errors are independent nothing is corrected, and where they hang
together the next prediction learns from them.

    quantile    the same factor, times exp(s),  s ← s + η σ ([measured > predicted quantile] - (1 - level))

A request that took more than e times as long as predicted, or less than 1 / e of it, says nothing of the
centre: one that hung, or whose clock was wrong. Where all are so, the next training will say so.

Each outcome above the predicted quantile widens it, each other narrows it a little: at rest a share `level`
is covered, whatever the drift (adaptive conformal inference: Gibbs & Candès 2021; in this additive form
Angelopoulos, Candès & Tibshirani 2023). σ is the recent mean of |r - m|, so steps are as large as errors are.

What the last requests said soon stops to hold: without new ones both logs halve every `FADES_S` seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from predictors.latency.features import FloatArray, LatencySamples, Target
from predictors.latency.fit import LatencySettings
from predictors.latency.model import LatencyModel, Priors, TargetModel, answers
from predictors.latency.train import Trained, train
from predictors.latency.window import TrainingWindow

HALF_LIVES = (2.0, 8.0, 32.0)
JUDGED, JUDGED_CALLS = 30.0, 3.0
GAIN = 0.03
NO_REQUESTS = 0.5
LARGEST_LOG = 1.0
STEP, SPREAD, SPREAD_HALF_LIFE = 0.1, 0.05, 100.0
FADES_S = 30.0

_DECAY = np.array([0.0, *(0.5 ** (1.0 / each) for each in HALF_LIVES)])
_SPREAD_DECAY = 0.5 ** (1.0 / SPREAD_HALF_LIFE)
_HANDICAP = np.array([1.0 - GAIN, *(1.0 for _ in HALF_LIVES)])


class Factors(NamedTuple):
    """Of a centre, and of a quantile, in the form in which a model has it once its centre is corrected."""

    centre: float = 1.0
    quantile: float = 1.0


class RecentErrors:
    """The recent errors of one target's predictions. Not thread-safe; pickles; constant memory."""

    def __init__(self, *, level: float = 0.9) -> None:
        """`level` is that of the quantile."""
        self._level = level
        # By half-life, the first being no correction: weighted residuals, their weights, recent errors.
        self._sums, self._weights, self._errors = (np.zeros(len(_DECAY)) for _ in range(3))
        self._centre = self._quantile = 0.0
        self._spread = SPREAD

    def factors(self, age_s: float = 0.0) -> Factors:
        """What to multiply by, `age_s` after the last outcome."""
        share = 0.5 ** (max(age_s, 0.0) / FADES_S)
        return Factors(math.exp(share * self._centre), math.exp(share * self._quantile))

    def observe(self, *, predicted_s: FloatArray, quantile_s: FloatArray, measured_s: FloatArray) -> None:
        """Take in what the model, without these factors, said of requests in order of measurement, f8[N].

        The predictions of one call are judged by the factors before it. Rows in which one of the three is
        not a positive, finite number say nothing.
        """
        table = np.stack([predicted_s, quantile_s, measured_s])
        table = np.log(table[:, (np.isfinite(table) & (table > 0.0)).all(axis=0)])
        if not table.size:
            return
        before, used = self._means(), self._centre
        decay = 0.5 ** (1.0 / max(JUDGED, JUDGED_CALLS * table.shape[1]))
        for predicted, quantile, measured in table.T.tolist():
            residual = measured - predicted
            self._widen(measured - quantile - used, min(abs(residual - used), LARGEST_LOG))
            if abs(residual) > LARGEST_LOG:
                continue
            self._errors = decay * self._errors + np.abs(np.exp(before - residual) - 1.0)
            self._sums, self._weights = _DECAY * self._sums + residual, _DECAY * self._weights + 1.0
        self._centre = float(self._means()[np.argmin(_HANDICAP * self._errors)])

    def _means(self) -> FloatArray:
        means = self._sums / (self._weights + NO_REQUESTS)
        means[0] = 0.0
        return means

    def _widen(self, above: float, error: float) -> None:
        """One outcome, `above` the log of measured / quantile before `_quantile` is added."""
        missed = float(above > self._quantile)
        step = STEP * self._spread * (missed - (1.0 - self._level))
        self._quantile = min(max(self._quantile + step, -LARGEST_LOG), LARGEST_LOG)
        self._spread = _SPREAD_DECAY * self._spread + (1.0 - _SPREAD_DECAY) * error


class OnlineLatency:
    """Not thread-safe; pickles where the priors do. Times are by one clock, NaN where there is none."""

    def __init__(self, window: TrainingWindow | None = None, settings: LatencySettings | None = None) -> None:
        """With the defaults of both where they are not given."""
        self.window = TrainingWindow() if window is None else window
        self._settings = settings or LatencySettings()
        self._recent = {target: RecentErrors(level=self._settings.level) for target in Target}
        self._trained: LatencyModel | None = None
        self._learned_s = math.nan

    def learn(self, samples: LatencySamples, now_s: float = math.nan) -> int:
        """Take in measured requests, oldest first; how many were sound."""
        if self._trained is not None:
            for target in Target:
                self._judge(self._trained.of(target), target, samples)
        if len(samples):
            self._learned_s = now_s
        return self.window.add(samples, now_s)

    def train(self, priors: Priors) -> Trained:
        """Train on the window; the model in place stays where the new one is not good enough."""
        trained = train(self.window, priors, self._trained, self._settings)
        self._trained = trained.model
        return trained

    def factors(self, now_s: float = math.nan) -> Mapping[Target, Factors]:
        """The corrections that hold at `now_s`."""
        age_s = now_s - self._learned_s
        return {
            target: recent.factors(0.0 if math.isnan(age_s) else age_s)
            for target, recent in self._recent.items()
        }

    def model(self, now_s: float = math.nan) -> LatencyModel | None:
        """The trained model with the corrections that hold at `now_s`; None before the first training."""
        if self._trained is None:
            return None
        factors, trained = self.factors(now_s), self._trained
        ttft, tpot = (_times(trained.of(target), factors[target]) for target in (Target.TTFT, Target.TPOT))
        return replace(trained, ttft=ttft, tpot=tpot)

    def _judge(self, model: TargetModel, target: Target, samples: LatencySamples) -> None:
        measured_s = samples.outcome_s(target)
        measured = np.isfinite(measured_s)
        if model.learned is None or not measured.any():
            return
        centre_s, quantile_s = answers(model, samples.rows(measured).features)
        self._recent[target].observe(
            predicted_s=centre_s, quantile_s=quantile_s, measured_s=measured_s[measured]
        )


def _times(model: TargetModel, factors: Factors) -> TargetModel:
    if model.learned is None:
        return model
    return replace(model, learned=model.learned.times(*factors))
