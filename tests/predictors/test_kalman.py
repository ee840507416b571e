import math

import numpy as np
import pytest

import predictors


def fed(values, **options):
    predictor = predictors.make("kalman", **options)
    predictors.warm_start(predictor, values)
    return predictor


def one_step_error(name: str, values) -> float:
    """Mean absolute one-step error over the last two thirds."""
    predictor = predictors.make(name)
    errors = []
    for value in values:
        errors.append(abs(value - predictor.forecast().mean[0]))
        predictor.observe(value)
    return float(np.mean(errors[len(errors) // 3 :]))


def test_it_smooths_noise_that_the_constant_repeats():
    values = 100.0 + np.random.default_rng(1).normal(0.0, 10.0, 240)
    assert one_step_error("kalman", values) < 0.85 * one_step_error("constant", values)


def test_it_is_ahead_of_the_constant_on_a_ramp():
    ramp = np.arange(10.0, 130.0)
    assert one_step_error("kalman", ramp) < 0.5 * one_step_error("constant", ramp)


def test_it_hardly_trails_the_constant_on_a_random_walk():
    walk = 1_000.0 + np.random.default_rng(2).normal(0.0, 10.0, 240).cumsum()
    assert one_step_error("kalman", walk) < 1.1 * one_step_error("constant", walk)


def test_it_follows_a_step_within_a_few_ticks():
    predictor = fed([*(100.0 + np.random.default_rng(3).normal(0.0, 3.0, 60)), 300.0, 302.0, 298.0, 301.0])
    assert predictor.forecast().mean[0] == pytest.approx(300.0, rel=0.08)


def test_no_scale_enters():
    values = 50.0 + np.random.default_rng(4).normal(0.0, 5.0, 80)
    plain, scaled = fed(values).forecast(6), fed(values * 4096.0).forecast(6)
    assert scaled.mean == pytest.approx(plain.mean * 4096.0, rel=1e-9)
    assert scaled.quantile(0.9) == pytest.approx(plain.quantile(0.9) * 4096.0, rel=1e-9)


def test_the_slope_is_damped():
    forecast = fed(np.arange(10.0, 60.0), damping=0.8).forecast(60)
    growth = np.diff(forecast.mean)
    assert (growth > 0.0).all()
    assert growth[1:] == pytest.approx(0.8 * growth[:-1], rel=1e-6)


def test_damping_one_carries_the_slope_on():
    forecast = fed(np.arange(10.0, 60.0), damping=1.0).forecast(20)
    assert forecast.mean == pytest.approx(np.arange(60.0, 80.0), rel=0.01)


def test_a_gap_moves_the_level_along_the_slope():
    ramp = np.arange(10.0, 60.0)
    seen, gap = fed(ramp), fed([*ramp, math.nan])
    assert gap.forecast().mean[0] == pytest.approx(seen.forecast(2).mean[1])


def test_quantiles_widen_with_the_horizon_on_a_random_walk():
    walk = 1_000.0 + np.random.default_rng(5).normal(0.0, 10.0, 300).cumsum()
    forecast = fed(walk).forecast(12)
    spread = forecast.quantile(0.9) - forecast.quantile(0.1)
    assert 18.0 < spread[0] < 34.0  # 2 x 1.28 x 10 = 25.6 for a perfect model
    assert spread[7] > 2.0 * spread[0]
    assert spread[11] == pytest.approx(spread[7] * math.sqrt(12 / 8))
