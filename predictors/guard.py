"""The behaviour that all predictors share, around one `Model` that does the forecasting.

| situation                                         | forecast                                             |
|---------------------------------------------------|------------------------------------------------------|
| no positive observation yet                       | mean and quantiles 0, source `empty`                 |
| fewer measured values than `minimum_points`       | constant, source `constant (warm-up: 3 of 5 points)` |
| the model failed (fit, update, predict, nonsense) | constant, source `constant (arima failed: reason)`   |
| otherwise                                         | the model's, source its name                         |

What enters the history is the table in `cleaning.py`; when a model is fitted is told in `schedule.py`.
Quantiles are the model's own where it has a distribution, else they come from the errors of its own past
forecasts (`residuals.py`), as do the constant's. Means and quantiles are never below 0.

`forecast` is pure: asking twice gives equal answers and changes no later one. The same observations give
the same forecasts; pickling keeps them. Memory is bounded by `max_points`, whatever the number of
observations.
"""

import numpy as np

from predictors.cleaning import Intake
from predictors.constant import ConstantModel
from predictors.errors import ArgumentError, ModelError
from predictors.forecast import FloatArray, Forecast, Normal
from predictors.model import Model
from predictors.options import whole
from predictors.residuals import STEPS, ResidualTracker
from predictors.schedule import Scheduled


class GuardedPredictor:
    """A `Predictor`: one model, its stand-in, its history, its errors and its counters."""

    def __init__(
        self, model: Model, *, minimum_points: int | None = None, max_points: int | None = None
    ) -> None:
        """Wrap `model`; the two options override what the model asks for in its traits.

        Raises:
            OptionError: `minimum_points` below 1, or `max_points` below `minimum_points`.
        """
        traits = model.traits
        minimum = traits.minimum_points if minimum_points is None else minimum_points
        minimum = whole(traits.name, "minimum_points", minimum, low=1)
        window = max(traits.max_points, minimum) if max_points is None else max_points
        self._minimum_points = minimum
        self._max_points = whole(traits.name, "max_points", window, low=minimum)
        self._name = traits.name
        self._intake = Intake()
        self._scheduled = Scheduled(model, minimum_points=minimum, max_points=self._max_points)
        self._errors = None if traits.lazy else ResidualTracker()
        self._stand_in = ConstantModel()
        self._stand_in_errors = ResidualTracker()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def missing(self) -> int:
        """Observations that were NaN or infinite."""
        return self._intake.missing

    @property
    def clipped(self) -> int:
        """Negative observations, taken as 0."""
        return self._intake.clipped

    @property
    def leading_zeros(self) -> int:
        """Zeros before the first positive observation, skipped."""
        return self._intake.leading_zeros

    @property
    def failures(self) -> int:
        """How often the model, or the library under it, failed."""
        return self._scheduled.journal.failures

    @property
    def last_failure(self) -> str | None:
        """Why it failed last, in one line."""
        return self._scheduled.journal.last_failure

    @property
    def library_warnings(self) -> int:
        """Warnings (convergence, numerics) that libraries raised under this predictor."""
        return self._scheduled.journal.library_warnings

    @property
    def last_warning(self) -> str | None:
        """The last of those warnings."""
        return self._scheduled.journal.last_warning

    def observe(self, value: float) -> None:
        """Take in the load of the interval that just ended; NaN or infinite when it was not measured.

        Raises:
            ArgumentError: `value` is not a number.
        """
        cleaned = self._intake.clean(value)
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
        """The next `horizon` intervals.

        Raises:
            ArgumentError: `horizon` is not a whole number >= 1.
        """
        if isinstance(horizon, bool) or not hasattr(horizon, "__index__") or horizon < 1:
            raise ArgumentError(f"forecast: horizon must be a whole number >= 1, got {horizon!r}")
        if not self._intake.started:
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
