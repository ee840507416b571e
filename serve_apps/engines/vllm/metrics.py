"""vLLM's metric names, for dashboards made for it, over reports of replicas and measurements of the gateway.

    replicas   labels `model_name`, `engine` (the replica), `role`. Every replica reports what it saw, so a
               request that is prefilled on one and decoded on another is in both; the token that prefill
               makes and throws away is in its `generation_tokens`
    gateway    label `model_name`: requests as clients see them, network and queue of the router included, so
               each counts once and times are no engine's. Buckets are the gateway's own. TTFT and ITL count
               as tokens leave, all else as requests end that ended well

Cache queries and hits follow from the origin of prompt tokens: each is looked for here first, and those not
found are looked for at other replicas.
"""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_apps.gateway.backend import ReplicaLoad
from serve_apps.gateway.metrics import GatewayMetrics, Histogram, Traffic

LABELS = ("model_name", "engine", "role")

GAUGES: tuple[tuple[str, str, Callable[[ReplicaLoad], float]], ...] = (
    ("vllm:num_requests_running", "Requests in the batch", lambda load: load.running),
    ("vllm:num_requests_waiting", "Requests that wait", lambda load: load.waiting),
    ("vllm:kv_cache_usage_perc", "Used share of the KV cache, 1 is all of it", lambda load: load.kv_usage),
)

COUNTERS: tuple[tuple[str, str, Callable[[ReplicaLoad], float]], ...] = (
    ("vllm:prompt_tokens", "Tokens of prompts", lambda load: load.prompt_tokens),
    (
        "vllm:generation_tokens",
        "Tokens produced; a prefill replica makes one a prompt, which is not read",
        lambda load: load.output_tokens,
    ),
    ("vllm:num_preemptions", "Requests thrown out of the batch", lambda load: load.preemptions),
    ("vllm:prefix_cache_queries", "Prompt tokens looked for here", lambda load: load.prompt_tokens),
    ("vllm:prefix_cache_hits", "Prompt tokens found here", lambda load: load.cached_tokens),
    (
        "vllm:external_prefix_cache_queries",
        "Prompt tokens not found here, looked for at other replicas",
        lambda load: load.prompt_tokens - load.cached_tokens,
    ),
    (
        "vllm:external_prefix_cache_hits",
        "Prompt tokens whose KV came from other replicas",
        lambda load: load.external_tokens,
    ),
)

SOURCES: tuple[tuple[str, Callable[[ReplicaLoad], float]], ...] = (
    ("local_compute", lambda load: load.prompt_tokens - load.cached_tokens - load.external_tokens),
    ("local_cache_hit", lambda load: load.cached_tokens),
    ("external_kv_transfer", lambda load: load.external_tokens),
)

HISTOGRAMS: tuple[tuple[str, str, Callable[[GatewayMetrics], Histogram]], ...] = (
    ("vllm:time_to_first_token_seconds", "TTFT at the gateway", lambda gateway: gateway.ttft),
    ("vllm:inter_token_latency_seconds", "Gaps between tokens at the gateway", lambda gateway: gateway.itl),
    (
        "vllm:request_time_per_output_token_seconds",
        "TPOT at the gateway",
        lambda gateway: gateway.request_tpot.series["ok"],
    ),
    (
        "vllm:e2e_request_latency_seconds",
        "Time from request to end at the gateway",
        lambda gateway: gateway.durations.series["ok"],
    ),
    ("vllm:request_prompt_tokens", "Tokens of prompts", lambda gateway: gateway.input_tokens.series["ok"]),
    (
        "vllm:request_generation_tokens",
        "Tokens of outputs",
        lambda gateway: gateway.request_output_tokens.series["ok"],
    ),
)


class VllmMetrics(Collector):
    """A collector of prometheus_client."""

    def __init__(self, model: str, traffic: Traffic, measured: GatewayMetrics) -> None:
        self._model, self._traffic, self._measured = model, traffic, measured

    def collect(self) -> Iterator[Metric]:
        """Everything as families of prometheus_client."""
        yield from self._of_replicas(self._traffic.backend.replicas())
        yield from self._of_gateway()

    def _of_replicas(self, loads: Sequence[ReplicaLoad]) -> Iterator[Metric]:
        for kind, table in ((GaugeMetricFamily, GAUGES), (CounterMetricFamily, COUNTERS)):
            for name, text, value in table:
                family = kind(name, text, labels=LABELS)
                for load in loads:
                    family.add_metric(self._labels(load), value(load))
                yield family
        sources = CounterMetricFamily(
            "vllm:prompt_tokens_by_source",
            "Tokens of prompts by origin: computed here, found here, received",
            labels=(*LABELS, "source"),
        )
        for load in loads:
            for source, value in SOURCES:
                sources.add_metric((*self._labels(load), source), value(load))
        yield sources

    def _of_gateway(self) -> Iterator[Metric]:
        for name, text, series in HISTOGRAMS:
            family, found = HistogramMetricFamily(name, text, labels=LABELS[:1]), series(self._measured)
            family.add_metric((self._model,), found.buckets(), found.total)
            yield family
        success = CounterMetricFamily(
            "vllm:request_success", "Requests that ended well", labels=(*LABELS[:1], "finished_reason")
        )
        for reason, count in self._measured.finished.items():
            success.add_metric((self._model, reason), count)
        yield success

    def _labels(self, load: ReplicaLoad) -> tuple[str, str, str]:
        return self._model, load.replica, load.role.value
