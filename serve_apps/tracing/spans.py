"""One trace of a request: its place in it, and its spans on their way to a collector.

    traceparent = version 00 - trace id, 32 hexadecimal digits - span id, 16 - flags, 2 (01: sampled)

By https://www.w3.org/TR/trace-context/. A caller's decision to sample counts; without one, `ratio` of all
trace ids do, and the same ones everywhere. `tracestate` is passed on as it came.

Spans are made after the fact, of times that were measured anyway, with ids that were given out before: so
what is not sampled costs next to nothing, and nothing waits. They leave through the batch processor of
OpenTelemetry's SDK and its own thread. While a collector is away or slow its queue fills. The processor would
then drop the oldest span uncounted; here the spans of a request that find no room are dropped together, and
counted.

The SDK's environment variables hold for what has no setting: OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE,
_TIMEOUT and _COMPRESSION, OTEL_BSP_*, OTEL_RESOURCE_ATTRIBUTES. OpenTelemetry is imported only where spans
are exported.
"""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import getrandbits
from threading import Thread
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.config import ConfigError, TracingSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

TRACEPARENT, TRACESTATE = b"traceparent", b"tracestate"
Headers = Iterable[tuple[bytes, bytes]]
_FORM = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
SAMPLED = 1


class TraceContext(NamedTuple):
    """One span's place: its trace, itself, and the span above it, "" for none."""

    trace_id: str
    span_id: str
    sampled: bool
    parent_id: str = ""
    state: bytes = b""

    def child(self) -> "TraceContext":
        """The place of a span below."""
        return self._replace(span_id=_span_id(), parent_id=self.span_id)

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """Headers that make this the span above the receiver's."""
        parent = f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}".encode()
        return ((TRACEPARENT, parent), *(((TRACESTATE, self.state),) if self.state else ()))


def read(headers: Headers) -> TraceContext | None:
    """The caller's span; None where the headers name none that is valid."""
    parent = state = b""
    for name, value in headers:
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
    if (found := _FORM.fullmatch(parent)) is None:
        return None
    trace_id, span_id, flags = (part.decode() for part in found.groups())
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & SAMPLED), state=state)


def begin(headers: Headers, ratio: float) -> TraceContext:
    """The place of a span of ours for a request with these headers."""
    above = read(headers)
    if above is not None:
        return above.child()
    drawn = getrandbits(128)
    # As the SDK's sampler by ratio does it, so that both choose the same traces.
    return TraceContext(f"{drawn:032x}", _span_id(), drawn & (2**64 - 1) < round(ratio * 2**64))


def _span_id() -> str:
    return f"{getrandbits(64):016x}"


MOST_WAITING = 8192
"""Spans in the queue, unless OTEL_BSP_MAX_QUEUE_SIZE is set."""

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
    """The way out of one process, `service` of a trace. ConfigError where the extra is missing.

    `counts`: spans that the collector has taken (`sent`) and has not taken (`failed`), and those for which
    there was no room (`dropped`).
    """

    def __init__(self, settings: TracingSettings, service: str, instance: str) -> None:
        check_tracing(settings)
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.counts = {"sent": 0, "failed": 0, "dropped": 0}
        self._resource = Resource.create({"service.name": service, "service.instance.id": instance})
        try:
            counting: Any = _CountingExporter(_exporter(settings), self.counts)
            self._most = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", MOST_WAITING))
            self._processor = BatchSpanProcessor(counting, max_queue_size=self._most)
        except ValueError as error:
            # Of the SDK's environment variables.
            raise ConfigError(f"tracing: {error}") from error
        self._taken = 0

    def put(self, spans: Sequence[Span]) -> None:
        """Spans of one request that have ended; dropped together where the queue has no room for all."""
        waiting = self._taken - self.counts["sent"] - self.counts["failed"]
        if waiting + len(spans) > self._most:
            if not self.counts["dropped"]:
                logger.warning("the collector of traces is away or slow: spans are dropped from now on")
            self.counts["dropped"] += len(spans)
            return
        self._taken += len(spans)
        for span in spans:
            self._processor.on_end(_readable(span, self._resource))

    def close(self) -> None:
        """Send what waits; blocks, but not for a collector that does not take it in time."""
        # The processor itself would wait for 30 s.
        ending = Thread(target=self._processor.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSED_WITHIN_S)


class SpanCounts(Collector):
    """What became of a gateway's spans, for Prometheus."""

    def __init__(self, model: str, counts: Mapping[str, int]) -> None:
        self._model, self._counts = model, counts

    def collect(self) -> Iterator[Metric]:
        """One family."""
        family = CounterMetricFamily(
            "headway_trace_spans",
            "Spans of sampled requests: sent to the collector, refused by it, or dropped for want of room",
            labels=("model", "outcome"),
        )
        for outcome, count in self._counts.items():
            family.add_metric((self._model, outcome), count)
        yield family


class _CountingExporter:
    """Called on the SDK's thread."""

    def __init__(self, exporter: "SpanExporter", counts: dict[str, int]) -> None:
        self._exporter, self._counts = exporter, counts
        self.shutdown = exporter.shutdown

    def export(self, spans: "Sequence[ReadableSpan]") -> "SpanExportResult":
        from opentelemetry.sdk.trace.export import SpanExportResult

        outcome = "failed"
        try:
            result = self._exporter.export(spans)
            outcome = "sent" if result is SpanExportResult.SUCCESS else "failed"
            return result
        finally:
            self._counts[outcome] += len(spans)


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
