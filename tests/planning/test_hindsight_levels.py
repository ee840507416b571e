"""Forecasts of work: levels follow, trends run ahead, peaks and swings hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning.hindsight.levels import PREDICTORS, forecasts

ROWS = {(p.smoothing, p.trend, p.holds, p.memory): place for place, p in enumerate(PREDICTORS)}


def row(work, lead, *, smoothing=0.5, trend=0.0, holds="", memory=1):
    return forecasts(np.asarray(work, float), lead)[ROWS[smoothing, trend, holds, memory]]


@pytest.mark.parametrize("lead", [1, 3, 7])
def test_constant_work_is_forecast_exactly_by_all(lead):
    assert forecasts(np.full(40, 2.5), lead) == pytest.approx(2.5)


def test_the_first_values_weigh_alike():
    assert row([1.0, 2.0, 6.0], 1, smoothing=0.05) == pytest.approx([1.0, 1.5, 3.0])


def test_a_level_follows_by_its_smoothing():
    assert row([2.0] * 30 + [4.0, 4.0], 1)[-2:] == pytest.approx([3.0, 3.5])


def test_a_trend_runs_ahead_of_the_level_and_further_with_a_longer_lead():
    ramp = np.arange(1.0, 61.0)
    near, far = (row(ramp, lead, smoothing=0.4, trend=0.1)[-1] for lead in (1, 7))
    assert row(ramp, 1)[-1] < near < far
    assert 60.0 < far <= 67.0


def test_a_peak_is_held_for_its_memory():
    work = [1.0] * 20 + [9.0] + [1.0] * 30
    peak = row(work, 1, holds="peak", memory=10)
    assert peak[29] == row(work, 1)[20]
    assert peak[31] < peak[29]


def test_a_swing_falls_with_the_load():
    noise = np.tile([0.8, 1.2], 100)
    work = noise * np.linspace(10.0, 1.0, 200)
    peak, swing = (row(work, 1, holds=holds, memory=40)[-1] for holds in ("peak", "swing"))
    assert 1.0 < swing < 0.8 * peak


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=80), st.integers(1, 10))
def test_forecasts_are_finite_never_negative_and_grow_with_the_work(work, lead):
    said = forecasts(np.array(work), lead)
    assert np.isfinite(said).all()
    assert (said >= 0.0).all()
    assert forecasts(2.0 * np.array(work), lead) == pytest.approx(2.0 * said)
