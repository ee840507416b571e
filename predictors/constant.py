"""Constant: the next intervals equal the last measured one.

    m_k = y(t)        for every step k >= 1

The planner's plainest forecast (best for stable loads and long intervals), the optimum for a random walk, and
the one that answers for the others while they warm up or when they fail.
"""

import math

import numpy as np

from predictors.errors import ModelError
from predictors.forecast import FloatArray
from predictors.model import Prediction, Traits


class ConstantModel:
    """Holds the last measured value; through gaps too."""

    def __init__(self) -> None:
        self.traits = Traits(name="constant", minimum_points=1, max_points=256)
        self._last = math.nan

    @property
    def stale(self) -> bool:
        """Never: there is nothing to refit."""
        return False

    def fit(self, values: FloatArray) -> None:
        """Take the last measured value of the window.

        Raises:
            ModelError: nothing in the window was measured.
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
