"""The values that planning reads and returns: Observation → Forecast → Decision.

Everything here is frozen and free of clocks, Ray and I/O, so that the live Planner and the simulator
drive the same policies. Units are in the names: `_s` seconds, `_tokens` tokens. A float that could not be
observed is NaN; each policy states what it does then. Only value types, the interface of a policy, and
the one exception of `headway.planning` belong here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headway.config import Role

__all__ = [
    "NAN",
    "Alternative",
    "Alternatives",
    "BoolArray",
    "Decision",
    "FloatArray",
    "IntArray",
    "KnowsAlternatives",
    "LoadForecast",
    "Observation",
    "PlanningError",
    "Policy",
    "PoolLimits",
    "PoolState",
    "Promise",
    "Role",
    "Slo",
    "Traffic",
]


class PlanningError(ValueError):
    """Settings or an observation that no decision can be made from: one line that names the field."""


NAN = float("nan")

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """Latency targets of a deployment: time to first token and time between tokens, in seconds."""

    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the requests of one class are promised, and to what share of them; None: the deployment's."""

    name: str
    slo: Slo
    attainment: float | None = None
    critical: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """The bounds of one pool: replica counts, and the GPUs that one replica occupies.

    Up to `sleepers` replicas sleep while they are not wanted, without GPUs.
    """

    min_replicas: int = 1
    max_replicas: int = 1_000_000
    gpus_per_replica: int = 1
    sleepers: int = 0

    most_by: ClassVar[str] = "max_replicas"
    """What bounds it above, as decisions name it."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas:
            raise PlanningError(
                f"pools: min_replicas {self.min_replicas} and max_replicas {self.max_replicas} are no range"
            )
        if self.gpus_per_replica < 1:
            raise PlanningError(f"pools: gpus_per_replica {self.gpus_per_replica} is below 1")

    def clamped(self, replicas: int) -> int:
        """The nearest count that is allowed."""
        return max(self.min_replicas, min(self.max_replicas, replicas))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """One pool when it was observed: its four counts, and the load of its ready replicas.

    `running` and `waiting` count requests on ready replicas, and those that wait for one to become ready;
    what draining replicas still finish is not part of it.
    """

    desired: int
    starting: int
    ready: int
    draining: int
    running: float = NAN
    waiting: float = NAN
    kv_usage: float = NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadForecast:
    """The next interval's load: requests in the interval, mean ISL and OSL; NaN where there is none."""

    requests: float
    isl_tokens: float
    osl_tokens: float
    source: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RangedForecast(LoadForecast):
    """The same, and the range of requests in which 90 % of the outcomes lie; NaN where there is none."""

    requests_low: float = NAN
    requests_high: float = NAN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """The requests of one interval, one by one. Arrays are read-only f8.

    `arrival_s[N]` ascending, on the observation's clock, and `input_tokens[N]`: of what arrived in
    (now_s - interval_s, now_s]. `completed_input_tokens[M]`, `completed_output_tokens[M]`: of what completed
    in it, in order of completion. PlanningError for arrays that are no such thing.

    The others are None where nothing is known of them. `completed_cached_tokens[M]`: of the input, what was
    not computed, as an engine had it cached; NaN where it does not say. `completed_arrival_s[M]`, and of it
    `completed_ttft_s[M]` and `completed_itl_s[M]`, the mean over its tokens; NaN if unknown. `slo_ttft_s[N]`,
    `slo_itl_s[N]`, `completed_slo_ttft_s[M]`, `completed_slo_itl_s[M]`: SLOs of their own, NaN for the
    deployment's. `slo_class[N]`: the place of its class in `slo.classes`, from 1 on; 0 for none.
    """

    arrival_s: FloatArray
    input_tokens: FloatArray
    completed_input_tokens: FloatArray
    completed_output_tokens: FloatArray
    completed_cached_tokens: FloatArray | None = None
    completed_arrival_s: FloatArray | None = None
    completed_ttft_s: FloatArray | None = None
    completed_itl_s: FloatArray | None = None
    slo_ttft_s: FloatArray | None = None
    slo_itl_s: FloatArray | None = None
    slo_class: FloatArray | None = None
    completed_slo_ttft_s: FloatArray | None = None
    completed_slo_itl_s: FloatArray | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            given = getattr(self, item.name)
            if given is not None:
                column = np.asarray(given, np.float64).view()
                column.flags.writeable = False
                object.__setattr__(self, item.name, column)
        if (self.arrival_s[1:] < self.arrival_s[:-1]).any():
            raise PlanningError("traffic: arrivals are not in order")
        arrived = (self.input_tokens, self.slo_ttft_s, self.slo_itl_s, self.slo_class)
        served = (self.completed_arrival_s, self.completed_ttft_s, self.completed_itl_s)
        promised = (self.completed_slo_ttft_s, self.completed_slo_itl_s)
        completed = (self.completed_output_tokens, self.completed_cached_tokens, *served, *promised)
        if _differ(self.arrival_s, arrived) or _differ(self.completed_input_tokens, completed):
            raise PlanningError("traffic: columns differ in length")


def _differ(first: FloatArray, others: Sequence[FloatArray | None]) -> bool:
    return any(other is not None and other.shape != first.shape for other in others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One adjustment interval as measured.

    `requests` counts arrivals (0 is zero traffic, NaN is "not measured"), of which `least_requests` are sure
    where witnesses contradict each other (`doubt`), NaN where none does; `isl_tokens` is the mean over
    arrivals, `osl_tokens` the mean over completions; `ttft_s` and `itl_s` are means over the tokens of the
    interval. `forecast` is the load expected in the next interval, None when no predictor runs; `ahead` are
    the requests expected in each of the next intervals, f8[A], by the name of the predictor. `traffic` is
    None where nobody recorded single requests, nor counted enough to make some (`synthetic`). `stood` are the
    pools that served the interval where `pools` are only planned (`headway.planning.advice`), else None.
    `slow` has by role how many times as long as the others ready replicas take that are known to differ.
    `repeats` are arrivals known to be requests tried again; neither `requests` nor `traffic` has them.
    """

    now_s: float
    interval_s: float
    requests: float
    isl_tokens: float
    osl_tokens: float
    ttft_s: float
    itl_s: float
    pools: Mapping[Role, PoolState]
    request_duration_s: float = NAN
    forecast: LoadForecast | None = None
    ahead: Mapping[str, FloatArray] = field(default_factory=dict)
    traffic: Traffic | None = None
    slow: Mapping[Role, tuple[float, ...]] = field(default_factory=dict)
    stood: Mapping[Role, PoolState] | None = None
    least_requests: float = NAN
    repeats: float = 0.0

    @property
    def serving(self) -> Mapping[Role, PoolState]:
        """The pools that served what was measured."""
        return self.pools if self.stood is None else self.stood


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Targets per role, the state to pass to the next call, and why: JSON-able data to recompute it from."""

    targets: Mapping[Role, int]
    next_state: Any
    reasons: Mapping[str, Any]


class Policy(Protocol):
    """A planner: called every `interval_s` with what was observed and the state that it last returned."""

    @property
    def name(self) -> str:
        """The name that configuration and results carry."""

    @property
    def interval_s(self) -> float:
        """Seconds between two calls of `plan`."""

    def initial_state(self) -> Any:  # noqa: ANN401 - each policy's state is its own
        """The state before the first decision."""

    def plan(self, observation: Observation, state: Any) -> Decision:  # noqa: ANN401
        """Decide, as a function of the two values alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A fleet that might have stood there: GPUs in the mean, the share of requests lost, and by pool its
    replicas (fixed) or its utilisation (threshold).
    """

    gpus: float
    lost: float
    pools: Mapping[Role, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """The cheapest fleets of both kinds for the past of `intervals` intervals, with `requests` in them."""

    intervals: int
    requests: int
    fixed: Alternative
    threshold: Alternative


@runtime_checkable
class KnowsAlternatives(Policy, Protocol):
    """A policy whose state says what other fleets would have lost."""

    def alternatives(self, state: Any) -> Alternatives | None:  # noqa: ANN401 - each policy's state is its own
        """The fleets for the past that `state` has; None while that is little."""


@runtime_checkable
class KnowsStarts(Policy, Protocol):
    """A policy whose state says how long replicas take to start."""

    def serves_in_s(self, state: Any, now_s: float) -> float:  # noqa: ANN401 - each policy's state is its own
        """Seconds until each pool has a replica that is under way, or ordered now."""

    def starts_s(self, state: Any) -> Mapping[Role, float]:  # noqa: ANN401 - each policy's state is its own
        """Seconds that a replica of each pool takes to start."""


@runtime_checkable
class PlansWithin(Policy, Protocol):
    """A policy that plans within limits that change (`headway.planning.schedule`)."""

    def within(self, limits: Mapping[Role, PoolLimits]) -> Policy:
        """The same within these limits."""
