"""Daily: the shape of the day before, at the present level."""

import math

import numpy as np
import pytest

import predictors
from predictors import OptionError

HOUR_S = 3600.0


def rising_at(hours, *, at=9, night=10.0, day=40.0):
    """A load per hour that is `day` from that hour to 20 o'clock."""
    of_day = np.arange(hours) % 24
    return np.where((of_day >= at) & (of_day < 20), day, night)


def fed(values, **options):
    predictor = predictors.make("daily", interval_s=HOUR_S, **options)
    predictors.warm_start(predictor, values)
    return predictor


def test_the_rise_of_yesterday_is_expected_at_its_time_and_from_the_level_of_today():
    busier = np.append(rising_at(24), 1.5 * rising_at(9))
    mean = fed(busier).forecast(12).mean
    assert mean.tolist() == pytest.approx([60.0] * 11 + [15.0])


def test_on_the_first_day_the_level_holds():
    assert fed(rising_at(20)).forecast(8).mean == pytest.approx([40.0] * 8)


def test_the_next_day_is_like_the_first_also_beyond_one_period():
    mean = fed(rising_at(30)).forecast(48).mean
    assert mean[:24] == pytest.approx(mean[24:])
    assert mean.max() > 3.5 * mean.min()


def test_a_day_before_that_was_not_measured_or_had_no_load_says_nothing():
    level = 10.0
    assert fed([level, *[math.nan] * 25, level]).forecast(5).mean == pytest.approx([level] * 5)
    assert fed([level, *[0.0] * 25, level]).forecast(5).mean == pytest.approx([level] * 5)


def test_a_load_that_came_from_next_to_nothing_is_not_multiplied_without_end():
    values = np.append(np.where(np.arange(24) < 9, 0.001, 40.0), np.full(8, 20.0))
    assert fed(values).forecast(6).mean.max() <= 5.0 * 20.0


def test_a_period_may_be_a_week():
    weekend = np.where(np.arange(7 * 24) // 24 >= 5, 5.0, 50.0)
    mean = fed(np.append(weekend, weekend[: 5 * 24 - 4]), period_s=7 * 24 * HOUR_S).forecast(8).mean
    assert mean[2] > 45.0
    assert mean[7] < 15.0


@pytest.mark.parametrize("options", [{"period_s": 60.0}, {"period_s": 1e12}, {"interval_s": 0.0}])
def test_a_period_that_is_no_whole_number_of_kept_intervals_is_refused(options):
    with pytest.raises(OptionError, match=r"daily: option '(period|interval)_s'"):
        predictors.make("daily", **{"interval_s": HOUR_S, **options})


def test_what_came_from_nothing_is_expected_as_it_was():
    """The service begins at 9; the day after, nothing comes before."""
    begun = np.concatenate([np.full(4, 40.0), np.zeros(17)])
    assert fed(begun).forecast(6).mean == pytest.approx([0.0, 0.0, 0.0, 40.0, 40.0, 40.0], abs=1e-3)
    assert fed(np.append(begun, [0.0] * 5)).forecast(4).mean == pytest.approx([0.0] * 4, abs=1e-3)


def test_weekly_is_daily_with_a_period_of_a_week():
    weekly = predictors.make("weekly", interval_s=HOUR_S)
    predictors.warm_start(
        weekly, np.append(np.where(np.arange(168) // 24 >= 5, 5.0, 50.0), [50.0] * (5 * 24 - 4))
    )
    forecast = weekly.forecast(8)
    assert forecast.source == "weekly"
    assert (forecast.mean[2] > 45.0, forecast.mean[7] < 15.0) == (True, True)
