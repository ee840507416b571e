"""The replicas' load under the names that vLLM's own servers use, by replica and role.

Dashboards made for vLLM read them. Every replica reports what it saw, so a request that is prefilled on one
and decoded on another is in both.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve_apps.gateway.backend import ReplicaLoad
from serve_apps.gateway.metrics import Gauges

LABELS = ("model_name", "engine", "role")

GAUGES: tuple[tuple[str, str, Callable[[ReplicaLoad], float]], ...] = (
    ("vllm:num_requests_running", "Requests in the batch", lambda load: load.running),
    ("vllm:num_requests_waiting", "Requests that wait", lambda load: load.waiting),
    ("vllm:kv_cache_usage_perc", "Used share of the KV cache, 1 is all of it", lambda load: load.kv_usage),
)
COUNTERS: tuple[tuple[str, str, Callable[[ReplicaLoad], float]], ...] = (
    ("vllm:prompt_tokens", "Tokens of prompts", lambda load: load.prompt_tokens),
    ("vllm:num_preemptions", "Requests thrown out of the batch", lambda load: load.preemptions),
)
SOURCES: tuple[tuple[str, Callable[[ReplicaLoad], float]], ...] = (
    ("local_compute", lambda load: load.prompt_tokens - load.cached_tokens - load.external_tokens),
    ("local_cache_hit", lambda load: load.cached_tokens),
    ("external_kv_transfer", lambda load: load.external_tokens),
)


class VllmMetrics(Collector):
    """A collector of prometheus_client."""

    def __init__(self, model: str, gauges: Gauges) -> None:
        self._model, self._gauges = model, gauges

    def collect(self) -> Iterator[Metric]:
        """Everything as families of prometheus_client."""
        loads = self._gauges.replicas()
        for name, text, value in GAUGES:
            gauge = GaugeMetricFamily(name, text, labels=LABELS)
            for load in loads:
                gauge.add_metric(self._labels(load), value(load))
            yield gauge
        for name, text, value in COUNTERS:
            counter = CounterMetricFamily(name, text, labels=LABELS)
            for load in loads:
                counter.add_metric(self._labels(load), value(load))
            yield counter
        sources = CounterMetricFamily(
            "vllm:prompt_tokens_by_source", "Tokens of prompts by origin", labels=(*LABELS, "source")
        )
        for load in loads:
            for source, value in SOURCES:
                sources.add_metric((*self._labels(load), source), value(load))
        yield sources

    def _labels(self, load: ReplicaLoad) -> tuple[str, str, str]:
        return self._model, load.replica, load.role.value
