"""The forecaster over the real predictors: which values enter which series, and what it says of them."""

import math
import pickle
from functools import partial

import pytest
from planning_cases import NAN, observed

from headway.config import load_config
from headway.planning import PlanningError
from headway.planning.forecasting import (
    AHEAD,
    SERIES,
    make_forecaster,
    make_request_forecaster,
    with_forecast,
)
from headway.simulation.build import make_plan
from predictors import PredictorError

LOADS = partial(make_forecaster, "constant", None, 30.0)


def test_the_constant_forecast_is_the_last_interval():
    forecaster = make_forecaster("constant")
    forecaster.observe(observed(requests=10.0))
    forecaster.observe(observed(requests=30.0, isl_tokens=500.0, osl_tokens=70.0))
    forecast = forecaster.forecast()
    assert (forecast.requests, forecast.isl_tokens, forecast.osl_tokens) == (30.0, 500.0, 70.0)
    assert set(forecast.source) == set(SERIES)


def test_nothing_observed_is_nan_not_zero():
    forecast = make_forecaster("constant").forecast()
    assert math.isnan(forecast.requests)
    assert math.isnan(forecast.isl_tokens)
    assert set(forecast.source.values()) == {"no data"}


@pytest.mark.parametrize("length", [NAN, 0.0])
def test_zero_traffic_enters_the_requests_but_not_the_lengths(length):
    forecaster = make_forecaster("constant")
    forecaster.observe(observed(requests=20.0))
    forecaster.observe(observed(requests=0.0, isl_tokens=length, osl_tokens=length))
    forecast = forecaster.forecast()
    assert (forecast.requests, forecast.isl_tokens, forecast.osl_tokens) == (0.0, 1_000.0, 200.0)


def test_unmeasured_requests_alone_are_still_no_data():
    forecaster = make_forecaster("constant")
    forecaster.observe(observed(requests=NAN, osl_tokens=NAN))
    forecast = forecaster.forecast()
    assert math.isnan(forecast.requests)
    assert forecast.isl_tokens == 1_000.0
    assert math.isnan(forecast.osl_tokens)


def test_a_warm_start_equals_observing_the_series():
    warm, stepped = make_forecaster("kalman"), make_forecaster("kalman")
    series = ([10.0, 20.0, 0.0, 40.0], [100.0, 110.0, NAN, 120.0], [10.0, 11.0, NAN, 12.0])
    warm.warm_start(*series)
    for values in zip(*series, strict=True):
        stepped.observe_values(*values)
    assert warm.forecast() == stepped.forecast()
    assert warm.forecast() == warm.forecast()


def test_series_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        make_forecaster("constant").warm_start([1.0, 2.0], [1.0], [1.0, 2.0])


def test_the_source_says_who_answers_while_there_is_too_little_data():
    forecaster = make_forecaster("kalman", {"minimum_points": 5})
    forecaster.observe(observed())
    assert forecaster.forecast().source["requests"].startswith("constant")


def test_it_can_be_stored_and_goes_on_the_same():
    forecaster = make_forecaster("kalman")
    for requests in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0):
        forecaster.observe(observed(requests=requests))
    assert pickle.loads(pickle.dumps(forecaster)).forecast() == forecaster.forecast()


def test_an_unknown_predictor_or_option_is_named():
    with pytest.raises(PredictorError, match="oracle"):
        make_forecaster("oracle")
    with pytest.raises(PredictorError, match="minimum_point"):
        make_forecaster("constant", {"minimum_point": 3})


def test_requests_are_forecast_by_each_predictor_for_the_intervals_to_come():
    forecaster = make_request_forecaster(["constant", "kalman"], 30.0)
    for requests in (10.0, 20.0, 30.0):
        forecaster.observe(observed(requests=requests, interval_s=30.0))
    # Kalman answers from its fifth value on.
    assert {name: path.tolist() for name, path in forecaster.forecast().items()} == {
        "constant": [30.0] * AHEAD
    }
    for requests in (40.0, 50.0):
        forecaster.observe(observed(requests=requests, interval_s=30.0))
    said = with_forecast(observed(), forecaster.forecast()).ahead
    assert said["constant"][0] == 50.0
    assert said["kalman"][3] > 60.0


@pytest.mark.parametrize("make", [lambda: make_request_forecaster(["constant"], 30.0), LOADS])
def test_a_part_of_an_interval_joins_the_next_one_and_counts_by_its_rate(make):
    def next_requests(forecaster):
        forecast = forecaster.forecast()
        return forecast["constant"][0] if isinstance(forecast, dict) else forecast.requests

    forecaster, said = make(), []
    for requests, interval_s in (
        (30.0, 30.0),
        (1.0, 5.0),
        (NAN, 2.0),
        (27.0, 23.0),
        (80.0, 60.0),
        (2.0, 1.0),
    ):
        forecaster.observe(observed(requests=requests, interval_s=interval_s))
        said.append(next_requests(forecaster))
    # 28 in the 28 s of two parts that were measured; 80 in 60 s are 40 in 30 s.
    assert said == [30.0, 30.0, 30.0, 30.0, 40.0, 40.0]
    later = pickle.loads(pickle.dumps(forecaster))
    later.observe(observed(requests=57.0, interval_s=28.5))
    assert next_requests(later) == 60.0


def test_an_unknown_predictor_of_the_policy_is_refused_with_its_key():
    with pytest.raises(PlanningError, match=r"planner\.headway\.predictors: unknown predictor 'lstm'"):
        make_plan(load_config(None, {"planner.headway.predictors": ["lstm"]}))


def test_the_range_is_that_of_the_predictor_of_requests() -> None:
    forecaster = make_forecaster("constant")
    assert math.isnan(forecaster.ranged().requests_low)
    for requests in (90.0, 110.0, 95.0, 105.0, 100.0, 98.0, 103.0, 100.0):
        forecaster.observe_values(requests, 500.0, 50.0)
    ranged, plain = forecaster.ranged(), forecaster.forecast()
    assert (ranged.requests, ranged.isl_tokens, ranged.source) == (
        plain.requests, plain.isl_tokens, plain.source,
    )  # fmt: skip
    assert ranged.requests_low < ranged.requests < ranged.requests_high
    own = forecaster.predictors["requests"].forecast()
    assert ranged.requests_high == own.quantile(0.95)[0]
