"""Spans on their way to a collector: a bounded queue, which OpenTelemetry's SDK empties from its own thread.

Spans are made after the fact, of times that were measured anyway, with ids that were given out before: so
what is not sampled costs next to nothing, and nothing waits. While a collector is away or slow the queue
fills; what finds no room is dropped, all spans of a request together, and counted.

The SDK's environment variables hold for what has no setting: OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE,
_TIMEOUT and _COMPRESSION, OTEL_BSP_*, OTEL_RESOURCE_ATTRIBUTES.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.config import ConfigError, TracingSettings
from serve_apps.tracing.context import TraceContext

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

MOST_WAITING = 8192
"""Spans in the queue, unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise."""

CLOSED_WITHIN_S = 5.0
"""For a collector that is away: it is not worth an end that takes half a minute."""

NS = 1_000_000_000
logger = logging.getLogger("ray.serve")


class Span(NamedTuple):
    """One span. Times are seconds since 1970; attributes that are None are left out."""

    name: str
    kind: Literal["SERVER", "CLIENT", "INTERNAL"]
    place: TraceContext
    began_at: float
    ended_at: float
    attributes: Mapping[str, Any] = {}
    error: str = ""


def check_tracing(settings: TracingSettings) -> None:
    """ConfigError where spans are asked for and the extra is missing."""
    if settings.endpoint is None:
        return
    try:
        import opentelemetry.exporter.otlp.proto.grpc
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError as error:
        missing = "OpenTelemetry's SDK and exporters are not installed: pip install 'headway[otel]'"
        raise ConfigError(f"tracing.endpoint: {missing}") from error


class SpanExport:
    """The way out of one process, `service` of a trace. ConfigError where the extra is missing."""

    def __init__(self, settings: TracingSettings, service: str, instance: str) -> None:
        check_tracing(settings)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self._resource = Resource.create({"service.name": service, "service.instance.id": instance})
        try:
            self._counted = _Counted(_exporter(settings))
            self._most = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", MOST_WAITING))
            self._processor = BatchSpanProcessor(self._counted, max_queue_size=self._most)  # type: ignore[arg-type]
        except ValueError as error:
            # Of the SDK's environment variables.
            raise ConfigError(f"tracing: {error}") from error
        self._taken = 0
        self.dropped = 0

    @property
    def sent(self) -> int:
        """Spans that the collector has taken."""
        return self._counted.sent

    @property
    def failed(self) -> int:
        """Spans that it has not taken."""
        return self._counted.failed

    def put(self, spans: Sequence[Span]) -> None:
        """Spans of one request that have ended."""
        if self._taken - self.sent - self.failed + len(spans) > self._most:
            if not self.dropped:
                logger.warning("the collector of traces is away or slow: spans are dropped from now on")
            self.dropped += len(spans)
            return
        self._taken += len(spans)
        for span in spans:
            self._processor.on_end(_readable(span, self._resource))

    def close(self) -> None:
        """Send what waits; blocks, but not for a collector that does not take it in time."""
        ending = Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSED_WITHIN_S)


class SpanCounts(Collector):
    """What became of a gateway's spans, for Prometheus."""

    def __init__(self, model: str, export: SpanExport) -> None:
        self._model, self._export = model, export

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = CounterMetricFamily(
            "headway_trace_spans",
            "Spans of sampled requests: sent to the collector, refused by it, or dropped for want of room",
            labels=("model", "outcome"),
        )
        for outcome in ("sent", "failed", "dropped"):
            family.add_metric((self._model, outcome), getattr(self._export, outcome))
        yield family


class _Counted:
    """An exporter that keeps count. Called on the SDK's thread."""

    def __init__(self, exporter: "SpanExporter") -> None:
        self._exporter = exporter
        self.sent = self.failed = 0

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        from opentelemetry.sdk.trace.export import SpanExportResult

        taken = False
        try:
            result = self._exporter.export(spans)
            taken = result is SpanExportResult.SUCCESS
            return result
        finally:
            if taken:
                self.sent += len(spans)
            else:
                self.failed += len(spans)

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _exporter(settings: TracingSettings) -> "SpanExporter":
    if settings.protocol == "http":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http(endpoint=settings.address)
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

    return Grpc(endpoint=settings.address)


def _readable(span: Span, resource: Any) -> "ReadableSpan":  # noqa: ANN401 - the SDK's
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

    place, trace_id, flags = span.place, int(span.place.trace_id, 16), TraceFlags(TraceFlags.SAMPLED)
    above = None
    if place.parent_id:
        above = SpanContext(trace_id, int(place.parent_id, 16), is_remote=True, trace_flags=flags)
    return ReadableSpan(
        span.name,
        context=SpanContext(trace_id, int(place.span_id, 16), is_remote=False, trace_flags=flags),
        parent=above,
        resource=resource,
        attributes={name: value for name, value in span.attributes.items() if value is not None},
        kind=SpanKind[span.kind],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=int(span.began_at * NS),
        end_time=int(max(span.began_at, span.ended_at) * NS),
        instrumentation_scope=InstrumentationScope("headway"),
    )
