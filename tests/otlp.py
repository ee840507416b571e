"""A double of an OTLP collector on loopback: it takes spans over gRPC or HTTP, decodes and keeps them.

What it stands for is any real collector, none of which is to be had here. It does not store, sample or show.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True)
class Seen:
    """One span as it came."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    kind: int
    began_s: float
    ended_s: float
    attributes: dict[str, Any]
    error: str


@dataclass
class Collector:
    """The spans that came, and the address to send them to."""

    endpoint: str = ""
    spans: list[Seen] = field(default_factory=list)
    stuck: threading.Event | None = None
    """Nothing is taken before this is set."""

    def of(self, trace: str) -> list[Seen]:
        return [span for span in self.spans if span.trace == trace]

    def take(self, request: ExportTraceServiceRequest) -> None:
        if self.stuck is not None:
            self.stuck.wait()
        for resource in request.resource_spans:
            service = _values(resource.resource.attributes).get("service.name", "")
            for scope in resource.scope_spans:
                self.spans.extend(_seen(service, span) for span in scope.spans)


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


def _seen(service: str, span: Any) -> Seen:
    return Seen(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        _values(span.attributes),
        span.status.message if span.status.code == 2 else "",
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """One that listens for gRPC."""
    collector = Collector()

    class Service(TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
            collector.take(request)
            return ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(Service(), server)
    collector.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collector
    finally:
        server.stop(0).wait()


@contextmanager
def collecting_http() -> Iterator[Collector]:
    """One that listens for HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200 if self.path == "/v1/traces" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
