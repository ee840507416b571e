"""The spans of a gateway, made of a request's record once that has ended.

    chat MODEL, text_completion MODEL    SERVER     the request, from its first byte to its last; of further
                                                    outputs of its call one each below it, INTERNAL
      route                              INTERNAL   asked for a place → placed
      prefill                            CLIENT     the call of the replica that computes the prompt
      decode                             CLIENT     the call of the one that decodes

Attributes are named as OpenTelemetry's conventions for generative AI have them, latencies as vLLM has them;
what neither has is `headway.…`. Seconds, and tokens.
"""

import os
import time
from collections.abc import Iterator, Mapping
from socket import gethostname
from typing import Any

from headway.config import HeadwayConfig
from headway.routing.types import Placement
from serve_apps.gateway.backend import Step
from serve_apps.gateway.request_record import PROBLEMS, RequestRecord
from serve_apps.gateway.responses import COMPLETIONS
from serve_apps.tracing.spans import Headers, Span, SpanExport, TraceContext, begin

SERVICE = "headway-gateway"


class Tracing:
    """Decides which requests are sampled, and exports those that have ended."""

    def __init__(self, export: SpanExport, ratio: float, model: str) -> None:
        self.export = export
        self._ratio, self._model = ratio, model

    def begin(self, headers: Headers) -> TraceContext:
        """The place of a request with these headers."""
        return begin(headers, self._ratio)

    def ended(self, record: RequestRecord) -> None:
        """The request is over."""
        trace = record.timeline.trace
        if trace is not None and trace.sampled:
            self.export.put(list(spans(record, trace, self._model)))


def make_tracing(config: HeadwayConfig) -> Tracing | None:
    """What traces the requests of this process; None: nothing does. ConfigError."""
    settings = config.tracing
    if settings.endpoint is None:
        return None
    export = SpanExport(settings, SERVICE, f"{gethostname()}-{os.getpid()}")
    return Tracing(export, settings.ratio, config.model)


def spans(record: RequestRecord, trace: TraceContext, model: str) -> Iterator[Span]:
    """All of a sampled request that has ended."""
    timeline = record.timeline
    ended_at = time.time()
    offset_s = ended_at - record.ended_s
    operation = "text_completion" if record.path == COMPLETIONS.path else "chat"
    error = "" if record.error is None else record.error[1]
    yield Span(
        f"{operation} {model}",
        "INTERNAL" if record.output else "SERVER",
        trace,
        record.arrived_at,
        ended_at,
        {"gen_ai.operation.name": operation, **_of_request(record, model)},
        error if record.outcome in PROBLEMS else "",
    )
    for step in timeline.steps:
        if step.trace is not None:
            yield Span(
                step.name,
                "INTERNAL" if step.name == "route" else "CLIENT",
                step.trace,
                step.began_s + offset_s,
                step.ended_s + offset_s,
                _of_placement(timeline.placement) if step.name == "route" else _of_call(step),
                step.error,
            )


def _of_request(record: RequestRecord, model: str) -> Mapping[str, Any]:
    return {
        "gen_ai.provider.name": "headway",
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": record.input_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.response.finish_reasons": None if record.reason is None else (record.reason,),
        "gen_ai.latency.time_to_first_token": record.ttft_s,
        "gen_ai.latency.e2e": record.ended_s - record.arrived_s,
        "headway.latency.time_per_output_token": record.tpot_s,
        "headway.request.id": record.request_id,
        "headway.output": record.output or None,
        "headway.outcome": record.outcome,
        "headway.key": record.key,
        "headway.slo.met": record.met,
        "headway.slo.class": record.targets.slo_class or None,
        "http.request.method": "POST",
        "http.route": record.path,
        "http.response.status_code": record.status,
        "error.type": None if record.error is None else record.error[0] or record.outcome,
    }


def _of_placement(placement: Placement | None) -> Mapping[str, Any]:
    if placement is None:
        return {}
    return {
        "headway.route.profile": placement.profile,
        "headway.route.reason": placement.reason,
        "headway.route.class": placement.route_class,
        "headway.route.prefill_replica": placement.prefill_replica,
        "headway.route.decode_replica": placement.decode_replica,
        "headway.route.predicted_ttft": placement.predicted_ttft_s,
        "headway.route.predicted_tpot": placement.predicted_tpot_s,
        "headway.route.queued": placement.queued_s,
        "headway.route.attempt": placement.attempt,
    }


def _of_call(step: Step) -> Mapping[str, Any]:
    return {"headway.replica": step.replica, "error.type": step.error.partition(":")[0] or None}
