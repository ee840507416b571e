"""What a predictor answers: a mean per step, and the quantiles around it.

A forecast of horizon h describes the next h intervals: index 0 is the interval after the last observation.
Values carry the unit of what was observed (requests per interval, tokens). Loads are never negative, so mean
and quantiles are clipped at 0 here, once, for every predictor.

Three ways to say how far reality may lie from the mean m_k at step k:

- `Normal`: m_k + s_k z(q), z the standard normal quantile, s_k the model's own standard error.
- `LogNormal`: expm1(u_k + s_k z(q)), for a model fitted to log1p of the load.
- `Residual`: m_k + the q-quantile of what past forecasts missed by, k steps ahead. Order statistics are
  placed at i / (n + 1) (Hyndman & Fan 1996, type 6), which is the split-conformal level: with n
  exchangeable errors the next one lies below the i-th smallest with probability i / (n + 1).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from predictors.errors import ArgumentError
from predictors.options import is_number

FloatArray = npt.NDArray[np.float64]


class Distribution(Protocol):
    """Where the load may fall, per step; not clipped."""

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
        shifts = {int(source): self._shift(int(source), q) for source in np.unique(sources)}
        shift = np.array([shifts[int(source)] for source in sources])
        return np.asarray(self.mean + np.sqrt(steps / sources) * shift)

    def _shift(self, step: int, q: float) -> float:
        column = self.residuals[:, step - 1]
        return float(np.quantile(column[np.isfinite(column)], q, method="weibull"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecast:
    """The next intervals as a predictor expects them.

    `mean` has shape (horizon,) and is read-only, finite and >= 0. `source` says who answered: the
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
        """How many intervals ahead the forecast reaches."""
        return int(self.mean.size)

    def quantile(self, q: float) -> FloatArray:
        """The load that a share `q` of outcomes stays below, shape (horizon,), >= 0, not decreasing in `q`.

        Raises:
            ArgumentError: `q` is not a number strictly between 0 and 1.
        """
        if not is_number(q) or not 0.0 < q < 1.0:
            raise ArgumentError(f"quantile: q must lie strictly between 0 and 1, got {q!r:.80}")
        return np.maximum(self.distribution.quantile(q), 0.0)
