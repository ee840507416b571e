import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.guard import POINTS, STEPS, ResidualTracker
from predictors.model import Forecast, LogNormal, Normal, Residual

NONE = np.nan


def test_normal_quantiles_are_the_textbook_ones():
    normal = Normal(mean=np.array([100.0, 50.0]), std=np.array([10.0, 0.0]))
    assert normal.quantile(0.975) == pytest.approx([119.59964, 50.0])
    assert normal.quantile(0.5) == pytest.approx([100.0, 50.0])


def test_log_normal_mean_lies_above_its_median():
    skewed = LogNormal(mean=np.array([2.0]), std=np.array([0.5]))
    draws = np.expm1(np.random.default_rng(1).normal(2.0, 0.5, 400_000))
    assert skewed.quantile(0.5) == pytest.approx(np.expm1([2.0]))
    assert skewed.expectation() == pytest.approx([draws.mean()], rel=5e-3)
    assert skewed.quantile(0.9) == pytest.approx([np.quantile(draws, 0.9)], rel=5e-3)


def test_mean_and_quantiles_are_clipped_at_zero():
    normal = Normal(mean=np.array([-5.0, 1.0]), std=np.array([1.0, 2.0]))
    forecast = Forecast(mean=normal.mean, source="test", distribution=normal)
    assert forecast.mean.tolist() == [0.0, 1.0]
    assert forecast.quantile(0.01).tolist() == [0.0, 0.0]
    assert forecast.horizon == 2


def test_without_errors_every_quantile_is_the_mean():
    blank = Residual(mean=np.array([7.0, 8.0]), residuals=np.full((0, 3), NONE))
    assert blank.quantile(0.99).tolist() == [7.0, 8.0]


def test_error_quantiles_sit_at_i_over_n_plus_one():
    residual = Residual(mean=np.array([100.0]), residuals=np.array([[-2.0], [0.0], [4.0]]))
    assert residual.quantile(0.25) == pytest.approx([98.0])
    assert residual.quantile(0.5) == pytest.approx([100.0])
    assert residual.quantile(0.75) == pytest.approx([104.0])
    assert residual.quantile(0.999) == pytest.approx([104.0]), "nothing beyond the largest error seen"


def test_steps_beyond_the_errors_grow_with_the_root():
    residuals = np.array([[1.0, 3.0], [1.0, 3.0]])
    residual = Residual(mean=np.zeros(8), residuals=residuals)
    assert residual.quantile(0.5) == pytest.approx([1.0, *(3.0 * np.sqrt(np.arange(2, 9) / 2.0))])


def test_a_step_with_few_errors_borrows_from_a_shorter_one():
    residuals = np.array([[2.0, NONE], [2.0, NONE], [2.0, 900.0]])
    assert Residual(mean=np.zeros(2), residuals=residuals).quantile(0.5) == pytest.approx([2.0, 2.0 * 2**0.5])


@given(
    st.lists(st.lists(st.floats(-1e9, 1e9) | st.just(NONE), min_size=3, max_size=3), max_size=9),
    st.integers(1, 7),
)
def test_residual_quantiles_never_fall(rows, horizon):
    residual = Residual(mean=np.zeros(horizon), residuals=np.array(rows).reshape(-1, 3))
    levels = np.array([residual.quantile(q) for q in (0.01, 0.2, 0.5, 0.8, 0.99)])
    assert (np.diff(levels, axis=0) >= 0.0).all()


def test_the_tracker_compares_each_step_with_what_was_expected_then():
    tracker = ResidualTracker()
    for now in range(STEPS + 2):
        tracker.measure(10.0 * now)
        tracker.expect(np.full(STEPS, 10.0 * now))  # the constant predictor on a ramp
    errors = tracker.around(np.zeros(1)).residuals
    assert errors[-1].tolist() == [10.0 * step for step in range(1, STEPS + 1)]
    assert np.isnan(errors[0]).all()


def test_the_tracker_skips_gaps_but_keeps_time():
    tracker = ResidualTracker()
    for value in (1.0, NONE, 5.0):
        tracker.measure(value)
        tracker.expect(None if np.isnan(value) else np.full(STEPS, value))
    errors = tracker.around(np.zeros(1)).residuals
    assert errors.shape == (2, STEPS)
    assert np.isnan(errors[1, 0])
    assert errors[1, 1] == 4.0


def test_the_tracker_keeps_the_latest_errors_only():
    tracker = ResidualTracker()
    for value in range(3 * POINTS):
        tracker.measure(float(value))
        tracker.expect(np.zeros(STEPS))
    errors = tracker.around(np.zeros(1)).residuals
    assert errors.shape == (POINTS, STEPS)
    assert errors[:, 0].min() == 2 * POINTS
