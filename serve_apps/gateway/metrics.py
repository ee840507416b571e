"""What the gateway measures, and how Prometheus reads it. All series carry the label `model`.

    arrivals    valid requests, shed and unready ones included: the load that a planner has to size for
    requests    every request for output by outcome, invalid ones too; not those refused for want of a key
    TTFT        body received -> first token
    ITL         a chunk of k tokens after a gap g counts as k gaps of g/k, further tokens of the first chunk
                as gaps of 0: the gaps of a request add up to last token - first token, and are as many as
                its tokens less one
    TPOT        (last token - first token) / (tokens - 1), for requests of at least 2 tokens
    log         arrivals, and requests that ended well, one by one (`request_log`)
    SLO met     ok, TTFT within its SLO, and TPOT where there are 2 tokens; everything else missed it. SLOs
                are the request's own (headers, class), or else the deployment's `slo.ttft` and `slo.itl`.
                Not judged: requests that clients broke off, invalid ones, those too long for the model

TTFT and ITL are observed as tokens leave, everything by outcome when a request ends.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.planning import Slo
from headway.routing.types import RequestSlo
from serve_apps.engines.protocol import FinishReason
from serve_apps.gateway.backend import ReplicaLoad
from serve_apps.gateway.faults import Outcome
from serve_apps.gateway.histogram import Histogram, grid, whole_grid
from serve_apps.gateway.promises import Promise
from serve_apps.gateway.request_log import RequestLog

UNJUDGED: frozenset[Outcome] = frozenset({"aborted", "invalid", "too_long"})
LONGEST_S = 600.0

Times = tuple[float | None, float | None]
"""TTFT and TPOT of a request in seconds; None where there was no such time."""

MOST_TOKENS = 2_000_000

_REPLICA_GAUGES: tuple[tuple[str, str, Callable[[ReplicaLoad], float]], ...] = (
    ("headway_replica_running_requests", "Requests in the replica's batch", lambda load: load.running),
    ("headway_replica_waiting_requests", "Requests that wait in the replica", lambda load: load.waiting),
    ("headway_replica_kv_usage", "Used share of the replica's KV cache", lambda load: load.kv_usage),
)


class Gauges(Protocol):
    """What is read at the moment of a scrape."""

    def replicas(self) -> Sequence[ReplicaLoad]:
        """The running replicas and their load."""

    def in_flight(self) -> int:
        """Requests being served."""


class ByOutcome:
    """One histogram per outcome; `ok` is there from the start, so that rates have a zero to start from."""

    __slots__ = ("_bounds", "series")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.series: dict[str, Histogram] = {"ok": Histogram(bounds)}

    def observe(self, outcome: Outcome, value: float) -> None:
        """Count `value` under `outcome`."""
        series = self.series.get(outcome)
        if series is None:
            series = self.series[outcome] = Histogram(self._bounds)
        series.observe(value)


class GatewayMetrics(Collector):
    """All counts of one gateway; a collector of prometheus_client."""

    def __init__(self, model: str, engine: str, slo: Slo, gauges: Gauges) -> None:
        self.slo = slo
        self._model, self._engine, self._gauges = model, engine, gauges
        waits = grid(1e-3, LONGEST_S, (slo.ttft_s,))
        gaps = grid(2.5e-4, LONGEST_S / 10, (slo.itl_s,))
        counts = whole_grid(MOST_TOKENS)
        self.log = RequestLog()
        self.arrivals = 0
        self.output_tokens = 0
        self.requests: dict[Outcome, int] = dict.fromkeys(get_args(Outcome), 0)
        self.finished: dict[FinishReason, int] = dict.fromkeys(get_args(FinishReason), 0)
        self.slo_requests = {True: 0, False: 0}
        self.slo_class_requests: Counter[tuple[str, bool]] = Counter()
        self.ttft, self.itl = Histogram(waits), Histogram(gaps)
        self.arrival_input_tokens = Histogram(counts)
        self.durations, self.request_ttft, self.request_tpot = (
            ByOutcome(waits),
            ByOutcome(waits),
            ByOutcome(gaps),
        )
        self.input_tokens, self.request_output_tokens = ByOutcome(counts), ByOutcome(counts)

    def arrived(self, input_tokens: int) -> None:
        """Count a valid request."""
        self.arrivals += 1
        self.arrival_input_tokens.observe(input_tokens)
        self.log.arrived(input_tokens)

    def judge(self, outcome: Outcome, times: Times, promise: Promise) -> None:
        """Count whether a request met its SLOs."""
        if outcome in UNJUDGED:
            return
        ttft_s, tpot_s = times
        slo = promise.slo or RequestSlo(ttft_s=self.slo.ttft_s, tpot_s=self.slo.itl_s)
        in_time = ttft_s is not None and ttft_s <= slo.ttft_s
        met = outcome == "ok" and in_time and (tpot_s is None or tpot_s <= slo.tpot_s)
        self.slo_requests[met] += 1
        if promise.slo_class:
            self.slo_class_requests[promise.slo_class, met] += 1

    def collect(self) -> Iterator[Metric]:
        """Everything as families of prometheus_client."""
        yield from self._counters()
        yield from self._histograms()
        yield from self._current()

    def _counters(self) -> Iterator[Metric]:
        labels = ("model",)
        arrivals = CounterMetricFamily("headway_request_arrivals", "Valid requests", labels=labels)
        arrivals.add_metric((self._model,), self.arrivals)
        requests = CounterMetricFamily("headway_requests", "Requests ended", labels=("model", "outcome"))
        for outcome, count in self.requests.items():
            requests.add_metric((self._model, outcome), count)
        judged = CounterMetricFamily("headway_slo_requests", "Requests judged", labels=("model", "met"))
        for met, count in self.slo_requests.items():
            judged.add_metric((self._model, str(met).lower()), count)
        by_class = CounterMetricFamily(
            "headway_slo_class_requests",
            "Requests judged that name an SLO class",
            labels=("model", "class", "met"),
        )
        for (slo_class, met), count in self.slo_class_requests.items():
            by_class.add_metric((self._model, slo_class, str(met).lower()), count)
        tokens = CounterMetricFamily("headway_output_tokens", "Output tokens", labels=labels)
        tokens.add_metric((self._model,), self.output_tokens)
        return iter((arrivals, requests, judged, by_class, tokens))

    def _histograms(self) -> Iterator[Metric]:
        for name, text, series in (
            ("headway_time_to_first_token_seconds", "Time to first token, as it leaves", self.ttft),
            ("headway_inter_token_latency_seconds", "Gap between tokens, as they leave", self.itl),
            ("headway_arrival_input_tokens", "Input tokens at arrival", self.arrival_input_tokens),
        ):
            family = HistogramMetricFamily(name, text, labels=("model",))
            family.add_metric((self._model,), series.buckets(), series.total)
            yield family
        for name, text, by_outcome in (
            ("headway_request_duration_seconds", "Time from request to end", self.durations),
            ("headway_request_ttft_seconds", "Time to first token of ended requests", self.request_ttft),
            ("headway_request_tpot_seconds", "Time per output token of ended requests", self.request_tpot),
            ("headway_request_input_tokens", "Input tokens of ended requests", self.input_tokens),
            ("headway_request_output_tokens", "Output tokens of ended requests", self.request_output_tokens),
        ):
            family = HistogramMetricFamily(name, text, labels=("model", "outcome"))
            for outcome, series in by_outcome.series.items():
                family.add_metric((self._model, outcome), series.buckets(), series.total)
            yield family

    def _current(self) -> Iterator[Metric]:
        flying = GaugeMetricFamily("headway_requests_in_flight", "Requests being served", labels=("model",))
        flying.add_metric((self._model,), self._gauges.in_flight())
        yield flying
        info = GaugeMetricFamily("headway_engine_info", "The engine: always 1", labels=("kind", "simulated"))
        info.add_metric((self._engine, str(self._engine == "simulated").lower()), 1)
        yield info
        loads = self._gauges.replicas()
        for name, text, read in _REPLICA_GAUGES:
            family = GaugeMetricFamily(name, text, labels=("role", "replica"))
            for load in loads:
                family.add_metric((load.role.value, load.replica), read(load))
            yield family
