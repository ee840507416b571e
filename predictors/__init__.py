"""Load forecasting: history → forecast. Numbers in, numbers out; knows nothing of the rest of Headway.

    predictor = predictors.make("kalman", minimum_points=5)
    predictor.observe(120.0)                  # once per adjustment interval; NaN when not measured
    forecast = predictor.forecast(horizon=3)
    forecast.mean                             # shape (3,), never below 0
    forecast.quantile(0.9)                    # likewise
    forecast.source                           # who answered, and why it was not the predictor itself

The methods are `constant`, `arima`, `kalman`, `prophet`, `daily` and `weekly`. Everything here is a function
of what was observed: no clock, no global random numbers. Heavy libraries load when the first model that needs
them is fitted.
"""

from predictors.checks import ArgumentError, ModelError, OptionError, PredictorError, UnknownPredictorError
from predictors.guard import GuardedPredictor
from predictors.model import Distribution, Forecast
from predictors.registry import Predictor, known, make, option_names, warm_start

__all__ = [
    "ArgumentError",
    "Distribution",
    "Forecast",
    "GuardedPredictor",
    "ModelError",
    "OptionError",
    "Predictor",
    "PredictorError",
    "UnknownPredictorError",
    "known",
    "make",
    "option_names",
    "warm_start",
]
