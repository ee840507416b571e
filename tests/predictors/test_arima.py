import numpy as np
import pmdarima
import pytest

import predictors
from predictors.arima import without_lone_spike


def autoregression(points: int, *, weight: float = 0.8, seed: int = 1) -> np.ndarray:
    """y(t) - 200 = weight (y(t-1) - 200) + noise of standard deviation 10."""
    shocks = np.random.default_rng(seed).normal(0.0, 10.0, points)
    values, state = [], 0.0
    for shock in shocks:
        state = weight * state + shock
        values.append(200.0 + state)
    return np.array(values)


@pytest.fixture
def searches(monkeypatch):
    """Counts the calls of the order search, which still happens."""
    seen = []
    search = pmdarima.auto_arima

    def counted(values, **options):
        seen.append(len(values))
        return search(values, **options)

    monkeypatch.setattr(pmdarima, "auto_arima", counted)
    return seen


def test_the_order_is_searched_seldom(searches):
    predictor = predictors.make("arima")
    for value in autoregression(59):
        predictor.observe(value)
        predictor.forecast()
    assert {20, 40} <= set(searches), "as soon as it may, then every 20 ticks"
    assert len(searches) <= 4, "and seldom in between"


def test_a_broken_model_is_searched_early(searches):
    predictor = predictors.make("arima", search_every=100)
    predictors.warm_start(predictor, autoregression(40))
    predictor.forecast()
    predictors.warm_start(predictor, 5_000.0 + 100.0 * np.arange(6.0) % 3)
    predictor.forecast()
    assert len(searches) >= 2


@pytest.mark.parametrize("after", [0, 10])
def test_one_absurd_value_does_not_hide_the_load(after):
    predictor = predictors.make("arima")
    load = np.random.default_rng(2).poisson(10.0, 41 + after).astype(float)
    load[40] = 1e9
    predictors.warm_start(predictor, load)
    forecast = predictor.forecast()
    assert forecast.source == "arima"
    assert forecast.mean[0] == pytest.approx(10.0, abs=4.0)


def test_only_a_spike_that_is_alone_is_left_out():
    quiet = np.array([0.0, 1.0, np.nan, 2.0])
    assert np.isnan(without_lone_spike(np.append(quiet, 201.0))[-1])
    for kept in (np.append(quiet, 200.0), np.append(quiet, [900.0, 950.0]), np.array([0.0, 0.0, 5.0])):
        np.testing.assert_array_equal(without_lone_spike(kept), kept)


def test_it_finds_the_pull_to_the_mean_and_between_searches_the_state_moves_on():
    values = autoregression(200)
    predictor = predictors.make("arima")
    predictors.warm_start(predictor, values)
    forecast = predictor.forecast(30)
    assert forecast.mean[0] == pytest.approx(200.0 + 0.8 * (values[-1] - 200.0), abs=6.0)
    spread = forecast.quantile(0.8413) - forecast.mean
    assert spread[0] == pytest.approx(10.0, rel=0.2)
    assert spread[-1] > 1.2 * spread[0]
    assert abs(forecast.mean[-1] - 200.0) < 10.0
    predictor.observe(values[-1] + 25.0)
    assert predictor.forecast().mean[0] > forecast.mean[0] + 10.0


def test_log1p_scales_the_spread_with_the_level():
    growth = np.exp(np.linspace(2.0, 5.0, 80) + np.random.default_rng(2).normal(0.0, 0.1, 80))
    predictor = predictors.make("arima", log1p=True)
    predictors.warm_start(predictor, growth)
    forecast = predictor.forecast(5)
    assert forecast.source == "arima"
    above = forecast.quantile(0.9) - forecast.quantile(0.5)
    below = forecast.quantile(0.5) - forecast.quantile(0.1)
    assert (above > below).all()
    assert (forecast.mean > forecast.quantile(0.5)).all()


def test_a_failing_library_is_reported_with_its_reason(monkeypatch):
    def singular(values, **options):
        raise np.linalg.LinAlgError("Singular matrix\nmore")

    monkeypatch.setattr(pmdarima, "auto_arima", singular)
    predictor = predictors.make("arima")
    predictors.warm_start(predictor, autoregression(25))
    reason = "pmdarima auto_arima: LinAlgError: Singular matrix"
    assert predictor.forecast().source == f"constant (arima failed: {reason})"
    assert predictor.journal.last_failure == reason
    assert predictor.journal.failures == 6, "one at 20 points, and one at each point since"
