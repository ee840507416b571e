"""Single requests in observations: made up where nobody recorded them, and never part of the reasons."""

import json

import numpy as np
import pytest

from headway.planning import PlanningError, Traffic, make_policy
from headway.planning.hindsight.learning import synthetic_traffic
from tests.planning.planning_cases import PROFILE, first, observed, settings

NAN = float("nan")


def traffic(**columns):
    given = {
        name: np.array([], float)
        for name in ("arrival_s", "input_tokens", "completed_input_tokens", "completed_output_tokens")
    }
    return Traffic(**(given | {name: np.array(values) for name, values in columns.items()}))


def columns(of: Traffic):
    return [of.arrival_s, of.input_tokens, of.completed_input_tokens, of.completed_output_tokens]


def test_made_up_traffic_has_the_observed_count_and_lengths_within_the_interval():
    seen = observed(now_s=1_000.0, interval_s=30.0, requests=500.0, isl_tokens=700.5, osl_tokens=90.0)
    made = synthetic_traffic(seen)
    assert len(made.arrival_s) == len(made.completed_output_tokens) == 500
    assert (np.diff(made.arrival_s) >= 0).all()
    assert 970.0 < made.arrival_s[0] < made.arrival_s[-1] <= 1_000.0
    assert set(made.input_tokens) == set(made.completed_input_tokens) == {700.5}
    assert set(made.completed_output_tokens) == {90.0}


def test_made_up_arrivals_are_as_bursty_as_a_poisson_process():
    made = synthetic_traffic(observed(now_s=1_000.0, interval_s=1_000.0, requests=20_000.0))
    gaps = np.diff(made.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)


def test_made_up_traffic_is_a_function_of_the_observation():
    one, same = synthetic_traffic(observed()), synthetic_traffic(observed())
    assert all(np.array_equal(a, b) for a, b in zip(columns(one), columns(same), strict=True))
    other = synthetic_traffic(observed(now_s=360.0))
    assert not np.allclose(one.arrival_s + 180.0, other.arrival_s)


@pytest.mark.parametrize(
    ("changes", "arrivals", "completions"),
    [
        ({"requests": 0.0, "isl_tokens": NAN, "osl_tokens": NAN}, 0, 0),
        ({"requests": 0.0, "isl_tokens": NAN, "osl_tokens": 80.0}, 0, 0),
        ({"requests": 2.6}, 3, 3),
        ({"requests": 7.0, "osl_tokens": NAN}, 7, 0),
        ({"now_s": 30.0, "interval_s": 60.0}, 3_600, 3_600),
    ],
)
def test_what_is_missing_is_left_out(changes, arrivals, completions):
    made = synthetic_traffic(observed(**changes))
    assert (len(made.arrival_s), len(made.completed_input_tokens)) == (arrivals, completions)


@pytest.mark.parametrize("changes", [{"requests": NAN}, {"isl_tokens": NAN}, {"requests": float("inf")}])
def test_nothing_is_made_up_of_nothing(changes):
    assert synthetic_traffic(observed(**changes)) is None


def test_traffic_cannot_be_changed_through_an_observation():
    arrivals = np.array([1.0, 2.0])
    made = Traffic(
        arrival_s=arrivals, input_tokens=[5, 6], completed_input_tokens=[], completed_output_tokens=[]
    )
    assert {column.dtype for column in columns(made)} == {np.dtype(np.float64)}
    with pytest.raises(ValueError, match="read-only"):
        made.arrival_s[0] = 0.0
    arrivals[0] = 0.5


@pytest.mark.parametrize(
    "bad",
    [
        {"arrival_s": [2.0, 1.0], "input_tokens": [1.0, 1.0]},
        {"arrival_s": [1.0]},
        {"completed_output_tokens": [1.0]},
        {"completed_cached_tokens": [1.0]},
        {"slo_class": [1.0]},
        {"slo_ttft_s": [1.0, 2.0]},
    ],
)
def test_columns_that_do_not_fit_are_refused(bad):
    with pytest.raises(PlanningError, match="traffic"):
        traffic(**bad)


@pytest.mark.parametrize("name", ["reference", "threshold", "static"])
def test_reasons_hold_the_counts_of_the_traffic_and_none_of_its_columns(name):
    policy = make_policy(name, settings(), PROFILE)
    seen = observed(requests=50_000.0)
    with_traffic = observed(requests=50_000.0, traffic=synthetic_traffic(seen))
    plain, reasons = first(policy, seen).reasons, first(policy, with_traffic).reasons
    assert plain["inputs"]["traffic"] is None
    assert reasons["inputs"]["traffic"] == {"arrivals": 50_000, "completions": 50_000}
    assert len(json.dumps(reasons)) < len(json.dumps(plain)) + 100
