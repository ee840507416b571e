"""What every predictor must do, whatever its method: a fifth one passes by having a row in the registry."""

import math
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import predictors
from predictors import ArgumentError, GuardedPredictor

LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)
LOADS = st.floats(min_value=-1e6, max_value=1e9) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0])

DEAR = ("arima", "prophet")
"""Of these `make test` has what is their own: tests/predictors/test_arima.py and test_prophet_model.py."""

pytestmark = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in DEAR)) for name in predictors.known()],
)


def wave(points: int, *, seed: int = 7) -> np.ndarray:
    """A load with a slow swing, a trend and noise, around 100."""
    ticks = np.arange(points)
    noise = np.random.default_rng(seed).normal(0.0, 4.0, points)
    return 100.0 + 0.2 * ticks + 20.0 * np.sin(ticks / 9.0) + noise


def fed(name: str, values, **options) -> GuardedPredictor:
    predictor = predictors.make(name, **options)
    predictors.warm_start(predictor, values)
    return predictor


def path(predictor: GuardedPredictor, horizon: int = 4) -> np.ndarray:
    """Mean and quantiles of one forecast, shape (1 + levels, horizon)."""
    forecast = predictor.forecast(horizon)
    return np.vstack([forecast.mean, *(forecast.quantile(q) for q in LEVELS)])


def check_sound(predictor: GuardedPredictor, horizon: int = 4) -> None:
    answer = path(predictor, horizon)
    assert answer.shape == (1 + len(LEVELS), horizon)
    assert np.isfinite(answer).all()
    assert (answer >= 0.0).all()
    assert (np.diff(answer[1:], axis=0) >= 0.0).all(), "quantiles must not fall as q rises"


def test_an_empty_history_is_forecast_as_zero(name):
    forecast = predictors.make(name).forecast(3)
    assert forecast.mean.tolist() == [0.0, 0.0, 0.0]
    assert forecast.quantile(0.99).tolist() == [0.0, 0.0, 0.0]
    assert forecast.source == "empty"


def test_with_enough_points_it_answers_itself(name):
    predictor = fed(name, wave(48))
    assert predictor.forecast().source == name
    assert predictor.journal.failures == 0
    assert predictor.journal.last_failure is None


def test_below_minimum_points_the_constant_answers(name):
    predictor = fed(name, [40.0, 50.0, 60.0], minimum_points=5)
    forecast = predictor.forecast(2)
    assert forecast.source == "constant (warm-up: 3 of 5 points)"
    assert forecast.mean.tolist() == [60.0, 60.0]


def test_gaps_do_not_count_as_points(name):
    predictor = fed(name, [40.0, math.nan, 60.0, math.nan], minimum_points=5)
    assert predictor.forecast().source == "constant (warm-up: 2 of 5 points)"


def test_leading_zeros_are_not_history(name):
    plain, padded = fed(name, wave(30)), fed(name, [0.0] * 12 + wave(30).tolist())
    assert padded.intake.leading_zeros == 12
    assert np.array_equal(path(plain), path(padded))
    assert fed(name, [0.0] * 30).forecast().source == "empty"


def test_later_zeros_are_real(name):
    predictor = fed(name, [80.0] * 10 + [0.0] * 30)
    assert predictor.intake.leading_zeros == 0
    assert predictor.forecast().mean[0] < 8.0


@pytest.mark.parametrize("unmeasured", [math.nan, math.inf, -math.inf])
def test_what_was_not_measured_is_a_gap(name, unmeasured):
    values = wave(48)
    values[[20, 21, 40]] = unmeasured
    predictor = fed(name, values)
    assert predictor.intake.missing == 3
    assert predictor.forecast().source == name
    assert predictor.forecast().mean[0] == pytest.approx(values[-1], rel=0.25)


def test_time_advances_over_a_gap(name):
    ramp = np.arange(10.0, 58.0)
    gaps = fed(name, [*ramp, math.nan, math.nan, math.nan])
    seen = fed(name, [*ramp, math.nan, math.nan, math.nan, ramp[-1] + 4.0])
    assert gaps.forecast().mean[0] >= 0.95 * ramp[-1]
    assert seen.forecast().mean[0] == pytest.approx(ramp[-1] + 4.0, rel=0.1)


def test_negative_observations_count_as_zero(name):
    assert np.array_equal(path(fed(name, [9.0, 8.0, -3.0])), path(fed(name, [9.0, 8.0, 0.0])))
    assert fed(name, [9.0, -1.0, -2.0]).intake.clipped == 2


@pytest.mark.parametrize("level", [1e-6, 5.0, 1e12])
def test_a_load_that_never_changes(name, level):
    predictor = fed(name, [level] * 32)
    check_sound(predictor)
    assert predictor.forecast(3).mean == pytest.approx([level] * 3, rel=1e-3)


def test_asking_changes_nothing(name):
    values = wave(40)
    asked, quiet = predictors.make(name), predictors.make(name)
    for value in values[:36]:
        asked.observe(value)
        quiet.observe(value)
    first = path(asked)
    asked.forecast(9)
    assert np.array_equal(first, path(asked))
    for value in values[36:]:
        asked.observe(value)
        asked.forecast(2)
        quiet.observe(value)
    assert np.array_equal(path(asked), path(quiet))


def test_the_same_observations_give_the_same_forecasts(name):
    np.random.seed(1)  # noqa: NPY002 - the global generator must neither be read nor moved
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    one = path(fed(name, wave(40)))
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    assert np.array_equal(one, path(fed(name, wave(40))))


def test_an_earlier_forecast_does_not_change(name):
    predictor = fed(name, wave(40))
    forecast = predictor.forecast(3)
    before = forecast.mean.copy(), forecast.quantile(0.9)
    predictors.warm_start(predictor, [500.0, 3.0])
    predictor.forecast(3)
    assert np.array_equal(before[0], forecast.mean)
    assert np.array_equal(before[1], forecast.quantile(0.9))
    with pytest.raises(ValueError, match="read-only"):
        forecast.mean[0] = 1.0


def test_pickling_keeps_forecasts_and_counters(name):
    original = fed(name, [-1.0, *wave(44), math.nan])
    original.forecast()
    copy = pickle.loads(pickle.dumps(original))
    assert np.array_equal(path(original), path(copy))
    assert (
        (copy.intake.missing, copy.intake.clipped)
        == (original.intake.missing, original.intake.clipped)
        == (1, 1)
    )
    for predictor in (original, copy):
        predictors.warm_start(predictor, wave(3, seed=8))
    assert np.array_equal(path(original), path(copy))


def test_memory_is_bounded(name):
    # A week of its intervals of 180 s has 3,360.
    predictor = fed(name, wave(4_000 if name == "weekly" else 1_000))
    predictor.forecast()
    early = len(pickle.dumps(predictor))
    predictors.warm_start(predictor, wave(3_000))
    predictor.forecast()
    late = len(pickle.dumps(predictor))
    assert late <= 1.1 * early
    assert late < 200_000


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf, "0.5", None])
def test_a_level_outside_the_open_interval_is_refused(name, q):
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        predictors.make(name).forecast().quantile(q)


@pytest.mark.parametrize("horizon", [0, -1, 1.5, "2", None, True])
def test_a_horizon_that_is_not_a_positive_whole_number_is_refused(name, horizon):
    with pytest.raises(ArgumentError, match="horizon"):
        predictors.make(name).forecast(horizon)


@pytest.mark.parametrize("value", ["many", "5", b"5", None, [1.0], True, 10**400])
def test_an_observation_that_is_not_a_number_is_refused(name, value):
    with pytest.raises(ArgumentError, match="observe"):
        predictors.make(name).observe(value)


def test_an_unknown_option_is_named_with_the_known_ones(name):
    with pytest.raises(predictors.OptionError, match=r"'minimum_pionts'; did you mean 'minimum_points'\?"):
        predictors.make(name, minimum_pionts=3)


@pytest.mark.parametrize(
    "options", [{"minimum_points": 0}, {"minimum_points": 2.5}, {"minimum_points": 9, "max_points": 8}]
)
def test_a_value_out_of_range_is_named(name, options):
    with pytest.raises(predictors.OptionError, match=rf"{name}: option '(minimum|max)_points'"):
        predictors.make(name, **options)


def test_quantiles_cover_about_their_share(name):
    """One step ahead over white noise: far from exact for so few ticks, but neither empty nor endless."""
    values = 200.0 + np.random.default_rng(3).normal(0.0, 20.0, 90)
    predictor = fed(name, values[:60])
    inside = 0
    for value in values[60:]:
        low, high = (predictor.forecast().quantile(q)[0] for q in (0.1, 0.9))
        inside += low <= value <= high
        predictor.observe(value)
    assert 16 <= inside <= 29


def test_library_warnings_do_not_escape(name):
    burst = np.where(np.arange(60) % 20 == 0, 1e7, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_sound(fed(name, burst))


@settings(max_examples=4)
@given(values=st.lists(LOADS, max_size=60), horizon=st.integers(1, 20))
def test_any_history_gives_a_sound_forecast(name, values, horizon):
    check_sound(fed(name, values), horizon)


@pytest.mark.parametrize("values", [[1e308] * 40, [1.0] * 20 + [1e300] * 20, [5e-324] * 40])
def test_numbers_at_the_edge_of_floats(name, values):
    check_sound(fed(name, values))
