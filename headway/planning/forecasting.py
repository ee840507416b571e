"""Three predictors → the next interval's load. The live Predictor actor and the simulator own one of these.

Each interval the request count enters its predictor (0 is zero traffic, NaN a gap that it bridges).
ISL and OSL enter theirs only where requests were measured: an interval without requests has no mean
length, and says nothing about the next one's. A series of which nothing is known yet is NaN in the forecast.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from headway.planning.types import NAN, LoadForecast, Observation
from predictors import Predictor, make, option_names

SERIES = ("requests", "isl_tokens", "osl_tokens")
NO_DATA = "no data"


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
        answers = {series: self._answer(series) for series in SERIES}
        return LoadForecast(
            requests=answers["requests"][0],
            isl_tokens=answers["isl_tokens"][0],
            osl_tokens=answers["osl_tokens"][0],
            source={series: source for series, (_, source) in answers.items()},
        )

    def _take(self, series: str, value: float) -> None:
        self.predictors[series].observe(value)
        if isfinite(value):
            self._begun.add(series)

    def _answer(self, series: str) -> tuple[float, str]:
        if series not in self._begun:
            return NAN, NO_DATA
        forecast = self.predictors[series].forecast()
        return float(forecast.mean[0]), forecast.source


def make_forecaster(
    name: str, options: Mapping[str, Any] | None = None, interval_s: float | None = None
) -> LoadForecaster:
    """Three predictors of one kind. PredictorError for an unknown name or option.

    `interval_s`, the seconds between observations, goes to predictors that know of time, such as prophet.
    """
    chosen = dict(options or {})
    if interval_s is not None and "interval_s" in option_names(name):
        chosen.setdefault("interval_s", interval_s)
    return LoadForecaster({series: make(name, **chosen) for series in SERIES})
