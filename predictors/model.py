"""Forecasts, the interface of a forecasting method, and the plainest method: the last value holds.

A forecast of horizon h describes the next h intervals: index 0 is the interval after the last observation.
Values carry the unit of what was observed (requests per interval, tokens). Loads are never negative, so
`Forecast` clips mean and quantiles at 0, for every predictor.

Three distributions say how far reality may lie from the mean m_k at step k:

- `Normal`: m_k + s_k z(q), z the standard normal quantile, s_k the model's own standard error.
- `LogNormal`: expm1(u_k + s_k z(q)), for a model fitted to log1p of the load.
- `Residual`: m_k + the q-quantile of the errors of past forecasts k steps ahead. Order statistics are
  placed at i / (n + 1) (Hyndman & Fan 1996, type 6), which is the split-conformal level: with n
  exchangeable errors the next one lies below the i-th smallest with probability i / (n + 1).

A `Model` turns equally spaced values into a prediction. Warm-up, cleaning, bounded history, failures,
residual quantiles and the refit schedule belong to the guard (`guard.py`) around it. A new predictor is one
file with one class of this shape and one row in `registry.py`.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from predictors.checks import ArgumentError, ModelError, is_number

FloatArray = npt.NDArray[np.float64]


class Distribution(Protocol):
    """The distribution of the load, per step; not clipped."""

    def quantile(self, q: float) -> FloatArray:
        """The value that a share `q` of outcomes stays below, shape (horizon,), not decreasing in `q`."""


def _z(q: float) -> float:
    from scipy.special import ndtri

    return float(ndtri(q))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Normal:
    """Normal errors: `mean` and standard error `std`, both of shape (horizon,)."""

    mean: FloatArray
    std: FloatArray

    def quantile(self, q: float) -> FloatArray:
        """mean + std z(q)."""
        return self.mean + self.std * _z(q)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogNormal:
    """log1p of the load is normal with `mean` and `std`, both of shape (horizon,)."""

    mean: FloatArray
    std: FloatArray

    def quantile(self, q: float) -> FloatArray:
        """expm1(mean + std z(q))."""
        return np.asarray(np.expm1(self.mean + self.std * _z(q)))

    def expectation(self) -> FloatArray:
        """The mean of the load itself, exp(mean + std² / 2) - 1, which is above expm1(mean)."""
        return np.asarray(np.expm1(self.mean + self.std**2 / 2))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residual:
    """Errors of past forecasts: `mean` (horizon,), `residuals` (n, steps), NaN where there is none.

    Column k - 1 holds the errors k steps ahead. A step borrows from the longest well-filled step j <= k,
    scaled by sqrt(k / j) (errors that add up independently), when it lies beyond the columns or has fewer
    than half the errors of the first column. Without any errors every quantile equals the mean.
    """

    mean: FloatArray
    residuals: FloatArray

    def quantile(self, q: float) -> FloatArray:
        """Mean plus the error quantile of each step."""
        counts = np.isfinite(self.residuals).sum(axis=0)
        usable = np.flatnonzero((counts > 0) & (2 * counts >= counts[:1])) + 1
        if usable.size == 0:
            return self.mean.copy()
        steps = np.arange(1, self.mean.size + 1)
        sources = usable[np.maximum(np.searchsorted(usable, steps, side="right") - 1, 0)]
        columns = {source: self.residuals[:, source - 1] for source in np.unique(sources).tolist()}
        shifts = {
            source: float(np.quantile(errors[np.isfinite(errors)], q, method="weibull"))
            for source, errors in columns.items()
        }
        shift = np.array([shifts[int(source)] for source in sources])
        return np.asarray(self.mean + np.sqrt(steps / sources) * shift)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """The next intervals as a predictor expects them.

    `mean` has shape (horizon,) and is read-only, finite and >= 0. `source` names the method behind it: the
    predictor's name, `"empty"`, `"constant (warm-up: 3 of 5 points)"` or `"constant (arima failed:
    reason)"`. Compare forecasts by their arrays; the object itself compares by identity.
    """

    mean: FloatArray
    source: str
    distribution: Distribution

    def __post_init__(self) -> None:
        clipped = np.maximum(np.asarray(self.mean, dtype=np.float64), 0.0)
        clipped.setflags(write=False)
        object.__setattr__(self, "mean", clipped)

    @property
    def horizon(self) -> int:
        """Intervals ahead that the forecast reaches."""
        return int(self.mean.size)

    def quantile(self, q: float) -> FloatArray:
        """The load that a share `q` of outcomes stays below, shape (horizon,), >= 0, not decreasing in `q`.

        Raises ArgumentError: `q` is not a number strictly between 0 and 1.
        """
        if not is_number(q) or not 0.0 < q < 1.0:
            raise ArgumentError(f"quantile: q must lie strictly between 0 and 1, got {q!r:.80}")
        return np.maximum(self.distribution.quantile(q), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Needs of a model, which the guard meets.

    `minimum_points`: measured values below which the constant predictor answers. `max_points`: length of
    the window handed to `fit`. `refit_every`: observations between two scheduled fits, 0 for never. `lazy`:
    the model is brought up to date when a forecast is asked for, not at each observation; it must then give
    its own distribution, because its past forecasts are not compared with outcomes.
    """

    name: str
    minimum_points: int
    max_points: int
    refit_every: int = 0
    lazy: bool = False

    def __post_init__(self) -> None:
        if self.lazy and self.refit_every < 1:
            raise ValueError(f"{self.name}: a lazy model needs refit_every >= 1, or history would be lost")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prediction:
    """A model's answer: `mean` of shape (horizon,), and its own distribution where it has one."""

    mean: FloatArray
    distribution: Distribution | None = None


class Model(Protocol):
    """A forecasting method. Each of the three methods may raise `ModelError`, and only that, for a failure.

    State follows from the last `fit` and the updates since: fitting starts afresh. Instances can be pickled.
    """

    traits: Traits

    @property
    def stale(self) -> bool:
        """True when recent errors say that the fit no longer holds; the guard then fits again."""

    def fit(self, values: FloatArray) -> None:
        """Learn from a window of values >= 0, oldest first; NaN is an interval that was not measured."""

    def update(self, value: float) -> None:
        """Move on by one interval; NaN when it was not measured."""

    def predict(self, horizon: int) -> Prediction:
        """The next `horizon` intervals. Changes nothing."""


class ConstantModel:
    """The next intervals equal the last measured one, m_k = y(t) for every k >= 1; gaps change nothing.

    The optimum for a random walk, best for stable loads and long intervals. It also answers for the other
    methods while they warm up or when they fail.
    """

    def __init__(self) -> None:
        self.traits = Traits(name="constant", minimum_points=1, max_points=256)
        self._last = math.nan

    @property
    def stale(self) -> bool:
        """Always False: there is nothing to refit."""
        return False

    def fit(self, values: FloatArray) -> None:
        """Take the last measured value of the window.

        Raises ModelError: nothing in the window was measured.
        """
        measured = values[np.isfinite(values)]
        if measured.size == 0:
            raise ModelError("no measured value")
        self._last = float(measured[-1])

    def update(self, value: float) -> None:
        """Take `value`, unless it was not measured."""
        if math.isfinite(value):
            self._last = value

    def predict(self, horizon: int) -> Prediction:
        """The held value, `horizon` times."""
        return Prediction(mean=np.full(horizon, self._last))
