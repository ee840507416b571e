"""The behaviour that all predictors share, around one `Model` that does the forecasting.

| situation                                         | forecast                                             |
|---------------------------------------------------|------------------------------------------------------|
| no positive observation yet                       | mean and quantiles 0, source `empty`                 |
| fewer measured values than `minimum_points`       | constant, source `constant (warm-up: 3 of 5 points)` |
| the model failed (fit, update, predict, nonsense) | constant, source `constant (arima failed: reason)`   |
| otherwise                                         | the model's, source its name                         |

`Intake` decides what enters the history, `schedule.py` when the model is fitted. Quantiles are the model's
own where it has a distribution. Otherwise they come from the errors of its own past forecasts
(`ResidualTracker`), as do the constant's. Means and quantiles are never below 0.

`forecast` is pure: asking twice gives equal answers and changes no later one. Memory is bounded by
`max_points`.
"""

import math

import numpy as np

from predictors.checks import ArgumentError, ModelError, is_number, whole
from predictors.model import ConstantModel, FloatArray, Forecast, Model, Normal, Residual
from predictors.schedule import Scheduled

GAP = math.nan


class Intake:
    """Cleans one observation at a time and counts what it had to change.

    | observation                             | result                                                    |
    |-----------------------------------------|-----------------------------------------------------------|
    | NaN or infinite, after the start        | a gap: time moves on, no value; counted in `missing`      |
    | NaN or infinite, before the start       | counted in `missing`, nothing else                        |
    | negative                                | taken as 0 (no load is negative); counted in `clipped`    |
    | 0 before the first positive observation | skipped (service not started); counted in `leading_zeros` |
    | 0 afterwards                            | a value like any other                                    |

    The series starts at its first positive observation.
    """

    def __init__(self) -> None:
        self.missing = 0
        self.clipped = 0
        self.leading_zeros = 0
        self.largest = 0.0

    @property
    def started(self) -> bool:
        """True once a positive value has been seen."""
        return self.largest > 0.0

    def clean(self, value: float) -> float | None:
        """The value >= 0 to keep, `GAP` for an interval without a measurement, or None to ignore it.

        Raises ArgumentError: `value` is not a number.
        """
        number = _as_float(value)
        if not math.isfinite(number):
            self.missing += 1
            return GAP if self.started else None
        if number < 0.0:
            self.clipped += 1
            number = 0.0
        if number == 0.0 and not self.started:
            self.leading_zeros += 1
            return None
        self.largest = max(self.largest, number)
        return number


def _as_float(value: float) -> float:
    if not is_number(value):
        raise ArgumentError(f"observe: value must be a number, got {value!r:.80}")
    try:
        return float(value)
    except OverflowError:
        raise ArgumentError("observe: value must be a number that a float can hold") from None


POINTS = 256
STEPS = 8


class ResidualTracker:
    """Keeps the last `POINTS` errors of forecasts for each of the first `STEPS` steps ahead.

    After each observation the predictor's next `STEPS` means are noted. When an interval is measured, the
    note made k intervals earlier yields one error k steps ahead: e_k = y(t) - m_k(t - k). So quantiles follow
    the load's recent behaviour and memory is bounded.
    """

    def __init__(self) -> None:
        self._expected = np.full((STEPS, STEPS), np.nan)
        self._errors = np.full((POINTS, STEPS), np.nan)
        self._rows = 0

    def measure(self, value: float) -> None:
        """Compare an interval with what was expected of it; NaN (not measured) yields no error."""
        if np.isfinite(value):
            # The diagonal holds, for each k, what was expected of this interval k intervals ago.
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


class GuardedPredictor:
    """A `Predictor`: one model, its stand-in, its history and its errors.

    `intake` counts the observations that were changed, `journal` the failures of the model and its library.
    """

    def __init__(
        self, model: Model, *, minimum_points: int | None = None, max_points: int | None = None
    ) -> None:
        """Wrap `model`; the two options override what the model asks for in its traits.

        Raises OptionError: `minimum_points` below 1, or `max_points` below `minimum_points`.
        """
        traits = model.traits
        minimum = traits.minimum_points if minimum_points is None else minimum_points
        minimum = whole(traits.name, "minimum_points", minimum, low=1)
        window = max(traits.max_points, minimum) if max_points is None else max_points
        self._minimum_points = minimum
        self._max_points = whole(traits.name, "max_points", window, low=minimum)
        self._name = traits.name
        self.intake = Intake()
        self._scheduled = Scheduled(model, minimum_points=minimum, max_points=self._max_points)
        self.journal = self._scheduled.journal
        self._errors = None if traits.lazy else ResidualTracker()
        self._stand_in = ConstantModel()
        self._stand_in_errors = ResidualTracker()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    def observe(self, value: float) -> None:
        """Take in the load of the interval that just ended; NaN or infinite when it was not measured.

        Raises ArgumentError: `value` is not a number.
        """
        cleaned = self.intake.clean(value)
        if cleaned is None:
            return
        self._stand_in_errors.measure(cleaned)
        self._stand_in.update(cleaned)
        self._stand_in_errors.expect(self._stand_in.predict(STEPS).mean)
        self._scheduled.append(cleaned)
        if self._errors is not None:
            self._errors.measure(cleaned)
            self._scheduled.catch_up()
            self._errors.expect(self._expected_path())

    def forecast(self, horizon: int = 1) -> Forecast:
        """The next `horizon` intervals. Raises ArgumentError: `horizon` is not a whole number >= 1."""
        if isinstance(horizon, bool) or not hasattr(horizon, "__index__") or horizon < 1:
            raise ArgumentError(f"forecast: horizon must be a whole number >= 1, got {horizon!r}")
        if not self.intake.started:
            nothing = np.zeros(horizon)
            return Forecast(mean=nothing, source="empty", distribution=Normal(mean=nothing, std=nothing))
        self._scheduled.catch_up()
        if self._scheduled.fitted:
            return self._ask_model(horizon)
        if self._scheduled.problem is not None:
            return self._ask_stand_in(horizon, f"{self._name} failed: {self._scheduled.problem}")
        points = f"{self._scheduled.measured} of {self._minimum_points} points"
        return self._ask_stand_in(horizon, f"warm-up: {points}")

    def _ask_model(self, horizon: int) -> Forecast:
        try:
            prediction = self._scheduled.predict(horizon)
        except ModelError as error:
            return self._ask_stand_in(horizon, f"{self._name} failed: {error}")
        distribution = prediction.distribution
        if distribution is None:
            assert self._errors is not None, f"{self._name}: a lazy model must give its own distribution"
            distribution = self._errors.around(prediction.mean)
        return Forecast(mean=prediction.mean, source=self._name, distribution=distribution)

    def _ask_stand_in(self, horizon: int, why: str) -> Forecast:
        mean = self._stand_in.predict(horizon).mean
        distribution = self._stand_in_errors.around(mean)
        return Forecast(mean=mean, source=f"constant ({why})", distribution=distribution)

    def _expected_path(self) -> FloatArray | None:
        if not self._scheduled.fitted:
            return None
        try:
            return self._scheduled.predict(STEPS).mean
        except ModelError:
            return None
