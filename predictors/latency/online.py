"""The latency model as it is kept up while requests come in: its window, its training, its recent errors.

    online = OnlineLatency()
    online.learn(samples, now_s)              # as requests are measured, oldest first
    online.train(priors)                      # now and then
    online.model(now_s).predict(features)     # the model in place, corrected by its recent errors

A sample is first predicted by the model in place, then put into the window. So recent errors are those of
predictions of what was not yet known, and a target without a trained curve has none.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from predictors.latency.features import LatencySamples, Target
from predictors.latency.fit import LatencySettings
from predictors.latency.model import LatencyModel, Priors, TargetModel, answers
from predictors.latency.recent import Factors, RecentErrors
from predictors.latency.train import Trained, train
from predictors.latency.window import TrainingWindow


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
