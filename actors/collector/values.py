"""What a collector returns: one interval as measured, and how good the data is.

A number that could not be measured is NaN, and `health` says why. Zero traffic is `requests == 0` with NaN
latencies and health `ok`. Latencies are seconds, lengths tokens, times Unix seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headway.planning import Role, Traffic

NAN = float("nan")


class HealthStatus(StrEnum):
    """How good an interval's data is."""

    OK = "ok"
    STARTING = "starting"
    """Nothing has been read yet, or not for a whole interval."""
    PARTIAL = "partial"
    """Some series are missing or NaN; the others are good."""
    STALE = "stale"
    """The newest sample is too old."""
    DOWN = "down"
    """The source does not answer, or answers too late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A status and, unless it is `ok`, one line that says what is wrong and where."""

    status: HealthStatus
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean and quantiles of one latency in the interval, in seconds."""

    mean: float = NAN
    p50: float = NAN
    p95: float = NAN
    p99: float = NAN
    count: float = NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """Mean load of a pool's running replicas: requests running, requests waiting, KV usage in [0, 1]."""

    running: float = NAN
    waiting: float = NAN
    kv_usage: float = NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One interval. `requests` are arrivals; `attainment` is the share of ended requests that met the SLO.

    `traffic` are the requests one by one, None where the source does not know them all.
    """

    start_s: float
    end_s: float
    health: Health
    requests: float = NAN
    completed: float = NAN
    isl_tokens: float = NAN
    osl_tokens: float = NAN
    request_duration_s: float = NAN
    attainment: float = NAN
    ttft_s: Latency = field(default_factory=Latency)
    itl_s: Latency = field(default_factory=Latency)
    load: Mapping[Role, PoolLoad] = field(default_factory=dict)
    traffic: Traffic | None = None
