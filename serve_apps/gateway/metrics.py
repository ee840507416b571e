"""The gateway's measurements, and how Prometheus reads them. All series carry the label `model`.

A request is one output: a call with several outputs counts as so many, in every one of these.

    arrivals    valid requests, shed and unready ones included: the load that a planner has to size for
    repeats     those of them that are others tried again (`repeats`), which a planner does not size for
    requests    every request for output by outcome, invalid ones too; not those refused for want of a key
    TTFT        body received -> first token
    ITL         a chunk of k tokens after a gap g counts as k gaps of g/k, further tokens of the first chunk
                as gaps of 0: the gaps of a request add up to last token - first token, and are as many as
                its tokens less one
    TPOT        (last token - first token) / (tokens - 1), for requests of at least 2 tokens
    log         arrivals, and requests that ended well, one by one; of classes also those that were lost
    SLO met     ok, TTFT within its SLO, and TPOT where there are 2 tokens; everything else missed it. SLOs
                are the request's own (headers, class), or else the deployment's `slo.ttft` and `slo.itl`.
                Not judged: requests that clients broke off, invalid ones, those too long for the model, and
                those that spilled over to another deployment, which counts them as its own

TTFT and ITL are observed as tokens leave, everything by outcome when a request ends.

Buckets are few: a scrape is mostly buckets. Bounds rise geometrically, two to the octave for TTFT, ITL and
lengths, by which a planner behind a Prometheus goes: neighbours are 41 % apart, and a quantile that is
interpolated inside a bucket is off by less than that. The SLOs in use are bounds themselves, so the share of
observations within an SLO is exact. Durations have one bound to the octave. What no panel draws as a
distribution has sum and count only, as have requests that did not end well.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite
from typing import Any, NamedTuple, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from headway.config.routing import ANY_TENANT, RoutingSettings
from headway.planning import Slo
from headway.routing.types import RequestSlo
from serve_apps.engines.protocol import FinishReason
from serve_apps.faults import Outcome
from serve_apps.gateway.admission import Places
from serve_apps.gateway.backend import Backend, ReplicaLoad
from serve_apps.gateway.request_log import PLAIN, RequestLog
from serve_apps.gateway.slo_targets import SloTargets

PER_OCTAVE = 2


def grid(
    low: float, high: float, extra: Iterable[float] = (), per_octave: int = PER_OCTAVE
) -> tuple[float, ...]:
    """Bounds from `low` to beyond `high`, and `extra` ones, rising."""
    ratio = 2.0 ** (1.0 / per_octave)
    bounds, step = [low], 1
    while bounds[-1] < high:
        # Six digits: bounds that people read; far finer than the grid.
        bounds.append(float(f"{low * ratio**step:.6g}"))
        step += 1
    return tuple(sorted({*bounds, *extra}))


def whole_grid(low: int, high: int) -> tuple[float, ...]:
    """Bounds for counts: whole numbers from `low` to beyond `high`."""
    return tuple(sorted({float(round(bound)) for bound in grid(float(low), high)}))


class Histogram:
    """One series. Single-threaded: everything happens on the event loop."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value`, `times` times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self._counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds as Prometheus writes them, with the observations at or below each."""
        labels = [*map(floatToGoString, self._bounds), "+Inf"]
        return [(label, float(count)) for label, count in zip(labels, accumulate(self._counts), strict=True)]


class Family(NamedTuple):
    """A metric: its name, its help text, where its value or its values by labels are, and these labels beside
    `model`.
    """

    name: str
    text: str
    path: str
    """Attributes and keys from the source on, such as `of_tenants.requests`."""
    labels: tuple[str, ...] = ()


def families(
    kind: type[Any],
    table: Iterable[Family],
    model: str,
    source: object,
    numbers: Callable[[Any], tuple[Any, ...]] = lambda value: (value,),
) -> Iterator[Metric]:
    """The families of a table as Prometheus has them. `numbers` of a value are what `kind` is made of.

    What is not known, a key that is not there or NaN, has no series.
    """
    for name, text, path, labels in table:
        family = kind(name, text, labels=("model", *labels))
        values = _value(source, path)
        for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
            if not isinstance(value, float) or isfinite(value):
                texts = map(_label, key if isinstance(key, tuple) else (key,))
                family.add_metric([model, *texts], *numbers(value))
        yield family


def _value(source: Any, path: str) -> Any:  # noqa: ANN401 - numbers, histograms, and mappings of them
    for name in path.split("."):
        source = source.get(name, {}) if isinstance(source, Mapping) else getattr(source, name)
    return source


def _label(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


UNJUDGED: frozenset[Outcome] = frozenset({"aborted", "invalid", "too_long", "spilled"})
WAITS_S, GAPS_S, DURATIONS_S = (5e-3, 160.0), (1e-3, 8.0), (0.125, 512.0)
LENGTHS = (8, 2**20)
"""First bound, and what the last one reaches."""

Times = tuple[float | None, float | None]
"""TTFT and TPOT of a request in seconds; None where there was no such time."""

_REPLICA_GAUGES: tuple[tuple[str, str, Callable[[ReplicaLoad], float]], ...] = (
    ("headway_replica_running_requests", "Requests in the replica's batch", lambda load: load.running),
    ("headway_replica_waiting_requests", "Requests that wait in the replica", lambda load: load.waiting),
    ("headway_replica_kv_usage", "Used share of the replica's KV cache", lambda load: load.kv_usage),
)


@dataclass(slots=True, kw_only=True)
class Traffic:
    """The backend, and the places of the requests in flight there: read at the moment of a scrape."""

    backend: Backend
    places: Places

    @property
    def requests(self) -> int:
        """Requests in flight."""
        return self.places.taken


class ByOutcome:
    """One histogram per outcome; `ok` is there from the start, so that rates have a zero to start from.

    Only that one has buckets.
    """

    __slots__ = ("series",)

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        self.series: dict[str, Histogram] = {"ok": Histogram(bounds)}

    def observe(self, outcome: Outcome, value: float) -> None:
        """Count `value` under `outcome`."""
        series = self.series.get(outcome)
        if series is None:
            series = self.series[outcome] = Histogram(())
        series.observe(value)


OTHER_TENANTS = "other"
"""Those that `routing.tenants` does not name: clients could make any number of users, and of series."""


class TenantCounts:
    """Requests of tenants, by outcome and by whether they met their SLO; none without tenants to name."""

    __slots__ = ("_routing", "judged", "requests")

    def __init__(self, routing: RoutingSettings) -> None:
        self._routing = routing
        named = [self._label(name) for name in routing.tenants]
        labels = [*named, OTHER_TENANTS] if named else []
        # A counter that begins with its first miss would hide that miss from a rate.
        self.requests = Counter({(label, outcome): 0 for label in labels for outcome in ("ok", "shed")})
        self.judged = Counter({(label, met): 0 for label in labels for met in (True, False)})

    def ended(self, tenant: str, outcome: Outcome) -> None:
        """Count a request."""
        if self._routing.tenants:
            self.requests[self._label(tenant), outcome] += 1

    def met(self, tenant: str, *, met: bool) -> None:
        """Count whether it met its SLO."""
        if self._routing.tenants:
            self.judged[self._label(tenant), met] += 1

    def _label(self, tenant: str) -> str:
        known = self._routing.tenant_named(tenant)
        return OTHER_TENANTS if known == ANY_TENANT else known


class GatewayMetrics(Collector):
    """All counts of one gateway; a collector of prometheus_client."""

    def __init__(self, model: str, engine: str, slo: Slo, traffic: Traffic, *, simulated: bool) -> None:
        self.slo = slo
        self._model, self._traffic = model, traffic
        self._engine = (engine, str(simulated).lower())
        waits, gaps = grid(*WAITS_S, (slo.ttft_s,)), grid(*GAPS_S, (slo.itl_s,))
        counts = whole_grid(*LENGTHS)
        self.log = RequestLog()
        self.arrivals = 0
        self.output_tokens = 0
        self.requests: dict[Outcome, int] = dict.fromkeys(get_args(Outcome), 0)
        self.finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        self.slo_requests = {True: 0, False: 0}
        self.slo_class_requests: Counter[tuple[str, bool]] = Counter()
        self.of_tenants = TenantCounts(RoutingSettings())
        self.ttft, self.itl = Histogram(waits), Histogram(gaps)
        self.arrival_input_tokens, self.repeat_input_tokens = Histogram(counts), Histogram(())
        self.durations, self.request_ttft, self.request_tpot = (
            ByOutcome(grid(*DURATIONS_S, per_octave=1)),
            ByOutcome(),
            ByOutcome(gaps),
        )
        self.input_tokens, self.request_output_tokens = ByOutcome(counts), ByOutcome(counts)

    def arrived(self, input_tokens: int, targets: SloTargets = PLAIN) -> int:
        """Count a valid request. Its number in the log."""
        self.arrivals += 1
        self.arrival_input_tokens.observe(input_tokens)
        return self.log.arrived(input_tokens, targets)

    def repeated(self, number: int, input_tokens: int) -> None:
        """Count what arrived with that number as a repeat."""
        self.repeat_input_tokens.observe(input_tokens)
        self.log.repeated(number)

    def ended(self, outcome: Outcome, took_s: float, targets: SloTargets) -> None:
        """Count a request that is over, valid or not."""
        self.requests[outcome] += 1
        self.of_tenants.ended(targets.tenant, outcome)
        self.durations.observe(outcome, took_s)

    def judge(self, outcome: Outcome, times: Times, targets: SloTargets) -> bool | None:
        """Count whether a request met its SLOs, and say so; None where it is not judged."""
        if outcome in UNJUDGED:
            return None
        ttft_s, tpot_s = times
        slo = self.promised(targets)
        in_time = ttft_s is not None and ttft_s <= slo.ttft_s
        met = outcome == "ok" and in_time and (tpot_s is None or tpot_s <= slo.tpot_s)
        self.slo_requests[met] += 1
        self.of_tenants.met(targets.tenant, met=met)
        if targets.slo_class:
            self.slo_class_requests[targets.slo_class, met] += 1
            if outcome != "ok":
                self.log.lost(targets)
        return met

    def promised(self, targets: SloTargets) -> RequestSlo:
        """The SLO of a request: its own, or the deployment's."""
        return targets.slo or RequestSlo(ttft_s=self.slo.ttft_s, tpot_s=self.slo.itl_s)

    def judged_by_class(self) -> Mapping[str, tuple[float, float]]:
        """Requests that met and that missed their SLO so far, by class."""
        classes = {slo_class for slo_class, _ in self.slo_class_requests}
        counts = self.slo_class_requests
        return {name: (counts[name, True], counts[name, False]) for name in classes}

    def collect(self) -> Iterator[Metric]:
        """Everything as families of prometheus_client."""
        model = self._model
        yield from families(CounterMetricFamily, COUNTERS, model, self)
        yield from families(
            HistogramMetricFamily, HISTOGRAMS, model, self, lambda series: (series.buckets(), series.total)
        )
        yield from families(
            SummaryMetricFamily, SUMS, model, self, lambda series: (series.count, series.total)
        )
        yield from self._current()

    def _current(self) -> Iterator[Metric]:
        flying = GaugeMetricFamily("headway_requests_in_flight", "Requests being served", labels=("model",))
        flying.add_metric((self._model,), self._traffic.requests)
        yield flying
        info = GaugeMetricFamily("headway_engine_info", "The engine: always 1", labels=("kind", "simulated"))
        info.add_metric(self._engine, 1)
        yield info
        loads = self._traffic.backend.replicas()
        for name, text, read in _REPLICA_GAUGES:
            family = GaugeMetricFamily(name, text, labels=("role", "replica"))
            for load in loads:
                family.add_metric((load.role.value, load.replica), read(load))
            yield family


COUNTERS = (
    Family("headway_request_arrivals", "Valid requests as they arrive", "arrivals"),
    Family("headway_requests", "Requests as they end, by outcome", "requests", ("outcome",)),
    Family(
        "headway_slo_requests",
        "Requests that met or missed their own SLO, else the deployment's; failed and shed ones missed",
        "slo_requests",
        ("met",),
    ),
    Family(
        "headway_slo_class_requests",
        "The same for requests that name an SLO class",
        "slo_class_requests",
        ("class", "met"),
    ),
    Family(
        "headway_tenant_requests",
        "Requests of a tenant as they end, by outcome",
        "of_tenants.requests",
        ("tenant", "outcome"),
    ),
    Family(
        "headway_tenant_slo_requests",
        "Requests of a tenant that met or missed their SLO",
        "of_tenants.judged",
        ("tenant", "met"),
    ),
    Family("headway_output_tokens", "Output tokens as they leave", "output_tokens"),
)
OUTCOME = ("outcome",)
HISTOGRAMS = (
    Family("headway_time_to_first_token_seconds", "Time to first token, as it leaves", "ttft"),
    Family(
        "headway_inter_token_latency_seconds",
        "Gap between tokens, as they leave; k tokens in one chunk share its gap",
        "itl",
    ),
    Family("headway_arrival_input_tokens", "Input tokens at arrival", "arrival_input_tokens"),
    Family(
        "headway_request_duration_seconds",
        "Time from request to end; buckets of ok only",
        "durations.series",
        OUTCOME,
    ),
    Family(
        "headway_request_output_tokens",
        "Output tokens of ended requests; buckets of ok only",
        "request_output_tokens.series",
        OUTCOME,
    ),
)
SUMS = (
    Family(
        "headway_request_ttft_seconds",
        "Time to first token of ended requests",
        "request_ttft.series",
        OUTCOME,
    ),
    Family(
        "headway_request_tpot_seconds",
        "Time per output token of ended requests",
        "request_tpot.series",
        OUTCOME,
    ),
    Family("headway_request_input_tokens", "Input tokens of ended requests", "input_tokens.series", OUTCOME),
    Family("headway_repeat_input_tokens", "Input tokens of repeats as they arrive", "repeat_input_tokens"),
)
