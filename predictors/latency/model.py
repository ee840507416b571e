"""The latency model that routers hold: immutable, picklable, one vectorised call per decision.

Per target (TTFT, TPOT) there is a prior, curves learned over it, both, or neither:

| prior | learned | prediction                                                                  |
|-------|---------|-----------------------------------------------------------------------------|
| yes   | no      | the prior; the quantile equals it, because no spread is known (cold start)  |
| yes   | yes     | the curves, in which the prior is one term                                  |
| no    | yes     | the curves, purely empirical                                                |
| no    | no      | NaN                                                                         |

A row with a feature that is not finite, or where the prior's answer is not a positive, finite number, has NaN
for that target. `usable` is where all four numbers are finite.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from predictors.latency.curve import LONGEST_S, SHORTEST_S, Learned
from predictors.latency.features import BoolArray, FloatArray, LatencyFeatures
from predictors.latency.samples import Target

Prior = Callable[[LatencyFeatures], FloatArray]
"""Features of N rows → seconds, shape (N,). Must pickle where the model shall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """What is believed before any measurement; None where nothing is."""

    ttft: Prior | None = None
    tpot: Prior | None = None

    def of(self, target: Target) -> Prior | None:
        """The prior of one target."""
        return self.ttft if target is Target.TTFT else self.tpot


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencyPrediction:
    """Seconds and a mask, shape (N,) each. Quantiles are at the model's `level`, never below the centre."""

    ttft_s: FloatArray
    tpot_s: FloatArray
    ttft_quantile_s: FloatArray
    tpot_quantile_s: FloatArray
    usable: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetModel:
    """Prior and learned curves of one target."""

    prior: Prior | None = None
    learned: Learned | None = None

    def predict(self, inputs: FloatArray, prior_s: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """Centre and quantile at `inputs` (8, N), given the prior's answers; NaN where there is none."""
        if self.learned is not None:
            return self.learned.predict(inputs, prior_s)
        if prior_s is not None:
            return prior_s, prior_s
        nothing = np.full(inputs.shape[1], np.nan)
        return nothing, nothing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencyModel:
    """TTFT and TPOT of requests at replicas. `level` is the level of the quantiles."""

    ttft: TargetModel
    tpot: TargetModel
    level: float = 0.9

    def predict(self, features: LatencyFeatures) -> LatencyPrediction:
        """Predictions for N rows; see the module's table for missing parts."""
        inputs, known = features.inputs(), features.known()
        ttft = _answers(self.ttft, features, inputs, known)
        tpot = _answers(self.tpot, features, inputs, known)
        return LatencyPrediction(
            ttft_s=ttft[0],
            tpot_s=tpot[0],
            ttft_quantile_s=ttft[1],
            tpot_quantile_s=tpot[1],
            usable=np.isfinite(ttft[0]) & np.isfinite(tpot[0]),
        )

    def of(self, target: Target) -> TargetModel:
        """The model of one target."""
        return self.ttft if target is Target.TTFT else self.tpot


def cold_model(priors: Priors, *, level: float = 0.9) -> LatencyModel:
    """The model before any measurement: the priors alone."""
    return LatencyModel(ttft=TargetModel(prior=priors.ttft), tpot=TargetModel(prior=priors.tpot), level=level)


def ask(prior: Prior, features: LatencyFeatures) -> FloatArray:
    """The prior's seconds, NaN where they are not a positive, finite number."""
    answer = np.asarray(prior(features), dtype=np.float64)
    sound = np.isfinite(answer) & (answer > 0.0)
    return np.where(sound, np.clip(answer, SHORTEST_S, LONGEST_S), np.nan)


def answers(model: TargetModel, features: LatencyFeatures) -> tuple[FloatArray, FloatArray]:
    """Centre and quantile of one target in seconds, shape (N,) each; NaN where there is no answer."""
    return _answers(model, features, features.inputs(), features.known())


def _answers(
    model: TargetModel, features: LatencyFeatures, inputs: FloatArray, known: BoolArray
) -> tuple[FloatArray, FloatArray]:
    prior_s = None if model.prior is None else ask(model.prior, features)
    centre, quantile = model.predict(inputs, prior_s)
    if known.all():
        return centre, quantile
    return np.where(known, centre, np.nan), np.where(known, quantile, np.nan)
