"""Predictors → the load to come. The live Predictor actor and the simulator own what a policy asks for.

    LoadForecaster      three predictors of one kind: the next interval's load
    RequestForecaster   several kinds: the requests of each of the next AHEAD intervals, for policies that
                        judge forecasts by themselves

Each interval the request count enters its predictor (0 is zero traffic, NaN a gap that it bridges).
ISL and OSL enter theirs only where requests were measured: an interval without requests has no mean
length, and says nothing about the next one's. A series of which nothing is known yet is NaN in the forecast.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

from headway.config import PlannerSettings
from headway.planning.policies import policy_kind
from headway.planning.types import NAN, FloatArray, LoadForecast, Observation, RangedForecast
from predictors import Forecast, Predictor, make, option_names

SERIES = ("requests", "isl_tokens", "osl_tokens")
NO_DATA = "no data"
RANGE = (0.05, 0.95)
"""Shares of outcomes below the range of a forecast, and below its upper end."""

AHEAD = 64
"""Intervals for which requests are forecast."""

Ahead = Mapping[str, FloatArray]


@dataclass(slots=True)
class LoadForecaster:
    """The predictors of requests, ISL and OSL. Changes with every `observe`; `forecast` is pure."""

    predictors: Mapping[str, Predictor]
    _begun: set[str] = field(default_factory=set)

    def observe(self, observation: Observation) -> None:
        """Take in one interval."""
        self.observe_values(observation.requests, observation.isl_tokens, observation.osl_tokens)

    def observe_values(self, requests: float, isl_tokens: float, osl_tokens: float) -> None:
        """Take in one interval's request count and mean lengths (tokens)."""
        self._take("requests", requests)
        for series, tokens in (("isl_tokens", isl_tokens), ("osl_tokens", osl_tokens)):
            if isfinite(tokens) and tokens > 0:
                self._take(series, tokens)

    def warm_start(
        self, requests: Iterable[float], isl_tokens: Iterable[float], osl_tokens: Iterable[float]
    ) -> None:
        """Take in past intervals, oldest first: three series of equal length. ValueError when they differ."""
        for values in zip(requests, isl_tokens, osl_tokens, strict=True):
            self.observe_values(*(float(value) for value in values))

    def forecast(self) -> LoadForecast:
        """The next interval; `source` says per series which predictor answered."""
        return LoadForecast(**_means(self._answers()))

    def ranged(self) -> RangedForecast:
        """The same with the range of requests, as the predictor that answered has it."""
        answers = self._answers()
        requests = answers["requests"]
        low, high = (NAN if requests is None else float(requests.quantile(q)[0]) for q in RANGE)
        return RangedForecast(requests_low=low, requests_high=high, **_means(answers))

    def _take(self, series: str, value: float) -> None:
        self.predictors[series].observe(value)
        if isfinite(value):
            self._begun.add(series)

    def _answers(self) -> dict[str, Forecast | None]:
        return {
            series: self.predictors[series].forecast() if series in self._begun else None for series in SERIES
        }


def _means(answers: Mapping[str, Forecast | None]) -> dict[str, Any]:
    """The fields of a LoadForecast."""
    means = {series: NAN if one is None else float(one.mean[0]) for series, one in answers.items()}
    return means | {
        "source": {series: NO_DATA if one is None else one.source for series, one in answers.items()}
    }


@dataclass(frozen=True, slots=True)
class RequestForecaster:
    """Predictors of requests by name. They change with every `observe`; `forecast` is pure.

    An interval that is shorter or longer than `interval_s` counts as one of that length at the same rate.
    """

    predictors: Mapping[str, Predictor]
    interval_s: float

    def observe(self, observation: Observation) -> None:
        """Take in one interval."""
        self.observe_values(observation.requests * self.interval_s / observation.interval_s)

    def observe_values(self, requests: float, *_lengths: float) -> None:
        """Take in the requests of one interval; NaN where they were not measured."""
        for predictor in self.predictors.values():
            predictor.observe(requests)

    def warm_start(
        self, requests: Iterable[float], isl_tokens: Iterable[float], osl_tokens: Iterable[float]
    ) -> None:
        """Take in past intervals, oldest first; lengths say nothing."""
        del isl_tokens, osl_tokens
        for value in requests:
            self.observe_values(float(value))

    def forecast(self) -> Ahead:
        """By predictor, the requests in each of the next AHEAD intervals, f8[AHEAD].

        One that has no forecast of its own, as it learns or has failed, is left out.
        """
        answers = {name: predictor.forecast(AHEAD) for name, predictor in self.predictors.items()}
        return {name: answer.mean for name, answer in answers.items() if answer.source == name}


Forecaster = LoadForecaster | RequestForecaster


def make_forecaster(
    name: str, options: Mapping[str, Any] | None = None, interval_s: float | None = None
) -> LoadForecaster:
    """Three predictors of one kind. PredictorError for an unknown name or option.

    `interval_s`, the seconds between observations, goes to predictors that know of time, such as prophet.
    """
    chosen = _with_interval(name, dict(options or {}), interval_s)
    return LoadForecaster({series: make(name, **chosen) for series in SERIES})


def make_request_forecaster(names: Iterable[str], interval_s: float) -> RequestForecaster:
    """One predictor of each kind. PredictorError for an unknown name."""
    made = {name: make(name, **_with_interval(name, {}, interval_s)) for name in names}
    return RequestForecaster(made, interval_s)


def forecaster_for(planner: PlannerSettings, interval_s: float) -> Forecaster:
    """What the policy that is set asks for. PredictorError for an unknown name or option."""
    if names := policy_kind(planner.policy).ahead(planner.section(planner.policy)):
        return make_request_forecaster(names, interval_s)
    return make_forecaster(planner.predictor, planner.predictor_options, interval_s)


def with_forecast(observation: Observation, forecast: LoadForecast | Ahead) -> Observation:
    """The observation with what a forecaster says."""
    if isinstance(forecast, LoadForecast):
        return replace(observation, forecast=forecast)
    return replace(observation, ahead=forecast)


def _with_interval(name: str, options: dict[str, Any], interval_s: float | None) -> dict[str, Any]:
    if interval_s is not None and "interval_s" in option_names(name):
        options.setdefault("interval_s", interval_s)
    return options
