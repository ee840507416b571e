"""Forecasts of the load to come, and the past that predictors and policies may learn from first.

Predictors → the load to come. The live Predictor actor and the simulator own what a policy asks for.

    LoadForecaster      three predictors of one kind: the next interval's load
    RequestForecaster   several kinds: the requests of each of the next AHEAD intervals, for policies that
                        judge forecasts by themselves

Each interval the request count enters its predictor (0 is zero traffic, NaN a gap that it bridges).
ISL and OSL enter theirs only where requests were measured: an interval without requests has no mean
length, and says nothing about the next one's. A series of which nothing is known yet is NaN in the forecast.
Predictors count in intervals of the policy: one of another length counts as one of that length at its rate, a
part of less than WHOLE, as before a decision out of turn, joins the interval after it.

A past before the first decision: the requests of a warm-up trace, as observations to learn from.

The trace is taken to end where the deployment begins. Each of its whole intervals is an observation without
pools; the outputs of an interval's requests are seen in the next one. What predictors say after each interval
comes with it, from predictors of its own that see the trace from its beginning.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headway.config import PlannerSettings
from headway.planning.deciding import call
from headway.planning.policies import policy_kind
from headway.planning.types import NAN, FloatArray, LoadForecast, Observation, Policy, RangedForecast, Traffic
from headway.workload import Trace
from predictors import Forecast, Predictor, make, option_names

SERIES = ("requests", "isl_tokens", "osl_tokens")
NO_DATA = "no data"
RANGE = (0.05, 0.95)
"""Shares of outcomes below the range of a forecast, and below its upper end."""

AHEAD = 64
"""Intervals for which requests are forecast."""

WHOLE = 0.5
"""Share of the policy's interval from which on a measured one counts as one."""

Ahead = Mapping[str, FloatArray]


@dataclass(slots=True)
class _Parts:
    """Requests of parts of an interval, until they make a whole one."""

    requests: float = 0.0
    length: float = 0.0

    def add(self, requests: float, length: float) -> float | None:
        """The requests of one interval with this part, of so many intervals; None while it is not whole."""
        if length < WHOLE and not isfinite(requests):
            return None
        self.requests, self.length = self.requests + requests, self.length + length
        if self.length < WHOLE:
            return None
        whole = self.requests / self.length
        self.requests = self.length = 0.0
        return whole


@dataclass(slots=True)
class LoadForecaster:
    """The predictors of requests, ISL and OSL. Changes with every `observe`; `forecast` is pure."""

    predictors: Mapping[str, Predictor]
    interval_s: float | None = None
    """The policy's; None: as long as each that is observed."""
    _begun: set[str] = field(default_factory=set)
    _parts: _Parts = field(default_factory=_Parts)

    def observe(self, observation: Observation) -> None:
        """Take in one interval."""
        length = observation.interval_s / (self.interval_s or observation.interval_s)
        lengths = observation.isl_tokens, observation.osl_tokens
        self.observe_values(observation.requests, *lengths, length=length)

    def observe_values(
        self, requests: float, isl_tokens: float, osl_tokens: float, *, length: float = 1.0
    ) -> None:
        """Take in the request count and mean lengths (tokens) of an interval, `length` times the policy's."""
        whole = self._parts.add(requests, length)
        if whole is None:
            return
        self._take("requests", whole)
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
    """Predictors of requests by name. They change with every `observe`; `forecast` is pure."""

    predictors: Mapping[str, Predictor]
    interval_s: float
    _parts: _Parts = field(default_factory=_Parts)

    def observe(self, observation: Observation) -> None:
        """Take in one interval."""
        self.observe_values(observation.requests, length=observation.interval_s / self.interval_s)

    def observe_values(self, requests: float, *_lengths: float, length: float = 1.0) -> None:
        """Take in the requests of an interval, `length` times the policy's; NaN: not measured."""
        if (whole := self._parts.add(requests, length)) is not None:
            for predictor in self.predictors.values():
                predictor.observe(whole)

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
    return LoadForecaster({series: make(name, **chosen) for series in SERIES}, interval_s)


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


@runtime_checkable
class LearnsFromPast(Protocol):
    """A policy that can begin with a past."""

    @property
    def past_intervals(self) -> int:
        """The most that it remembers."""

    def recall(self, past: Iterable[Observation]) -> Any:  # noqa: ANN401 - each policy's state is its own
        """The state before the first decision, after a past; its observations have no pools."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PastRequests:
    """The requests of a trace's last whole intervals.

    `number[N]` is the interval of each, ascending, `after_s[N]` its arrival in seconds after the interval's
    begin; `counts[C]` are the requests of all intervals, also of those before.
    """

    interval_s: float
    counts: FloatArray
    number: FloatArray
    after_s: FloatArray
    input_tokens: FloatArray
    output_tokens: FloatArray

    def observations(self, ends_s: float, forecaster: RequestForecaster) -> Iterator[Observation]:
        """One after the other, the last one at `ends_s`; `forecaster` has seen nothing yet."""
        count = len(self.counts)
        first = int(self.number[0]) if len(self.number) else count
        edges = np.searchsorted(self.number, np.arange(first, count + 1))
        served = slice(0, 0)
        for place, requests in enumerate(self.counts):
            forecaster.observe_values(float(requests))
            if place < first:
                continue
            own = slice(*edges[place - first : place - first + 2])
            now_s = ends_s - (count - 1 - place) * self.interval_s
            inputs = self.input_tokens[own]
            yield Observation(
                now_s=now_s,
                interval_s=self.interval_s,
                requests=float(requests),
                isl_tokens=float(inputs.mean()) if requests else NAN,
                osl_tokens=NAN,
                ttft_s=NAN,
                itl_s=NAN,
                pools={},
                ahead=forecaster.forecast(),
                traffic=Traffic(
                    arrival_s=now_s - self.interval_s + self.after_s[own],
                    input_tokens=inputs,
                    completed_input_tokens=self.input_tokens[served],
                    completed_output_tokens=self.output_tokens[served],
                ),
            )
            served = own


def first_state(policy: Policy, past: PastRequests | None, planner: PlannerSettings, ends_s: float) -> Any:  # noqa: ANN401 - each policy's state is its own
    """The state before the first decision, after a past that ends then, if there is one and the policy can
    learn from it.
    """
    if past is None or not isinstance(policy, LearnsFromPast):
        return call(policy.name, policy.initial_state)
    names = policy_kind(planner.policy).ahead(planner.section(planner.policy))
    forecaster = make_request_forecaster(names, past.interval_s)
    return call(policy.name, policy.recall, past.observations(ends_s, forecaster))


def read_past(trace: Trace, interval_s: float, most: int) -> PastRequests:
    """The last `most` whole intervals of a trace; an interval ends with the arrivals at its end."""
    count = int(trace.duration_s // interval_s)
    counts, parts = np.zeros(count), []
    for chunk in trace.chunks():
        number = np.maximum(0.0, np.ceil(chunk.arrival_s / interval_s) - 1.0)
        counts += np.bincount(number[number < count].astype(np.int64), minlength=count)
        kept = (number >= count - most) & (number < count)
        after_s = chunk.arrival_s - number * interval_s
        columns = (number, after_s, chunk.input_tokens, chunk.output_tokens)
        parts.append([column[kept].astype(np.float64) for column in columns])
    number, after_s, inputs, outputs = (
        np.concatenate(columns) for columns in zip([np.zeros(0)] * 4, *parts, strict=True)
    )
    return PastRequests(
        interval_s=interval_s,
        counts=counts,
        number=number,
        after_s=after_s,
        input_tokens=inputs,
        output_tokens=outputs,
    )
