"""The forecaster and the tick that it has come to; stored as it is, so that a restart need not fit everything
again.

    restored, if it was made from the same settings        else: new, warmed up with the configured trace
    then every interval of the history that it has not seen

The history stays what counts: a stored forecaster that cannot be read, or is too large to store, costs time,
no data.
"""

import logging
import pickle
from dataclasses import dataclass

from actors.forecasts.history import History
from actors.store import Store
from headway.config import HeadwayConfig
from headway.planning import LoadForecast, decision_interval_s
from headway.planning.forecasting import LoadForecaster, make_forecaster
from headway.workload import TraceOptions, interval_series, open_trace

logger = logging.getLogger(__name__)

KEY = "predictor/models"
MOST_BYTES = 8_000_000

UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    ImportError,
    TypeError,
    EOFError,
    ValueError,
    IndexError,
)


@dataclass(slots=True, kw_only=True)
class Models:
    """A forecaster, what it was made from, and the newest tick that it has seen."""

    made_from: str
    forecaster: LoadForecaster
    tick: int | None = None
    warmed_up: int = 0

    def catch_up(self, history: History) -> bool:
        """Show the forecaster what it has not seen yet; whether there was anything."""
        fresh = history.since(self.tick)
        for interval in fresh:
            self.forecaster.observe_values(*interval.values)
            self.tick = interval.tick
        return bool(fresh)

    def forecast(self) -> LoadForecast:
        """The next interval."""
        return self.forecaster.forecast()


def restore_models(config: HeadwayConfig, store: Store) -> Models:
    """The stored models if they fit the settings, else new ones (PredictorError or TraceError)."""
    made_from = _fingerprint(config)
    data = store.get(KEY)
    if data is not None:
        try:
            stored = pickle.loads(data)
            if isinstance(stored, Models) and stored.made_from == made_from:
                return stored
        except UNREADABLE as error:
            logger.warning("the stored predictors cannot be read, they learn anew: %s", error)
    return _new_models(config, made_from)


def save_models(models: Models, store: Store) -> None:
    """Store them, unless they are too large."""
    data = pickle.dumps(models)
    if len(data) <= MOST_BYTES:
        store.put(KEY, data)
    else:
        store.delete(KEY)


def _new_models(config: HeadwayConfig, made_from: str) -> Models:
    planner = config.planner
    interval_s = decision_interval_s(planner)
    forecaster = make_forecaster(planner.predictor, planner.predictor_options, interval_s)
    models = Models(made_from=made_from, forecaster=forecaster)
    if planner.load_predictor_warmup_trace is not None:
        with open_trace(planner.load_predictor_warmup_trace, TraceOptions()) as trace:
            series = interval_series(trace, interval_s)
        columns = (series.requests, series.isl_tokens, series.osl_tokens)
        forecaster.warm_start(*(column.tolist() for column in columns))
        models.warmed_up = len(series.requests)
    return models


def _fingerprint(config: HeadwayConfig) -> str:
    planner = config.planner
    options = sorted((key, repr(value)) for key, value in planner.predictor_options.items())
    source = planner.load_predictor_warmup_trace
    return repr((planner.predictor, options, decision_interval_s(planner), source))
