"""The latency model that routers hold, and its errors on live requests.

The model is immutable, picklable, and one vectorised call per decision. Per target (TTFT, TPOT) there is a
prior, curves learned over it, both, or neither:

| prior | learned | prediction                                                                  |
|-------|---------|-----------------------------------------------------------------------------|
| yes   | no      | the prior; the quantile equals it, because no spread is known (cold start)  |
| yes   | yes     | the curves, in which the prior is one term                                  |
| no    | yes     | the curves, purely empirical                                                |
| no    | no      | NaN                                                                         |

A row with a feature that is not finite, or where the prior's answer is not a positive, finite number, has NaN
for that target. `usable` is where all four numbers are finite.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictors.checks import ArgumentError, number
from predictors.latency.curve import LONGEST_S, SHORTEST_S, Learned
from predictors.latency.features import BoolArray, FloatArray, LatencyFeatures, Target
from predictors.latency.fit import OWNER

Prior = Callable[[LatencyFeatures], FloatArray]
"""Features of N rows → seconds, shape (N,). Must pickle where the model shall."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Priors:
    """The latencies believed before any measurement; None where there is no belief."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """Shares; NaN before the first pair. `pairs` and `skipped` count since the beginning."""

    error: float
    bias: float
    coverage: float
    pairs: int
    skipped: int


class LiveError:
    """Streaming errors of the predictions of one target that were acted upon, for export.

    Each prediction is paired with its outcome when the request has been measured. With y the outcome, p the
    centre and q the quantile, the figures are exponentially weighted means over pairs, weight a^age, a =
    2^(-1/half-life), divided by the sum of the weights, so that they hold from the first pair on:

        error      |p / y - 1|        mean absolute percentage error, as a share
        bias       p / y - 1          signed: above 0, latencies are overestimated
        coverage   [y ≤ q]            to be compared with the level of the quantile

    A pair in which one of the three is not a positive, finite number is counted as `skipped` and changes
    nothing. Not thread-safe; pickles; constant memory.
    """

    def __init__(self, *, half_life_pairs: float = 500.0) -> None:
        """Half of a figure's weight lies in the last `half_life_pairs` pairs.

        Raises OptionError: a half-life that is not a positive number.
        """
        self._decay = 0.5 ** (1.0 / number(OWNER, "half_life_pairs", half_life_pairs, above=0.0))
        self._sums = np.zeros(4)
        self._pairs = 0
        self._skipped = 0

    def observe(
        self, *, predicted_s: npt.ArrayLike, quantile_s: npt.ArrayLike, measured_s: npt.ArrayLike
    ) -> None:
        """Take in pairs in the order in which they were measured; numbers, or arrays of one length.

        Raises ArgumentError: the lengths differ.
        """
        try:
            given = np.broadcast_arrays(*np.atleast_1d(predicted_s, quantile_s, measured_s))
            table = np.stack(given).astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"live error: columns must be numbers of one length: {error}") from error
        sound = (np.isfinite(table) & (table > 0.0)).all(axis=0)
        self._skipped += int((~sound).sum())
        predicted, quantile, measured = table[:, sound]
        relative = predicted / measured - 1.0
        terms = np.stack([np.ones_like(relative), np.abs(relative), relative, measured <= quantile])
        weights = self._decay ** np.arange(len(relative))[::-1]
        self._sums = self._sums * self._decay ** len(relative) + terms @ weights
        self._pairs += len(relative)

    def figures(self) -> ErrorFigures:
        """The present figures."""
        total, *sums = self._sums.tolist()
        error, bias, coverage = (value / total if total > 0.0 else math.nan for value in sums)
        return ErrorFigures(
            error=error, bias=bias, coverage=coverage, pairs=self._pairs, skipped=self._skipped
        )
