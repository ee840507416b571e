"""Spans of one gateway, as a collector gets them; the collector is a double (`tests.otlp`)."""

import builtins
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.config import ConfigError, HeadwayConfig, load_config
from headway.routing.types import Placement
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.gateway.backend import Overloaded, Timeline
from serve_apps.tracing.spans import Span, SpanExport, TraceContext, begin, check_tracing, read
from tests.gateway.doubles import ScriptedBackend
from tests.gateway.serving import Running, get, post, serving, until
from tests.otlp import Collector, Seen, collecting, collecting_http
from tests.patience import PATIENCE_S

TRACE, ABOVE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, NOT_SAMPLED = (f"00-{TRACE}-{ABOVE}-0{flag}" for flag in (1, 0))
SERVER, CLIENT = 2, 3
SLO = {"ttft_ms": 600_000, "itl_ms": 600_000}
"""Met however busy the machine is."""
PLACEMENT = Placement(
    request_id="r", prefill_replica="p#1", decode_replica="d#2", profile="slo", reason="least harm"
)


class SteppingBackend(ScriptedBackend):
    """Places a request and calls two replicas, as the real one does."""

    calls: list[EngineRequest]

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: Any = None
    ) -> Any:
        assert timeline is not None
        with timeline.step("route"):
            timeline.placement = PLACEMENT
        with timeline.step("prefill", "p#1") as step:
            self.calls = [step.traced(request)]
        self.calls.append(timeline.step("decode", "d#2").traced(request))
        async for chunk in super().generate(request, None):
            yield chunk


ANSWER = [TokenChunk("a", 1), TokenChunk("b", 2, "length", 7)]
Trace = Callable[..., Running]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", f"{PATIENCE_S:g}")
    with collecting() as found:
        yield found


@pytest.fixture
def traced() -> Iterator[Trace]:
    """`traced(backend, endpoint, **settings)`: a gateway that sends its spans there."""
    with ExitStack() as stack:

        def start(backend: ScriptedBackend, endpoint: str, **settings: Any) -> Running:
            tracing = {"endpoint": endpoint, **settings}
            config = HeadwayConfig.model_validate(
                {"model": "m", "pools": {"mixed": {}}, "slo": SLO, "tracing": tracing}
            )
            running = stack.enter_context(serving(config, backend))
            assert running.app.state.tracing is not None
            stack.callback(running.app.state.tracing.export.close)
            return running

        yield start


def ask(running: Running, path: str = "/v1/completions", **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    prompt = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    return post(f"{running.url}{path}", json=prompt | {"max_tokens": 3}, headers=sent)


def spans_of(collector: Collector, count: int) -> dict[str, Seen]:
    until(lambda: len(collector.spans) >= count)
    return {span.name: span for span in collector.spans}


def test_a_request_is_one_trace_below_the_clients_span(collector: Collector, traced: Trace) -> None:
    backend = SteppingBackend(ANSWER)
    running = traced(backend, collector.endpoint)
    asked = {"traceparent": SAMPLED, "tracestate": "vendor=1", "x_request_id": "mine"}
    assert ask(running, **asked).status_code == 200
    spans = spans_of(collector, 4)
    assert {span.trace for span in collector.spans} == {TRACE}
    assert {span.service for span in collector.spans} == {"headway-gateway"}
    server = spans["text_completion m"]
    assert (server.parent, server.kind, server.error) == (ABOVE, SERVER, "")
    said = server.attributes
    assert (said["headway.request.id"], said["headway.outcome"]) == ("mine", "ok")
    assert (said["http.response.status_code"], said["http.route"]) == (200, "/v1/completions")
    assert said["gen_ai.usage.input_tokens"] == 1
    assert said["gen_ai.usage.output_tokens"] == 3
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    assert 0 < said["gen_ai.latency.time_to_first_token"] <= said["gen_ai.latency.e2e"]
    assert said["headway.slo.met"] is True
    for name in ("route", "prefill", "decode"):
        assert spans[name].parent == server.span
        assert server.began_s <= spans[name].began_s <= spans[name].ended_s <= server.ended_s
    assert spans["route"].attributes["headway.route.reason"] == "least harm"
    assert spans["prefill"].kind == spans["decode"].kind == CLIENT
    assert spans["decode"].attributes["headway.replica"] == "d#2"
    for name, request in zip(("prefill", "decode"), backend.calls, strict=True):
        assert request.call is not None
        assert dict(request.call.trace) == {
            b"traceparent": f"00-{TRACE}-{spans[name].span}-01".encode(),
            b"tracestate": b"vendor=1",
        }
    (found,) = get(f"{running.url}/v1/requests/mine").json()["requests"]
    assert found["trace"] == TRACE


def test_further_outputs_of_a_call_are_below_the_first(collector: Collector, traced: Trace) -> None:
    running = traced(SteppingBackend(ANSWER), collector.endpoint)
    body = {"prompt": "Hi", "max_tokens": 3, "n": 3}
    post(f"{running.url}/v1/completions", json=body, headers={"traceparent": SAMPLED})
    until(lambda: len(collector.spans) >= 12)
    outputs = {
        span.attributes.get("headway.output"): span
        for span in collector.spans
        if span.name == "text_completion m"
    }
    call = outputs[None]
    assert (call.parent, call.kind) == (ABOVE, SERVER)
    assert {outputs[number].parent for number in (1, 2)} == {call.span}
    assert SERVER not in {outputs[number].kind for number in (1, 2)}
    decodes = {span.parent for span in collector.spans if span.name == "decode"}
    assert decodes == {span.span for span in outputs.values()}


def test_over_http_too(traced: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", f"{PATIENCE_S:g}")
    with collecting_http() as collector:
        ask(traced(ScriptedBackend(ANSWER), collector.endpoint, protocol="http"))
        assert "text_completion m" in spans_of(collector, 1)


def test_a_request_that_fails_has_its_reason(collector: Collector, traced: Trace) -> None:
    running = traced(ScriptedBackend([Overloaded("too much", 1.0)]), collector.endpoint)
    assert ask(running, "/v1/chat/completions").status_code == 429
    span = spans_of(collector, 1)["chat m"]
    assert (span.error, span.attributes["error.type"]) == ("too much", "rate_limit_exceeded")
    assert span.attributes["http.response.status_code"] == 429


@pytest.mark.parametrize(("ratio", "parent", "flag"), [(0.0, None, b"00"), (1.0, NOT_SAMPLED, b"00")])
def test_what_is_not_sampled_is_not_exported_and_engines_hear_so(
    collector: Collector, traced: Trace, ratio: float, parent: str | None, flag: bytes
) -> None:
    backend = SteppingBackend(ANSWER)
    running = traced(backend, collector.endpoint, ratio=ratio)
    ask(running, **({} if parent is None else {"traceparent": parent}))
    ask(running, traceparent=SAMPLED, x_request_id="sampled")
    until(lambda: len(collector.spans) == 4)
    assert {span.attributes.get("headway.request.id", "sampled") for span in collector.spans} == {"sampled"}
    first = backend.requests[0]
    assert first.call is not None
    assert dict(first.call.trace)[b"traceparent"].endswith(b"-" + flag)


def test_without_an_endpoint_the_clients_headers_pass_and_nothing_is_made() -> None:
    backend = SteppingBackend(ANSWER)
    with serving(HeadwayConfig.model_validate({"model": "m", "pools": {"mixed": {}}}), backend) as running:
        assert running.app.state.tracing is None
        ask(running, traceparent=SAMPLED)
    assert backend.calls[0].call is not None
    assert backend.calls[0].call.trace == ((b"traceparent", SAMPLED.encode()),)


def test_a_collector_that_is_stuck_costs_no_request_and_drops_are_counted(
    collector: Collector, traced: Trace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8")
    collector.stuck = threading.Event()
    running = traced(SteppingBackend(ANSWER), collector.endpoint)
    try:
        assert [ask(running).status_code for _ in range(5)] == [200] * 5
        export = running.app.state.tracing.export
        until(lambda: export.counts["dropped"] == 3 * 4)
        warnings = [each for each in caplog.records if "spans are dropped" in each.getMessage()]
        assert len(warnings) == 1
        page = get(f"{running.url}/metrics").text
        assert 'headway_trace_spans_total{model="m",outcome="dropped"} 12.0' in page
    finally:
        collector.stuck.set()
    until(lambda: export.counts["sent"] == len(collector.spans) == 8)


def test_a_collector_that_is_away_costs_no_request(traced: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    running = traced(SteppingBackend(ANSWER), "http://127.0.0.1:9")
    assert ask(running).status_code == 200
    until(lambda: running.app.state.tracing.export.counts["failed"] == 4)


def test_the_extra_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **said: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(name)
        return real(name, *args, **said)

    config = load_config(None, {"tracing.endpoint": "http://127.0.0.1:4317"})
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"tracing.endpoint: .* pip install 'headway\[otel\]'"):
        check_tracing(config.tracing)


@pytest.mark.parametrize("size", ["many", "1"])
def test_a_queue_that_the_sdk_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", size)
    settings = load_config(None, {"tracing.endpoint": "http://127.0.0.1:9"}).tracing
    with pytest.raises(ConfigError, match=r"^tracing: [^\n]*$"):
        SpanExport(settings, "s", "i")


@pytest.mark.parametrize("endpoint", ["collector:4317", "http://", "http://h:x", 5])
def test_an_endpoint_that_is_none_is_one_line(endpoint: object) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.endpoint: [^\n]*") as found:
        load_config(None, {"tracing": {"endpoint": endpoint}})
    assert "\n" not in str(found.value)


def test_untraced_serving_imports_nothing_of_opentelemetry() -> None:
    """Ray does so by itself, in processes of its own making: this is gateway and engine alone."""
    program = (
        "import sys\n"
        "from headway.config import HeadwayConfig\n"
        "from serve_apps.gateway.app import make_app\n"
        "from tests.gateway.one_engine import OneEngine\n"
        "import serve_apps.tracing.engine_spans\n"
        "config = HeadwayConfig(pools={'mixed': {}})\n"
        "make_app(config, OneEngine(config))\n"
        "found = [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "assert not found, found\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, timeout=PATIENCE_S, cwd=Path(__file__).parents[2]
    )


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00-" + "0" * 32 + f"-{ABOVE}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{ABOVE}-01",
        f"00-{TRACE.upper()}-{ABOVE}-01",
        f"00-{TRACE}-{ABOVE}",
    ],
)
def test_headers_that_name_no_span_begin_a_trace(parent: str) -> None:
    headers = [(b"traceparent", parent.encode())]
    assert read(headers) is None
    made = begin(headers, 1.0)
    assert (len(made.trace_id), len(made.span_id), made.sampled, made.parent_id) == (32, 16, True, "")


def test_a_ratio_is_kept() -> None:
    sampled = sum(begin([], 0.25).sampled for _ in range(4000))
    assert 800 < sampled < 1200


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    found = read([(b"traceparent", f"01-{TRACE}-{ABOVE}-03-more".encode())])
    assert found == TraceContext(TRACE, ABOVE, sampled=True)
    assert found.headers() == ((b"traceparent", SAMPLED.encode()),)


def test_spans_end_after_they_begin(collector: Collector) -> None:
    settings = load_config(None, {"tracing.endpoint": collector.endpoint}).tracing
    export = SpanExport(settings, "s", "i")
    export.put([Span("n", "INTERNAL", TraceContext(TRACE, ABOVE, sampled=True), 20.0, 10.0)])
    export.close()
    until(lambda: len(collector.spans) == 1)
    (span,) = collector.spans
    assert (span.began_s, span.ended_s) == (20.0, 20.0)
