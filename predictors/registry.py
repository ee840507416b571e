"""Names → predictors, imported when asked for. A new one is a file with a `Model` and a row here."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, Protocol

from predictors.checks import OptionError, UnknownPredictorError
from predictors.guard import GuardedPredictor
from predictors.model import Forecast, Model

MODELS = {
    "constant": "predictors.model:ConstantModel",
    "arima": "predictors.arima:ArimaModel",
    "kalman": "predictors.kalman:KalmanModel",
    "prophet": "predictors.prophet_:ProphetModel",
    "daily": "predictors.daily:DailyModel",
    "weekly": "predictors.daily:WeeklyModel",
}
COMMON_OPTIONS = ("minimum_points", "max_points")


class Predictor(Protocol):
    """History → forecast, one number per interval. The tables in `guard.py` list every odd case."""

    def observe(self, value: float) -> None:
        """Take in the load of the interval that just ended; NaN when it was not measured."""

    def forecast(self, horizon: int = 1) -> Forecast:
        """The next `horizon` intervals. Changes nothing."""


def known() -> tuple[str, ...]:
    """The names that `make` accepts."""
    return tuple(MODELS)


def make(name: str, **options: Any) -> GuardedPredictor:  # noqa: ANN401 - each model checks its own options
    """A new predictor without history.

    Args:
        name: one of `known()`.
        options: those of the model's constructor, and for every predictor `minimum_points` (measured values
            before it answers itself) and `max_points` (length of the window that it learns from).

    Raises:
        UnknownPredictorError: no such name; lists the known ones.
        OptionError: no such option, or a value that it cannot take.
    """
    build = _model_class(name)
    common = {option: options[option] for option in COMMON_OPTIONS if option in options}
    own = {option: value for option, value in options.items() if option not in common}
    _check_names(name, own, option_names(name))
    return GuardedPredictor(build(**own), **common)


def option_names(name: str) -> tuple[str, ...]:
    """The options that `make(name, ...)` accepts. UnknownPredictorError as there."""
    return (*inspect.signature(_model_class(name)).parameters, *COMMON_OPTIONS)


def _model_class(name: str) -> Callable[..., Model]:
    if name not in MODELS:
        raise UnknownPredictorError(f"unknown predictor {name!r}; known: {', '.join(known())}")
    module, _, attribute = MODELS[name].partition(":")
    found: Callable[..., Model] = getattr(import_module(module), attribute)
    return found


def _check_names(name: str, options: dict[str, Any], accepted: tuple[str, ...]) -> None:
    for option in options:
        if option not in accepted:
            near = get_close_matches(option, accepted, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise OptionError(f"{name}: unknown option {option!r}{hint} (known: {', '.join(accepted)})")


def warm_start(predictor: Predictor, values: Iterable[float]) -> None:
    """Observe `values` in order, oldest first, NaN where an interval was not measured.

    Constant and Kalman do the work of each observation; ARIMA and Prophet fit once, at the next forecast.
    Raises ArgumentError: a value is not a number.
    """
    for value in values:
        predictor.observe(value)
