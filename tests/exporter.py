"""A process's worth of metrics on a real port, with a gateway's names, driven by the test."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary, start_http_server

from tests.ports import free_port

MODEL = "tiny"
BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class Exporter:
    """What our gateway counts, without the gateway. `restart` is another process at the same address."""

    def __init__(self, port: int | None = None) -> None:
        self.model = MODEL
        self.port = free_port() if port is None else port
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._make(CollectorRegistry())
        self._server, self._thread = start_http_server(self.port, addr="127.0.0.1", registry=self.registry)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def restart(self) -> None:
        self.stop()
        self.start()

    def _make(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, *labels: str) -> Histogram:
            return Histogram(name, name, ("model", *labels), buckets=BUCKETS, registry=registry)

        self.registry = registry
        self.arrivals = Counter("headway_request_arrivals", "arrivals", ("model",), registry=registry)
        self.ended = Counter("headway_requests", "ended", ("model", "outcome"), registry=registry)
        self.judged = Counter("headway_slo_requests", "judged", ("model", "met"), registry=registry)
        self.ttft = histogram("headway_time_to_first_token_seconds")
        self.itl = histogram("headway_inter_token_latency_seconds")
        self.isl = histogram("headway_arrival_input_tokens")
        self.repeats = Summary("headway_repeat_input_tokens", "repeats", ("model",), registry=registry)
        self.osl = histogram("headway_request_output_tokens", "outcome")
        self.duration = histogram("headway_request_duration_seconds", "outcome")
        self.replicas = {
            figure: Gauge(f"headway_replica_{figure}", figure, ("role", "replica"), registry=registry)
            for figure in ("running_requests", "waiting_requests", "kv_usage")
        }
        self.beacon = Gauge("beacon", "what the test sets to see it scraped", registry=registry)
        self.serve_model(self.model)

    def serve_model(self, model: str) -> None:
        """From now on all traffic is this model's, which begins with nothing counted."""
        self.model = model
        self.arrivals.labels(model)
        self.ended.labels(model, "ok")
        self.repeats.labels(model)

    def arrive(self, isl: float, model: str | None = None) -> None:
        model = model or self.model
        self.arrivals.labels(model).inc()
        self.isl.labels(model).observe(isl)

    def arrive_again(self, isl: float) -> None:
        """A request that failed before."""
        self.arrive(isl)
        self.repeats.labels(self.model).observe(isl)

    def end(self, ttft: float, gaps: Iterable[float], *, met: bool = True, outcome: str = "ok") -> None:
        gaps = tuple(gaps)
        self.ttft.labels(self.model).observe(ttft)
        for gap in gaps:
            self.itl.labels(self.model).observe(gap)
        self.ended.labels(self.model, outcome).inc()
        self.judged.labels(self.model, str(met).lower()).inc()
        self.osl.labels(self.model, outcome).observe(len(gaps) + 1)
        self.duration.labels(self.model, outcome).observe(ttft + sum(gaps))

    def serve(self, ttfts: Iterable[float], isl: float = 100.0, gap: float = 0.015, osl: int = 3) -> None:
        """Requests that arrive and end."""
        for ttft in ttfts:
            self.arrive(isl)
            self.end(ttft, [gap] * (osl - 1))

    def load(self, role: str, replica: str, running: float, waiting: float, kv_usage: float) -> None:
        figures = {"running_requests": running, "waiting_requests": waiting, "kv_usage": kv_usage}
        for figure, value in figures.items():
            self.replicas[figure].labels(role, replica).set(value)
