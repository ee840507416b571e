"""One interval as measured, how good its data is, and the arithmetic of means and quantiles.

A number that could not be measured is NaN, and `health` says why. Zero traffic is `requests == 0` with NaN
latencies and health `ok`. Latencies are seconds, lengths tokens, times Unix seconds.

    mean = sum / count                                                       exact
    q-quantile: rank r = q * count falls into the bucket (a, b], the n-th of its c observations:
        a + (b - a) * n / c                                                  linear in the bucket

These are the rules of PromQL's `histogram_quantile`, so that both sources give one number: the lowest bucket
begins at 0, and a quantile in the bucket without an upper bound is the highest bound that there is (a lower
bound of it).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf, isfinite, isinf

from headway.engine.observed_metrics import EngineReading
from headway.planning import Role, Traffic
from headway.planning.silence import Silence
from headway.planning.synthetic import CountedTraffic

NAN = float("nan")
SET_BACK_S = 1.0
"""A clock that goes back by more was set; by less it was only corrected."""


class Quantity(StrEnum):
    """A figure that an interval is asked for."""

    REQUESTS = "requests"
    COMPLETED = "completed"
    MET = "met"
    MISSED = "missed"
    ISL = "isl"
    OSL = "osl"
    DURATION = "duration"
    TTFT = "ttft"
    ITL = "itl"
    QUEUE = "queue"
    CACHED = "cached"
    REPEATS = "repeats"


class HealthStatus(StrEnum):
    """The quality of an interval's data."""

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
    """A status and one line: what is wrong and where, or with `ok` what was put right, mostly nothing."""

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
    """Load of a pool, averaged over time: requests running and waiting on all its replicas together, and the
    mean of their KV usage in [0, 1].
    """

    running: float = NAN
    waiting: float = NAN
    kv_usage: float = NAN


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMeasured:
    """The requests of one SLO class in the interval (`actors.collector.request_list`)."""

    requests: float = NAN
    judged: float = NAN
    attainment: float = NAN
    ttft_s: Latency = field(default_factory=Latency)
    itl_s: Latency = field(default_factory=Latency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One interval. `requests` are arrivals, of which `least_requests` came by every witness where two
    contradict each other, NaN where none does. `repeats` are further arrivals, of requests that failed and
    came again; `isl_tokens`, `traffic` and `counted` are without them. `attainment` is the share of ended
    requests that met the SLO, with `ttft_only` that of which the first token was in time, where no more is
    known; `judged` counts them.

    `queue_s` is the mean wait in an engine's queue, `cached_tokens` the mean of a prompt's tokens that were
    not computed again; NaN where the system does not say.

    `traffic` are the requests one by one, None where the source does not know them all; `counted` is what it
    counted of them, None where that is not known or nothing arrived. `classes` are by name those of the
    settings, none where requests are not known one by one. `engines` are what engines that others run show
    of their own work, and `silent` those of them that had requests and made no progress on any as it ended.
    `unended` are the requests that were under way as the interval began, where none has
    ended in it in any way; 0 where one has.
    """

    start_s: float
    end_s: float
    health: Health
    requests: float = NAN
    completed: float = NAN
    unended: float = 0.0
    repeats: float = 0.0
    isl_tokens: float = NAN
    osl_tokens: float = NAN
    request_duration_s: float = NAN
    attainment: float = NAN
    judged: float = NAN
    ttft_only: bool = False
    queue_s: float = NAN
    cached_tokens: float = NAN
    ttft_s: Latency = field(default_factory=Latency)
    itl_s: Latency = field(default_factory=Latency)
    load: Mapping[Role, PoolLoad] = field(default_factory=dict)
    traffic: Traffic | None = None
    counted: CountedTraffic | None = None
    classes: Mapping[str, ClassMeasured] = field(default_factory=dict)
    engines: Sequence[EngineReading] = field(default=(), repr=False)
    silent: Sequence[Silence] = ()
    least_requests: float = NAN

    @property
    def ended(self) -> float:
        """Requests that `attainment` is a share of; NaN where their number or the share is not known.

        As many as completed in the interval or arrived, repeats too, whichever is more: nothing completes in
        an outage, and it must count all the same.
        """
        counts = [count for count in (self.completed, self.requests + self.repeats) if isfinite(count)]
        return max(counts) if counts and isfinite(self.attainment) else NAN


def noted(measured: Measured, note: str, status: HealthStatus | None = None) -> Measured:
    """With one more line in its health, and this status where one is given; as it is without a line."""
    if not note:
        return measured
    health = measured.health
    detail = "; ".join(filter(None, (health.detail, note)))
    return replace(measured, health=Health(status=status or health.status, detail=detail))


Buckets = Sequence[tuple[float, float]]
"""(upper bound, observations up to it), cumulative as Prometheus keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increase:
    """Observations added, their sum, and their number by bucket. A counter has `count` alone."""

    count: float = NAN
    total: float = NAN
    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def mean(self) -> float:
        """Mean of the added observations, NaN if there were none."""
        return self.total / self.count if self.count > 0 else NAN


def quantile(q: float, buckets: Buckets) -> float:
    """The q-quantile of what was added; NaN without observations, or without a bucket that holds them all."""
    rising: list[tuple[float, float]] = []
    for bound, count in sorted(buckets):
        # Summed series with different bounds can make the counts fall.
        rising.append((bound, max(rising[-1][1] if rising else -inf, count)))
    if len(rising) < 2 or not isinf(rising[-1][0]) or not rising[-1][1] > 0:
        return NAN
    rank = q * rising[-1][1]
    index = next(i for i, (_, count) in enumerate(rising) if count >= rank)
    if index == len(rising) - 1:
        return rising[-2][0]
    upper, count = rising[index]
    if index == 0 and upper <= 0.0:
        return upper
    lower, below = rising[index - 1] if index > 0 else (0.0, 0.0)
    return lower + (upper - lower) * (rank - below) / (count - below) if count > below else lower


def latency(increase: Increase) -> Latency:
    """Mean and quantiles."""
    p50, p95, p99 = (quantile(q, increase.buckets) for q in (0.50, 0.95, 0.99))
    return Latency(mean=increase.mean, p50=p50, p95=p95, p99=p99, count=increase.count)


NOTHING = Increase()


def unmeasured(start_s: float, end_s: float, status: HealthStatus, detail: str) -> Measured:
    """An interval of which nothing is known, and why."""
    return Measured(start_s=start_s, end_s=end_s, health=Health(status=status, detail=detail))
