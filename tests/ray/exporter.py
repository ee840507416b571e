"""A gateway's `/metrics` without a gateway: traffic as told, counters that rise with the time that passes."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Exporter:
    """Set `rate_rps` and the lengths; each scrape sees the requests that fell due since the last one."""

    def __init__(self, model: str) -> None:
        self.rate_rps, self.input_tokens, self.output_tokens = 1.0, 1000, 100
        self.registry = CollectorRegistry()
        self.model = model
        self._lock = threading.Lock()
        self._done_s, self._owed = time.monotonic(), 0.0
        labels = ["model"]
        ended = ["model", "outcome"]
        self.arrivals = Counter("headway_request_arrivals", "", labels, registry=self.registry)
        self.ended = Counter("headway_requests", "", ended, registry=self.registry)
        self.slo = Counter("headway_slo_requests", "", ["model", "met"], registry=self.registry)
        self.isl = Histogram(
            "headway_arrival_input_tokens", "", labels, buckets=TOKENS, registry=self.registry
        )
        self.osl = Histogram(
            "headway_request_output_tokens", "", ended, buckets=TOKENS, registry=self.registry
        )
        self.duration = Histogram(
            "headway_request_duration_seconds", "", ended, buckets=SECONDS, registry=self.registry
        )
        self.ttft = Histogram(
            "headway_time_to_first_token_seconds", "", labels, buckets=SECONDS, registry=self.registry
        )
        self.itl = Histogram(
            "headway_inter_token_latency_seconds", "", labels, buckets=SECONDS, registry=self.registry
        )
        load = ["role", "replica"]
        for name in ("running_requests", "waiting_requests", "kv_usage"):
            gauge = Gauge(f"headway_replica_{name}", "", load, registry=self.registry)
            for role in ("prefill", "decode"):
                gauge.labels(role, "r0").set(0.5)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def page(self) -> bytes:
        with self._lock:
            now_s = time.monotonic()
            self._owed += self.rate_rps * (now_s - self._done_s)
            self._done_s = now_s
            due, self._owed = int(self._owed), self._owed % 1.0
            for _ in range(due):
                self._request()
            return generate_latest(self.registry)

    def _request(self) -> None:
        model = self.model
        self.arrivals.labels(model).inc()
        self.isl.labels(model).observe(self.input_tokens)
        self.ended.labels(model, "ok").inc()
        self.slo.labels(model, "true").inc()
        self.osl.labels(model, "ok").observe(self.output_tokens)
        self.duration.labels(model, "ok").observe(1.0)
        self.ttft.labels(model).observe(0.1)
        self.itl.labels(model).observe(0.01)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                page = exporter.page()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, *_: object) -> None: ...

        return Handler
