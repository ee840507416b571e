"""A past before the first decision: the requests of a warm-up trace, as observations to learn from.

The trace is taken to end where the deployment begins. Each of its whole intervals is an observation without
pools; the outputs of an interval's requests are seen in the next one. What predictors say after each interval
comes with it, from predictors of its own that see the trace from its beginning.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from headway.config import PlannerSettings
from headway.planning.deciding import call
from headway.planning.forecasting import RequestForecaster, make_request_forecaster
from headway.planning.policies import policy_kind
from headway.planning.types import NAN, FloatArray, Observation, Policy, Traffic
from headway.workload import Trace


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
