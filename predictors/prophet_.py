"""Prophet: a piecewise linear trend with seasons, fitted afresh whenever a forecast needs it.

    y(t) / s = g(t) + seasons(t) + e,   e ~ Normal(0, σ²),   s = max |y|,   t scaled so that the window is
    [0, 1]

(Taylor & Letham 2018; the library's maximum a posteriori fit.) Daily and weekly seasons join when the
window spans at least two of their periods; `interval_s` gives observations their time stamps, counted from
an arbitrary epoch.

Quantiles come without sampling. Prophet's predictive distribution lets the future slope change at rate C
(as many per unit of t as the window had change points) by Laplace steps of scale λ (the mean size of past
changes). A change at u moves the trend at t by its size times (t - u), so

    Var y(t) / s² = σ² + ∫₁ᵗ C 2λ² (t - u)² du = σ² + 2/3 C λ² (t - 1)³

and the q-quantile is taken from the normal of that variance: the same answer at every call, no random
numbers, and a fraction of the cost of the library's simulated intervals.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from predictors.checks import ModelError, library_call, number
from predictors.model import FloatArray, Normal, Prediction, Traits

if TYPE_CHECKING:
    import pandas as pd

EPOCH = "2000-01-03"  # a Monday at midnight; only differences matter
LONGEST_S = 1e7  # a window of such intervals ends before 2262, as far as nanosecond time stamps reach
SEED = 0
CHANGE_SCALE_FLOOR = 1e-8  # the library's own
LIBRARY_FAILURES = (ValueError, ArithmeticError, RuntimeError, OSError)
NOISY_LOGGERS = ("prophet", "prophet.models", "cmdstanpy")


class ProphetModel:
    """Prophet. Options: `interval_s` between observations, and three of the library's own."""

    def __init__(
        self,
        *,
        interval_s: float = 180.0,
        changepoint_prior_scale: float = 0.5,
        seasonality_prior_scale: float = 10.0,
        changepoint_range: float = 0.95,
    ) -> None:
        self.traits = Traits(name="prophet", minimum_points=10, max_points=200, refit_every=1, lazy=True)
        self._interval_s = number("prophet", "interval_s", interval_s, above=0.0, up_to=LONGEST_S)
        self._settings = {
            "changepoint_prior_scale": number(
                "prophet", "changepoint_prior_scale", changepoint_prior_scale, above=0.0
            ),
            "seasonality_prior_scale": number(
                "prophet", "seasonality_prior_scale", seasonality_prior_scale, above=0.0
            ),
            "changepoint_range": number(
                "prophet", "changepoint_range", changepoint_range, above=0.0, up_to=1.0
            ),
        }
        self._fitted: Any = None
        self._points = 0

    @property
    def stale(self) -> bool:
        """Never: each forecast is fitted to the latest window."""
        return False

    def fit(self, values: FloatArray) -> None:
        """Fit trend and seasons to the measured values of the window; gaps are left out.

        Raises ModelError: prophet or its Stan back end failed.
        """
        from prophet import Prophet

        measured = np.isfinite(values)
        with _quiet(), library_call("prophet fit", *LIBRARY_FAILURES):
            frame = self._frame(np.arange(values.size))
            frame["y"] = values
            model = Prophet(uncertainty_samples=0, yearly_seasonality=False, **self._settings)
            try:
                model.fit(frame[measured], seed=SEED)
            finally:
                model.stan_backend.cleanup()  # its temporary files would pile up, some at each tick
        model.stan_backend = model.stan_fit = None  # not needed to predict, heavy to pickle
        self._fitted, self._points = model, values.size

    def update(self, value: float) -> None:
        """Nothing is kept between fits: the guard fits at each forecast.

        Raises ModelError: always; an update means that the schedule was not the one asked for.
        """
        raise ModelError("prophet is fitted, not updated")

    def predict(self, horizon: int) -> Prediction:
        """Trend and seasons carried forward, and the variance of the theory above.

        Raises ModelError: prophet failed, or there was no `fit`.
        """
        if self._fitted is None:
            raise ModelError("not fitted")
        with _quiet(), library_call("prophet predict", *LIBRARY_FAILURES):
            ahead = self._frame(np.arange(self._points, self._points + horizon))
            mean = self._fitted.predict(ahead)["yhat"].to_numpy(dtype=np.float64)
            std = predictive_std(self._fitted, ahead["ds"])
        return Prediction(mean=mean, distribution=Normal(mean=mean, std=std))

    def _frame(self, index: npt.NDArray[np.int64]) -> "pd.DataFrame":
        import pandas as pd

        offsets = pd.to_timedelta(index * self._interval_s, unit="s")
        return pd.DataFrame({"ds": pd.Timestamp(EPOCH) + offsets})


def predictive_std(model: Any, ds: "pd.Series[pd.Timestamp]") -> FloatArray:  # noqa: ANN401
    """Spread of a fitted Prophet's predictive distribution at future instants `ds`, shape (len(ds),)."""
    ahead = np.maximum(((ds - model.start) / model.t_scale).to_numpy(dtype=np.float64) - 1.0, 0.0)
    noise = float(model.params["sigma_obs"].ravel()[0])
    change = float(np.abs(model.params["delta"]).mean()) + CHANGE_SCALE_FLOOR
    rate = len(model.changepoints_t)
    return np.asarray(np.sqrt(noise**2 + 2.0 / 3.0 * rate * change**2 * ahead**3) * model.y_scale)


def _drop(_record: logging.LogRecord) -> bool:
    return False


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from logging each fit, for the length of one call; failures are raised anyway.

    A filter, not a level: cmdstanpy sets its level when it is imported, which may be inside the call.
    """
    loggers = [logging.getLogger(name) for name in NOISY_LOGGERS]
    for logger in loggers:
        logger.addFilter(_drop)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_drop)
