"""Daily: the present level, moved as the load of the day before moved from this time of day on.

    m_k(t) = l(t) · clip(c(t + k − P) / c(t − P), 1 / MOST_MOVED, MOST_MOVED)

with P the intervals of a period, a day unless it is set, and

    l(t)    the level: simple exponential smoothing (Brown 1956) over LEVEL_S
    c(i)    the mean of what was measured in the WINDOW_S around i, as far as it is known by t

Where nothing is known to have come in the WINDOW_S / 2 up to this time of the day before, what came later is
taken as it was:

    m_k(t) = max(l(t), y(t + k − P))        y(i) what was measured

It is the seasonal naive method (Hyndman & Athanasopoulos, Forecasting, 5.2) without its weak point: only the
shape of the day before is taken, not its level, so that a busier day is no error. A step k > P looks at the
same time of day. Until a period has passed, and where the day before was not measured, the level holds.
"""

import math

import numpy as np
import numpy.typing as npt

from predictors.checks import ModelError, number
from predictors.model import FloatArray, Prediction, Traits

LEVEL_S, WINDOW_S = 600.0, 1800.0
MOST_MOVED = 5.0
LONGEST_PERIOD = 100_000
"""Intervals in a period: more are not kept."""


class DailyModel:
    """Seasonal by shape. Options: `interval_s` between observations, `period_s` of the rhythm."""

    name = "daily"

    def __init__(self, *, interval_s: float = 180.0, period_s: float = 86_400.0) -> None:
        each_s = number(self.name, "interval_s", interval_s, above=0.0)
        whole_s = number(self.name, "period_s", period_s, above=each_s, up_to=LONGEST_PERIOD * each_s)
        self._period = round(whole_s / each_s)
        self._half = min(round(WINDOW_S / each_s / 2.0), self._period // 2)
        self._smoothing = min(1.0, each_s / LEVEL_S)
        self._kept = self._period + 2 * self._half + 1
        self.traits = Traits(name=self.name, minimum_points=5, max_points=self._kept)
        self._begin()

    def _begin(self) -> None:
        self._past = np.full(self._kept, np.nan)
        self._count = self._measured = 0
        self._level = math.nan

    @property
    def stale(self) -> bool:
        """Never: the level adapts at each observation."""
        return False

    def fit(self, values: FloatArray) -> None:
        """Run through the window. ModelError: nothing in it was measured."""
        self._begin()
        for value in values:
            self.update(float(value))
        if self._measured == 0:
            raise ModelError("no measured value")

    def update(self, value: float) -> None:
        """Keep `value`, and move the level unless it is NaN."""
        self._past[self._count % self._kept] = value
        self._count += 1
        if math.isfinite(value):
            self._measured += 1
            weight = max(self._smoothing, 1.0 / self._measured)
            known = self._level if self._measured > 1 else 0.0
            self._level = known + weight * (value - known)

    def predict(self, horizon: int) -> Prediction:
        """The level, moved as the day before. ModelError: there was no `fit`."""
        if self._measured == 0:
            raise ModelError("not fitted")
        steps = np.arange(horizon + 1)
        # At least a period ago, also where the horizon is longer than one.
        ago = self._period - steps % self._period
        shape = self._around(self._count - 1 - ago)
        until = self._known(self._count - 1 - self._period - np.arange(self._half + 1))
        if not np.nansum(until) > 0.0:
            return Prediction(mean=np.fmax(self._level, self._known(self._count - 1 - ago)[1:]))
        usable = np.isfinite(shape) & (shape > 0.0) & bool(shape[0] > 0.0)
        moved = np.ones(horizon + 1)
        np.divide(shape, shape[0], out=moved, where=usable)
        return Prediction(mean=self._level * np.clip(moved[1:], 1.0 / MOST_MOVED, MOST_MOVED))

    def _around(self, index: npt.NDArray[np.int64]) -> FloatArray:
        """The mean around each of these observations, numbered from 0; NaN where nothing is known."""
        values = self._known(index[:, None] + np.arange(-self._half, self._half + 1))
        measured = np.isfinite(values)
        counts = measured.sum(axis=1)
        means = np.full(len(index), np.nan)
        np.divide(np.where(measured, values, 0.0).sum(axis=1), counts, out=means, where=counts > 0)
        return means

    def _known(self, index: npt.NDArray[np.int64]) -> FloatArray:
        """These observations themselves; NaN where nothing is known."""
        known = (index >= max(0, self._count - self._kept)) & (index < self._count)
        return np.where(known, self._past[index % self._kept], np.nan)


class WeeklyModel(DailyModel):
    """The same where days of the week differ. Option: `interval_s`."""

    name = "weekly"

    def __init__(self, *, interval_s: float = 180.0) -> None:
        super().__init__(interval_s=interval_s, period_s=7 * 86_400.0)
