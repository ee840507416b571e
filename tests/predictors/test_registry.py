import subprocess
import sys

import pytest

import predictors
from predictors import OptionError, UnknownPredictorError


def test_the_known_names():
    assert predictors.known() == ("constant", "arima", "kalman", "prophet", "daily", "weekly")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(
        UnknownPredictorError,
        match="unknown predictor 'lstm'; known: constant, arima, kalman, prophet, daily, weekly",
    ):
        predictors.make("lstm")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("kalman", {"damping": 0.0}),
        ("kalman", {"damping": 1.1}),
        ("kalman", {"damping": "high"}),
        ("kalman", {"memory": 1}),
        ("arima", {"log1p": 1}),
        ("arima", {"search_every": 0}),
        ("arima", {"max_terms": True}),
        ("prophet", {"interval_s": 0}),
        ("prophet", {"interval_s": float("nan")}),
        ("prophet", {"interval_s": 1e12}),
        ("prophet", {"changepoint_range": 2}),
    ],
)
def test_a_bad_value_names_predictor_option_and_value(name, options):
    ((option, value),) = options.items()
    with pytest.raises(OptionError) as caught:
        predictors.make(name, **options)
    assert str(caught.value).startswith(f"{name}: option {option!r} must be ")
    assert str(caught.value).endswith(f"got {value!r}")


def test_an_option_of_another_predictor_is_refused():
    with pytest.raises(
        OptionError, match=r"constant: unknown option 'log1p' \(known: minimum_points, max_points\)"
    ):
        predictors.make("constant", log1p=True)


def test_raising_only_the_minimum_widens_the_window():
    predictor = predictors.make("constant", minimum_points=400)
    predictors.warm_start(predictor, [1.0] * 400)
    assert predictor.forecast().source == "constant"


def test_importing_and_making_load_nothing_heavy():
    script = (
        "import sys, predictors\n"
        "for name in predictors.known(): predictors.make(name).forecast()\n"
        "heavy = {'scipy', 'pandas', 'filterpy', 'statsmodels', 'pmdarima', 'prophet', 'cmdstanpy'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
