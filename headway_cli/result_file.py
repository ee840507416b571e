"""A result that was written with --json, read back: the keys that the page needs, checked before it is drawn.

Other keys are let through. The models have the names of the document, see docs/reference.md.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from headway_cli.errors import CliError

Share = FiniteFloat | None
Count = Annotated[int, Field(ge=0, le=2**53)]
Column = Annotated[list[FiniteFloat], Field(min_length=1)]
Role = Literal["prefill", "decode", "mixed"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class _Lines(_Part):
    """Latencies of an interval."""

    mean: Share
    p50: Share
    p95: Share
    p99: Share


class _Latency(_Lines):
    """Latencies of the whole run."""

    p90: Share


class _Slo(_Part):
    ttft_s: FiniteFloat
    itl_s: FiniteFloat
    attainment: FiniteFloat


class _Trace(_Part):
    name: str
    rate_scale: FiniteFloat
    isl_mean_tokens: FiniteFloat
    osl_mean_tokens: FiniteFloat


class _Pool(_Part):
    time_s: Column
    desired: Column
    starting: Column
    ready: Column
    draining: Column

    @model_validator(mode="after")
    def _equally_long(self) -> "_Pool":
        columns = (self.time_s, self.desired, self.starting, self.ready, self.draining)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("lists of different lengths")
        return self


class _Forecast(_Part):
    requests: Share
    isl_tokens: Share = None
    osl_tokens: Share = None
    source: dict[str, str] | None = None


class _Correction(_Part):
    value: FiniteFloat
    basis: str


class _Need(_Part):
    replicas: Share
    load_tokens_per_s: FiniteFloat
    throughput_per_gpu: FiniteFloat


class _Reasons(_Part):
    summary: str | None = None
    forecast: _Forecast | None = None
    corrections: dict[str, _Correction] | None = None
    requirement: dict[str, _Need] | None = None
    limits: list[str] | None = None
    warnings: list[str] | None = None


class _Interval(_Part):
    start_s: FiniteFloat
    end_s: FiniteFloat
    requests: Count
    ttft_s: _Lines
    itl_s: _Lines
    attainment: Share
    forecast: _Forecast | None
    targets: dict[Role, Count]
    reasons: _Reasons


class _Result(_Part):
    policy: str
    predictor: str | None
    routing: str
    seed: int
    profile: str
    trace: _Trace
    slo: _Slo
    requests: Count
    completed: Count
    failed: Count
    shed: Count
    attainment: Share
    goodput_rps: FiniteFloat
    gpu_hours: FiniteFloat
    fluid_bound_gpu_hours: FiniteFloat
    fluid_bound_ratio: Share
    ttft_s: _Latency
    itl_s: _Latency
    tpot_s: _Latency
    e2e_s: _Latency
    scale_events: Count
    direction_reversals: Count
    simulated_s: Annotated[FiniteFloat, Field(ge=0)]
    gpus_per_replica: dict[Role, Count]
    replicas: Annotated[dict[Role, _Pool], Field(min_length=1)]
    notes: list[str]
    intervals: list[_Interval]

    @model_validator(mode="after")
    def _same_roles(self) -> "_Result":
        if set(self.replicas) != set(self.gpus_per_replica):
            raise ValueError("replicas and gpus_per_replica name different roles")
        return self


def read_result(place: str) -> dict[str, Any]:
    """The document in a file; CliError names the file and the first key that the page cannot do without."""
    try:
        document: dict[str, Any] = json.loads(Path(place).read_text(encoding="utf-8"))
    except OSError as error:
        raise CliError(f"{place}: cannot be read: {error.strerror or error}") from error
    except RecursionError as error:
        raise CliError(f"{place}: is not JSON that can be read: nested too deeply") from error
    except ValueError as error:
        raise CliError(f"{place}: is not JSON: {error}") from error
    try:
        _Result.model_validate(document)
    except ValidationError as error:
        raise CliError(f"{place}: is no result of headway simulate: {_first(error)}") from error
    return document


def _first(error: ValidationError) -> str:
    fault = error.errors()[0]
    key = ".".join(str(part) for part in fault["loc"] if part != "[key]")
    problem = fault["msg"].removeprefix("Value error, ")
    problem = "is missing" if fault["type"] == "missing" else problem[:1].lower() + problem[1:]
    return f"{key} {problem}" if fault["type"] == "missing" else ": ".join(filter(None, (key, problem)))
