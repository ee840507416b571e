"""Forecasts of work: levels follow by their smoothing, the peak never falls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning.hindsight.backtest import PEAK, SMOOTHINGS, forecasts


def level(work, smoothing):
    return forecasts(np.asarray(work, float))[SMOOTHINGS.index(smoothing)]


def test_constant_work_is_forecast_exactly_by_all():
    assert forecasts(np.full(40, 2.5)) == pytest.approx(2.5)


def test_the_first_values_weigh_alike():
    assert level([1.0, 2.0, 6.0], 0.05) == pytest.approx([1.0, 1.5, 3.0])


def test_a_level_follows_by_its_smoothing():
    assert level([2.0] * 30 + [4.0, 4.0], 0.5)[-2:] == pytest.approx([3.0, 3.5])


def test_the_peak_is_the_largest_work_so_far():
    assert forecasts(np.array([1.0, 4.0, 2.0, 5.0, 0.0]))[PEAK].tolist() == [1.0, 4.0, 4.0, 5.0, 5.0]


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=80))
def test_forecasts_stay_within_what_was_seen_and_grow_with_the_work(work):
    said = forecasts(np.array(work))
    assert (said >= min(work) - 1e-9).all()
    assert (said <= max(work) + 1e-9).all()
    assert forecasts(2.0 * np.array(work)) == pytest.approx(2.0 * said)
