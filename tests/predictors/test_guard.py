"""The shared behaviour, on doubles: models told when to fail, which note what is asked of them."""

import math
import warnings

import numpy as np
import pytest

from predictors import GuardedPredictor, ModelError, warm_start
from predictors.arima import ArimaModel, fill_gaps
from predictors.kalman import KalmanModel
from predictors.model import Normal, Prediction, Traits
from predictors.prophet_ import ProphetModel

EVERY = 10


class ModelDouble:
    """Forecasts 7 and notes its calls as (what, observation number); fails and goes stale on request."""

    def __init__(self, *, lazy: bool = True, every: int = EVERY, minimum: int = 3) -> None:
        self.traits = Traits(
            name="double", minimum_points=minimum, max_points=50, refit_every=every, lazy=lazy
        )
        self.calls: list[tuple[str, float]] = []
        self.answer = 7.0
        self.fit_fails_at: set[float] = set()
        self.update_fails_at: set[float] = set()
        self.stale_at: set[float] = set()
        self.predict_fails = False
        self.stale = False

    def fit(self, values):
        self._note("fit", values[-1], self.fit_fails_at)

    def update(self, value):
        self._note("update", value, self.update_fails_at)
        self.stale = value in self.stale_at

    def predict(self, horizon):
        if self.predict_fails:
            raise ModelError("no answer")
        mean = np.full(horizon, self.answer)
        return Prediction(mean=mean, distribution=Normal(mean=mean, std=np.ones(horizon)))

    def _note(self, what, value, failing):
        self.calls.append((what, value))
        self.stale = False
        if value in failing:
            raise ModelError(f"{what} broke at {value:g}")


def observed(model, count: int, *, ask_at=()) -> GuardedPredictor:
    """A predictor over `model` that saw 1, 2, ... `count`, so values are observation numbers."""
    predictor = GuardedPredictor(model)
    for value in range(1, count + 1):
        predictor.observe(value)
        if value in ask_at:
            predictor.forecast()
    return predictor


def fits(model) -> list[float]:
    return [value for what, value in model.calls if what == "fit"]


def test_fits_at_the_minimum_then_by_schedule():
    model = ModelDouble()
    observed(model, 25, ask_at=range(26))
    assert fits(model) == [3, 10, 20]
    assert model.calls[-5:] == [("update", float(value)) for value in range(21, 26)]


def test_a_lazy_model_skips_what_no_longer_matters():
    model = ModelDouble()
    observed(model, 1_005).forecast()
    assert model.calls == [("fit", 1_000.0), *(("update", float(value)) for value in range(1_001, 1_006))]


def test_a_lazy_model_without_a_schedule_is_refused():
    with pytest.raises(ValueError, match="refit_every"):
        ModelDouble(every=0)


def test_an_eager_model_follows_each_observation():
    model = ModelDouble(lazy=False, every=0)
    observed(model, 6)
    assert model.calls == [("fit", 3.0), ("update", 4.0), ("update", 5.0), ("update", 6.0)]


def test_a_failing_fit_is_reported_counted_and_tried_again():
    model = ModelDouble()
    model.fit_fails_at = {10, 11}
    predictor = observed(model, 10)
    forecast = predictor.forecast(2)
    assert forecast.source == "constant (double failed: fit broke at 10)"
    assert forecast.mean.tolist() == [10.0, 10.0]
    assert (predictor.journal.failures, predictor.journal.last_failure) == (1, "fit broke at 10")
    predictor.observe(11)
    assert predictor.forecast().source == "constant (double failed: fit broke at 11)"
    predictor.observe(12)
    assert predictor.forecast().source == "double"
    assert (predictor.journal.failures, predictor.journal.last_failure) == (2, "fit broke at 11")


def test_a_failing_update_fits_at_once():
    model = ModelDouble()
    model.update_fails_at = {5}
    predictor = observed(model, 5)
    assert predictor.forecast().source == "double"
    assert fits(model) == [3, 5]
    assert predictor.journal.failures == 1


def test_a_stale_model_is_fitted_early_and_the_schedule_stands():
    model = ModelDouble()
    model.stale_at = {14}
    observed(model, 21, ask_at=range(22))
    assert fits(model) == [3, 10, 14, 20]


@pytest.mark.parametrize("count", [2, 9, 10, 13, 14, 15, 27])
def test_which_fits_matter_does_not_depend_on_who_asked(count):
    def last_fit(ask_at):
        model = ModelDouble()
        model.stale_at, model.fit_fails_at, model.update_fails_at = {14}, {10, 20}, {25}
        predictor = observed(model, count, ask_at=ask_at)
        return predictor.forecast().source, fits(model)[-1:], model.calls[-1:]

    assert last_fit(()) == last_fit(range(count)) == last_fit((4, 12))


def test_a_failing_prediction_counts_once_per_observation():
    model = ModelDouble()
    predictor = observed(model, 5)
    predictor.forecast()
    model.predict_fails = True
    assert predictor.forecast().source == predictor.forecast().source == "constant (double failed: no answer)"
    assert predictor.journal.failures == 1
    model.predict_fails = False
    assert predictor.forecast().source == "double"


@pytest.mark.parametrize(
    ("answer", "reason"), [(math.nan, "not finite"), (math.inf, "not finite"), (51.0, "runs away")]
)
def test_nonsense_is_a_failure(answer, reason):
    model = ModelDouble()
    model.answer = answer
    predictor = observed(model, 5)
    forecast = predictor.forecast()
    assert forecast.source.startswith("constant (double failed: the forecast")
    assert reason in forecast.source
    assert forecast.mean.tolist() == [5.0]


def test_a_negative_forecast_is_zero_not_a_failure():
    model = ModelDouble()
    model.answer = -30.0
    forecast = observed(model, 5).forecast(2)
    assert forecast.source == "double"
    assert forecast.mean.tolist() == [0.0, 0.0]


def test_errors_that_are_not_failures_of_the_model_are_not_hidden():
    class Broken(ModelDouble):
        def fit(self, values):
            raise KeyError("a mistake in our own code")

    with pytest.raises(KeyError):
        observed(Broken(), 4).forecast()


def test_library_warnings_are_counted_and_kept():
    class Complaining(ModelDouble):
        def update(self, value):
            warnings.warn("slow to converge\nsecond line", UserWarning, stacklevel=1)

    predictor = observed(Complaining(), 6)
    predictor.forecast()
    assert predictor.journal.library_warnings == 3
    assert predictor.journal.last_warning == "UserWarning: slow to converge"


def test_an_outage_longer_than_the_window_returns_to_warm_up():
    predictor = observed(ModelDouble(), 20)
    warm_start(predictor, [math.nan] * 60)
    forecast = predictor.forecast()
    assert forecast.source == "constant (warm-up: 0 of 3 points)"
    assert forecast.mean.tolist() == [20.0]
    assert predictor.intake.missing == 60


def test_warm_up_quantiles_come_from_the_stand_in_s_errors():
    predictor = GuardedPredictor(ModelDouble(minimum=9))
    warm_start(predictor, [10.0, 12.0, 10.0, 12.0, 10.0])
    forecast = predictor.forecast()
    assert forecast.quantile(0.8) == pytest.approx([12.0])
    assert forecast.quantile(0.2) == pytest.approx([8.0])


def test_gaps_are_filled_by_straight_lines():
    values = np.array([math.nan, 2.0, math.nan, math.nan, 8.0, math.nan])
    assert fill_gaps(values).tolist() == [2.0, 2.0, 4.0, 6.0, 8.0, 8.0]


@pytest.mark.parametrize("model", [ArimaModel(), KalmanModel(), ProphetModel()])
def test_a_model_that_was_never_fitted_says_so(model):
    with pytest.raises(ModelError, match="not fitted"):
        model.predict(1)
