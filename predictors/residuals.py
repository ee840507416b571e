"""What a predictor's own forecasts have missed by, per step ahead.

After each observation the predictor's next `steps` means are noted. When an interval is measured, the note
made k intervals earlier yields one error k steps ahead: e_k = y(t) - m_k(t - k). The last `points` rows of
errors are kept, so quantiles follow the load's recent behaviour and memory is bounded.
"""

import numpy as np

from predictors.forecast import FloatArray, Residual

POINTS = 256
STEPS = 8


class ResidualTracker:
    """Keeps the last `POINTS` errors for each of the first `STEPS` steps ahead."""

    def __init__(self) -> None:
        self._expected = np.full((STEPS, STEPS), np.nan)
        self._errors = np.full((POINTS, STEPS), np.nan)
        self._rows = 0

    def measure(self, value: float) -> None:
        """Compare an interval with what was expected of it; NaN (not measured) yields no error."""
        if np.isfinite(value):
            with np.errstate(over="ignore"):
                errors = value - self._expected.diagonal()
            self._errors[self._rows % POINTS] = np.where(np.isfinite(errors), errors, np.nan)
            self._rows += 1

    def expect(self, mean: FloatArray | None) -> None:
        """Note the means of the next `STEPS` intervals, or that there is no forecast."""
        self._expected[1:] = self._expected[:-1]
        self._expected[0] = np.nan if mean is None else mean

    def around(self, mean: FloatArray) -> Residual:
        """The errors so far as a distribution around `mean`; independent of later observations."""
        return Residual(mean=mean, residuals=self._errors[: self._rows].copy())
