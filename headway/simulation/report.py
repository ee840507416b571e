"""The report of a simulation: the JSON document of docs/reference/results.md as values.

    report.document()         writes it; a value that was not measured is null
    parse_report(document)    reads one, also one of an earlier version

`classes` is there where there are SLO classes; `routing_metrics`, `prefix_hits` and `utilisation` where a
router drove.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from math import isnan
from typing import Annotated, Any

from pydantic import (
    Field,
    FiniteFloat,
    GetPydanticSchema,
    Strict,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import core_schema

from headway.planning.policies import jsonable
from headway.planning.records import DecisionReasons
from headway.planning.types import LoadForecast, Role

# The annotations are the checks of `parse_report`; values that are made in this process are not checked.
Number = Annotated[FiniteFloat, Strict()]
Measured = Number | None
Count = Annotated[int, Strict(), Field(ge=0, le=2**53)]
Column = Annotated[Sequence[Number], Field(min_length=1)]
RoleName = Annotated[
    str,
    GetPydanticSchema(lambda _source, _handler: core_schema.literal_schema([role.value for role in Role])),
]


def _checked(reasons: Mapping[str, Any], check: Callable[[object], object]) -> Mapping[str, Any]:
    """Reasons as they came, once all that a page reads of them is there."""
    check(reasons)
    return reasons


Reasons = Annotated[
    Mapping[str, Any],
    GetPydanticSchema(
        lambda _source, handler: core_schema.no_info_wrap_validator_function(
            _checked, handler.generate_schema(DecisionReasons)
        )
    ),
]

OPTIONAL = ("repeats", "gave_up", "classes", "routing_metrics", "prefix_hits", "utilisation", "minutes")
"""Keys that the document lacks where there is nothing to say."""

OBJECT, LIST = "should be an object of keys and values", "should be a list"
SHAPES = {
    **dict.fromkeys(("dataclass_type", "model_type", "dict_type", "mapping_type"), OBJECT),
    **dict.fromkeys(("is_instance_of", "sequence_str"), LIST),
}
"""pydantic's faults that it words by names of Python."""


class ReportError(ValueError):
    """A document that is no report; the text names the first key that is missing or wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """A latency over the whole run, in seconds."""

    mean: Measured
    p50: Measured
    p90: Measured
    p95: Measured
    p99: Measured


def _not_measured() -> Quantiles:
    return Quantiles(mean=None, p50=None, p90=None, p95=None, p99=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalQuantiles:
    """A latency in one interval, in seconds."""

    mean: Measured
    p50: Measured
    p95: Measured
    p99: Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalForecast:
    """The load that was expected of the next interval, and the predictor behind each figure."""

    requests: Measured
    isl_tokens: Measured = None
    osl_tokens: Measured = None
    source: Mapping[str, str] | None = None

    @classmethod
    def of(cls, forecast: LoadForecast) -> "IntervalForecast":
        """A planner's forecast, None for what it does not know."""
        figures = (forecast.requests, forecast.isl_tokens, forecast.osl_tokens)
        requests, isl_tokens, osl_tokens = (None if isnan(figure) else figure for figure in figures)
        return cls(requests=requests, isl_tokens=isl_tokens, osl_tokens=osl_tokens, source=forecast.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One adjustment interval: what was observed in it, what was decided at its end, and why.

    The last one, cut short by the end of the run, is without a decision: `targets` and `reasons` are empty.
    """

    start_s: Number
    end_s: Number
    requests: Count
    isl_tokens: Measured = None
    osl_tokens: Measured = None
    ttft_s: IntervalQuantiles
    itl_s: IntervalQuantiles
    attainment: Measured
    forecast: IntervalForecast | None
    load: Mapping[str, Mapping[str, Measured]] = field(default_factory=dict)
    targets: Mapping[RoleName, Count]
    reasons: Reasons

    @property
    def decision(self) -> DecisionReasons:
        """The reasons that all policies have in common."""
        return DecisionReasons.model_validate(jsonable(self.reasons))


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeries:
    """A pool's four counts at each time they changed."""

    time_s: Column
    desired: Column
    starting: Column
    ready: Column
    draining: Column

    @model_validator(mode="after")
    def _equally_long(self) -> "PoolSeries":
        if len({len(column) for column in asdict(self).values()}) > 1:
            raise ValueError("lists of different lengths")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSlo:
    """The targets of an SLO class."""

    ttft_s: Number
    tpot_s: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFigures:
    """The outcome of the requests of one SLO class."""

    slo: ClassSlo
    critical: bool
    requests: Count
    completed: Count
    shed: Count
    failed: Count
    attainment: Measured
    goodput_rps: Number
    ttft_s: Quantiles
    ttft_met_s: Quantiles = field(default_factory=_not_measured)
    tpot_s: Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixHits:
    """Shares of the tokens looked up in prefix caches: found there, come as KV, and both."""

    local: Number
    external: Number
    combined: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """Requests of each minute by their arrival, and what came of any by the minute of their end."""

    requests: Sequence[Count]
    completed: Sequence[Count]
    met: Sequence[Count]
    shed: Sequence[Count]
    failed: Sequence[Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFigures:
    """The trace, as it was read."""

    name: str
    rate_scale: Number
    start_s: Number = 0.0
    duration_s: Number = 0.0
    requests: Count = 0
    isl_mean_tokens: Number
    osl_mean_tokens: Number
    reordered_rows: Count = 0
    skipped_rows: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSlo:
    """The deployment's targets, and the share of requests that should meet them."""

    ttft_s: Number
    itl_s: Number
    attainment: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """One run and what it ran on; keys and units are listed in docs/reference/results.md.

    All but `wall_s` depend on the input alone. What has a default was not in every version's document.
    """

    policy: str
    predictor: str | None
    routing: str
    seed: int
    profile: str
    trace: TraceFigures
    slo: ReportSlo
    adjustment_interval_s: Measured = None
    wall_s: Measured = None
    requests: Count
    completed: Count
    shed: Count
    failed: Count
    retried: Count = 0
    repeats: Count | None = None
    gave_up: Count | None = None
    attainment: Measured
    goodput_rps: Number
    gpu_hours: Number
    fluid_bound_gpu_hours: Number
    prefix_hit_rate: Number = 0.0
    ttft_s: Quantiles
    ttft_met_s: Quantiles = field(default_factory=_not_measured)
    itl_s: Quantiles
    tpot_s: Quantiles
    e2e_s: Quantiles
    scale_events: Count
    direction_reversals: Count
    simulated_s: Annotated[Number, Field(ge=0)]
    replicas: Annotated[Mapping[RoleName, PoolSeries], Field(min_length=1)]
    notes: Sequence[str]
    classes: Mapping[str, ClassFigures] | None = None
    routing_metrics: Mapping[str, Mapping[str, Measured]] | None = None
    prefix_hits: PrefixHits | None = None
    utilisation: Mapping[str, Any] | None = None
    fluid_bound_ratio: Measured
    attainable: Measured = None
    gpus_per_replica: Mapping[RoleName, Count]
    minutes: Minutes | None = None
    intervals: Sequence[Interval]

    @model_validator(mode="after")
    def _same_roles(self) -> "SimulationReport":
        if set(self.replicas) != set(self.gpus_per_replica):
            raise ValueError("replicas and gpus_per_replica name different roles")
        return self

    def document(self) -> dict[str, Any]:
        """The report as JSON-able data, without NaN."""
        plain = jsonable(self)
        return {key: value for key, value in plain.items() if value is not None or key not in OPTIONAL}


def parse_report(document: object) -> SimulationReport:
    """The report in JSON data. Unknown keys are let through; ReportError names what else is wrong."""
    try:
        return _adapter().validate_python(document)
    except ValidationError as error:
        raise ReportError(first_fault(error)) from error


def first_fault(error: ValidationError) -> str:
    """The first key that is missing or wrong, as `trace.requests: input should be …`."""
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"] if part != "[key]")
    if fault["type"] == "missing":
        return f"{key} is missing"
    problem = SHAPES.get(fault["type"], fault["msg"].removeprefix("Value error, "))
    return ": ".join(filter(None, (key, problem[:1].lower() + problem[1:])))


@cache
def _adapter() -> TypeAdapter[SimulationReport]:
    return TypeAdapter(SimulationReport)
