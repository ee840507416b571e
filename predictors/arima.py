"""ARIMA: the order is searched seldom, the state follows each observation.

    (1 - φ1 B - ... - φp B^p) (1 - B)^d y(t) = c + (1 + θ1 B + ... + θq B^q) e(t)

`fit` searches (p, d, q) and the constant by pmdarima's stepwise auto-ARIMA (Hyndman & Khandakar 2008: KPSS
for d, then the AIC corrected for small samples), without a season: a seasonal search costs far more than a
tick may. Between fits the parameters stand and the values observed since are filtered through the model's
state space form (statsmodels SARIMAX; Durbin & Koopman 2012), a few milliseconds a tick. The guard calls
`fit` every `search_every` observations, and earlier when the model is stale: when at least `RECENT` values
came since, and the mean square of the last `RECENT` standardised one-step errors is above `STALE` (it is 1
on average while the model holds).

Values are divided by the window's standard deviation before fitting. With `log1p` the model is fitted to
log(1 + y), for loads whose swings grow with their level; its mean is then the expectation of the log-normal,
not exp of the log's mean, which would forecast too little on average. A window without variation is taken as
a random walk (of 0.1 % of its level a tick), not searched. A gap takes the straight line between its
neighbours; at the end of the window, the last measured value.

A lone spike, the one value of the window above `SPIKE` times all others, is taken as a gap: least squares
would forecast 0 for as long as it stays in the window. An `update` above that bound asks for a fit at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from predictors.checks import ModelError, flag, library_call, whole
from predictors.model import FloatArray, LogNormal, Normal, Prediction, Traits

RECENT = 5
STALE = 6.0
SPIKE = 100.0
FLAT = 1e-9  # standard deviation over largest value, below which a window is flat
FLAT_VARIANCE = 1e-6  # of a flat window, in units of its level squared
LIBRARY_FAILURES = (ValueError, ArithmeticError, RuntimeError, IndexError)  # LinAlgError is a ValueError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittedArima:
    """Order and parameters of a fit, as plain numbers; the library's model is rebuilt from them."""

    order: tuple[int, int, int]
    intercept: bool
    parameters: FloatArray
    scale: float
    points: int


@cache
def _thread_pools() -> Any:  # noqa: ANN401 - threadpoolctl is not typed
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@contextmanager
def _statsmodels(action: str) -> Iterator[None]:
    """A call into the libraries: failures translated, BLAS on one thread.

    The state space matrices have a few rows; waking threads to multiply them costs ten times the work.
    """
    with library_call(action, *LIBRARY_FAILURES), _thread_pools().limit(limits=1, user_api="blas"):
        yield


def without_lone_spike(values: FloatArray) -> FloatArray:
    """`values` (n,), its largest one NaN where it is above `SPIKE` times the next largest."""
    ranked = np.sort(values[np.isfinite(values)])
    if ranked.size < 2 or not 0.0 < SPIKE * ranked[-2] < ranked[-1]:
        return values
    return np.where(values == ranked[-1], np.nan, values)


def fill_gaps(values: FloatArray) -> FloatArray:
    """Copy of `values` (n,) without NaN, for models that need equal spacing.

    A gap takes the straight line between its measured neighbours; one at the end takes the last measured
    value. At least one value must be finite.
    """
    index = np.arange(values.size)
    measured = np.isfinite(values)
    return np.interp(index, index[measured], values[measured])


class ArimaModel:
    """Auto-ARIMA. Options: `log1p`, `search_every` (observations), `max_terms` (limit of p and of q)."""

    def __init__(self, *, log1p: bool = False, search_every: int = 20, max_terms: int = 2) -> None:
        every = whole("arima", "search_every", search_every, low=1)
        self.traits = Traits(name="arima", minimum_points=20, max_points=200, refit_every=every, lazy=True)
        self._log1p = flag("arima", "log1p", log1p)
        self._max_terms = whole("arima", "max_terms", max_terms, low=1)
        self._found: FittedArima | None = None
        self._values: list[float] = []
        self._spike = np.inf
        self._stale = False
        self._filtered: Any = None  # statsmodels' results, rebuilt on demand; too heavy to pickle

    @property
    def stale(self) -> bool:
        """True if the errors since the last search are too large for the model found then."""
        return self._stale

    def fit(self, values: FloatArray) -> None:
        """Search order and parameters on the window. Raises ModelError: pmdarima or statsmodels failed."""
        filled = fill_gaps(without_lone_spike(values))
        transformed = np.log1p(filled) if self._log1p else filled
        largest = float(transformed.max()) or 1.0
        relative = float((transformed / largest).std())
        if relative < FLAT:
            # A random walk: for a flat window auto-ARIMA would return white noise around 0.
            scale, variance = largest, np.array([FLAT_VARIANCE])
            self._found = FittedArima(
                order=(0, 1, 0), intercept=False, parameters=variance, scale=scale, points=values.size
            )
        else:
            scale = largest * relative
            self._found = self._search(transformed / scale, scale)
        self._values = list(transformed / scale)
        self._stale, self._filtered = False, None
        self._spike = SPIKE * float(filled.max())

    def update(self, value: float) -> None:
        """Filter one more value through the model found last, and judge whether it still holds.

        Raises ModelError: statsmodels failed, or there was no `fit`.
        """
        found = self._last_found()
        observed = np.log1p(value) if self._log1p else value
        self._values.append(float(observed / found.scale) if np.isfinite(value) else self._values[-1])
        self._filtered = None
        if len(self._values) - found.points >= RECENT:
            errors = self._filter(found).standardized_forecasts_error[0, -RECENT:]
            self._stale = bool(np.mean(errors**2) > STALE)
        self._stale = self._stale or value > self._spike

    def predict(self, horizon: int) -> Prediction:
        """Means and standard errors from the state space form.

        Raises ModelError: statsmodels failed, or there was no `fit`.
        """
        found = self._last_found()
        with _statsmodels("statsmodels forecast"):
            ahead = self._filter(found).get_forecast(horizon)
            mean = np.asarray(ahead.predicted_mean, dtype=np.float64) * found.scale
            std = np.asarray(ahead.se_mean, dtype=np.float64) * found.scale
        if self._log1p:
            skewed = LogNormal(mean=mean, std=std)
            return Prediction(mean=skewed.expectation(), distribution=skewed)
        return Prediction(mean=mean, distribution=Normal(mean=mean, std=std))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_filtered": None}

    def _search(self, values: FloatArray, scale: float) -> FittedArima:
        from pmdarima import auto_arima

        with _statsmodels("pmdarima auto_arima"):
            best = auto_arima(
                values,
                seasonal=False,
                start_p=1,
                start_q=1,
                max_p=self._max_terms,
                max_q=self._max_terms,
                information_criterion="aicc",
                cov_type="none",
                error_action="ignore",
                suppress_warnings=False,
            )
        return FittedArima(
            order=best.order,
            intercept=bool(best.with_intercept),
            parameters=np.asarray(best.params(), dtype=np.float64),
            scale=scale,
            points=values.size,
        )

    def _filter(self, found: FittedArima) -> Any:  # noqa: ANN401 - statsmodels is not typed
        if self._filtered is None:
            from statsmodels.tsa.statespace.sarimax import SARIMAX

            with _statsmodels("statsmodels filter"):
                trend = "c" if found.intercept else None
                model = SARIMAX(np.array(self._values), order=found.order, trend=trend)
                self._filtered = model.filter(found.parameters)
        return self._filtered

    def _last_found(self) -> FittedArima:
        if self._found is None:
            raise ModelError("not fitted")
        return self._found
