"""Kalman: a damped local linear trend, filtered; its noise ratios are learned while it runs.

State: level l and slope b of the load, per interval (Harvey 1989; damping after Gardner & McKenzie 1985):

    l(t) = l(t-1) + d b(t-1) + noise of variance a r        y(t) = l(t) + noise of variance r
    b(t) = d b(t-1)          + noise of variance c a r
    m_k  = l + b (d + d² + ... + d^k)

d is `damping`, below 1, so a burst's slope is not carried on for ever. r cancels out of the gain; only the
ratios a and c matter, and which suit depends on the load. A dozen pairs (`RATIOS`) therefore run side by
side as one block-diagonal filter with r = 1 (the blocks do not mix), and the forecast is their average
weighted by likelihood (static multiple-model estimation; Bar-Shalom, Li & Kirubarajan 2001, 11.6). With r
estimated from the innovations v of variance r S, the log-likelihood of a pair up to a constant is

    -1/2 (n log(V / n) + L),   n = Σ w,  V = Σ w v² / S,  L = Σ w log S,  w = (1 - 1/memory)^age

where the age-discount lets the ratios follow a load that changes its nature. No scale enters anywhere: ten
times the load is ten times the forecast. A gap is a prediction step without a correction.
"""

import math

import numpy as np

from predictors.checks import ModelError, library_call, number, whole
from predictors.model import FloatArray, Prediction, Traits

RATIOS = np.array([(a, c) for a in (0.01, 0.1, 1.0, 10.0) for c in (0.0, 0.03, 0.3)])
TINY = float(np.finfo(np.float64).tiny)


class KalmanModel:
    """Local linear trend on filterpy. Options: `damping` in (0, 1], `memory` in points >= 2."""

    def __init__(self, *, damping: float = 0.9, memory: int = 100) -> None:
        self.traits = Traits(name="kalman", minimum_points=5, max_points=256)
        self._damping = number("kalman", "damping", damping, above=0.0, up_to=1.0)
        self._keep = 1.0 - 1.0 / whole("kalman", "memory", memory, low=2)
        self._bank: _Bank | None = None

    @property
    def stale(self) -> bool:
        """Never: the filter adapts at each observation."""
        return False

    def fit(self, values: FloatArray) -> None:
        """Start at the first measured value of the window and run through the rest.

        Raises ModelError: nothing was measured, or the filter broke down.
        """
        measured = np.flatnonzero(np.isfinite(values))
        if measured.size == 0:
            raise ModelError("no measured value")
        first = int(measured[0])
        self._bank = _Bank(float(values[first]), self._damping, self._keep)
        for value in values[first + 1 :]:
            self.update(float(value))

    def update(self, value: float) -> None:
        """One prediction step, and a correction if `value` was measured.

        Raises ModelError: the filter broke down, or there was no `fit`.
        """
        self._fitted().step(value)

    def predict(self, horizon: int) -> Prediction:
        """Level plus damped slope, averaged over the noise ratios. Raises ModelError: there was no `fit`."""
        return Prediction(mean=self._fitted().mean(horizon))

    def _fitted(self) -> "_Bank":
        if self._bank is None:
            raise ModelError("not fitted")
        return self._bank


class _Bank:
    """The candidates' filters stacked into one, and the discounted likelihood of each."""

    def __init__(self, level: float, damping: float, keep: float) -> None:
        from filterpy.kalman import KalmanFilter

        count = len(RATIOS)
        self._damping, self._keep = damping, keep
        self._filter = KalmanFilter(dim_x=2 * count, dim_z=count)
        # One block of two states per pair of ratios; blocks do not mix, so one filter runs them all.
        self._filter.F = np.kron(np.eye(count), [[1.0, damping], [0.0, damping]])
        self._filter.H = np.kron(np.eye(count), [[1.0, 0.0]])
        self._filter.Q = np.diag(np.column_stack([RATIOS[:, 0], RATIOS.prod(axis=1)]).ravel())
        self._filter.x = np.tile([[level], [0.0]], (count, 1))
        self._points = 0.0
        self._squares = np.zeros(count)
        self._logs = np.zeros(count)

    def step(self, value: float) -> None:
        """Advance one interval; NaN only predicts."""
        with library_call("filterpy", np.linalg.LinAlgError, FloatingPointError, ValueError):
            self._filter.predict()
            if math.isfinite(value):
                self._filter.update(np.full((len(RATIOS), 1), value))
                self._learn()

    def mean(self, horizon: int) -> FloatArray:
        """Weighted mean of the candidates' paths, shape (horizon,)."""
        level, slope = self._weights() @ self._filter.x.reshape(-1, 2)
        return np.asarray(level + slope * np.cumsum(self._damping ** np.arange(1, horizon + 1)))

    def _learn(self) -> None:
        variance = np.diag(self._filter.S)
        innovation = self._filter.y[:, 0]
        self._points = self._keep * self._points + 1.0
        self._squares = self._keep * self._squares + innovation**2 / variance
        self._logs = self._keep * self._logs + np.log(variance)

    def _weights(self) -> FloatArray:
        points = max(self._points, 1.0)
        score = -0.5 * (points * np.log(self._squares / points + TINY) + self._logs)
        weight = np.exp(score - score.max())
        return np.asarray(weight / weight.sum())
