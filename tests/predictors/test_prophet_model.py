import logging
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import predictors
from predictors.prophet_ import ProphetModel, predictive_std

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword")

WIGGLE = 50.0 + np.abs(np.random.default_rng(1).normal(0.0, 30.0, 60)).cumsum()


@pytest.fixture(scope="module")
def fitted() -> ProphetModel:
    model = ProphetModel(interval_s=60.0)
    model.fit(WIGGLE)
    return model


def test_the_closed_form_spread_is_that_of_prophet_s_own_samples():
    from prophet import Prophet

    ds = pd.Timestamp("2000-01-03") + pd.to_timedelta(60.0 * np.arange(90), unit="s")
    library = Prophet(uncertainty_samples=8_000, yearly_seasonality=False)
    library.fit(pd.DataFrame({"ds": ds[:60], "y": WIGGLE}), seed=1)
    library.stan_backend.cleanup()
    ahead = pd.DataFrame({"ds": ds[60:]})
    state = np.random.get_state()  # noqa: NPY002 - the library samples from the global generator
    np.random.seed(3)  # noqa: NPY002
    sampled = library.predictive_samples(ahead)["yhat"].std(axis=1)
    np.random.set_state(state)  # noqa: NPY002
    assert predictive_std(library, ahead["ds"]) == pytest.approx(sampled, rel=0.05)


def test_the_trend_is_carried_on(fitted):
    slope = np.diff(fitted.predict(10).mean)
    assert slope == pytest.approx(np.full(9, slope[0]), rel=1e-6)
    assert slope[0] == pytest.approx(24.0, rel=0.5)  # mean of |N(0, 30)|


def test_a_day_s_swing_is_learned_when_the_window_spans_two_days():
    hours = np.arange(24 * 4)
    swing = 100.0 + 50.0 * np.sin(2.0 * np.pi * hours / 24.0)
    predictor = predictors.make("prophet", interval_s=3_600.0)
    predictors.warm_start(predictor, swing[:-24])
    assert predictor.forecast(24).mean == pytest.approx(swing[-24:], abs=8.0)


def test_it_leaves_no_files_behind(fitted):
    import cmdstanpy

    fitted.fit(WIGGLE)
    left = [name for _, _, files in os.walk(Path(cmdstanpy._TMPDIR)) for name in files]
    assert [name for name in left if name.endswith(".csv")] == []


def test_only_its_own_logging_is_silenced_and_only_meanwhile(fitted, caplog):
    with caplog.at_level(logging.DEBUG):
        fitted.fit(WIGGLE)
        assert caplog.records == []
        logging.getLogger("cmdstanpy").warning("heard")
        logging.getLogger("headway").info("heard")
    assert [record.name for record in caplog.records][-1] == "headway"
    assert logging.getLogger("cmdstanpy").filters == []
    assert logging.getLogger("prophet").filters == []


def test_a_failing_back_end_is_reported_with_its_reason(monkeypatch):
    from prophet import Prophet

    def broken(self, frame, **options):
        raise RuntimeError("Error during optimization!")

    monkeypatch.setattr(Prophet, "fit", broken)
    predictor = predictors.make("prophet")
    predictors.warm_start(predictor, WIGGLE)
    reason = "prophet fit: RuntimeError: Error during optimization!"
    assert predictor.forecast().source == f"constant (prophet failed: {reason})"
    assert (predictor.journal.failures, predictor.journal.last_failure) == (1, reason)


def test_a_horizon_beyond_the_calendar_is_left_to_the_stand_in():
    predictor = predictors.make("prophet", interval_s=1e7)
    predictors.warm_start(predictor, WIGGLE[:10])
    assert predictor.forecast().source == "prophet"
    assert predictor.forecast(2_000_000).source.startswith("constant (prophet failed: prophet predict: ")
