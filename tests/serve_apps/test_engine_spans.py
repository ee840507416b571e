"""Spans of replicas over simulated engines, on a clock that jumps: whose child is what, how long it took."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from headway.engine import engine_profile, engine_rules
from headway.planning.types import Role
from serve_apps.engines.protocol import ClientCall, EngineRequest, KvHandle
from serve_apps.engines.simulated import SimulatedEngine
from serve_apps.tracing.engine_spans import TracedEngine
from serve_apps.tracing.spans import Span, TraceContext, read
from tests.engines.engine_cases import collect, config_of, pools_of, request
from tests.engines.virtual_loop import on_virtual_time

ABOVE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", sampled=True)
BODY = b'{"prompt": "Hi"}'


class Kept:
    """In place of the way to a collector."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def put(self, spans: Sequence[Span]) -> None:
        self.spans.extend(spans)


def replica(role: Role) -> tuple[TracedEngine, Kept]:
    kept = Kept()
    return TracedEngine(SimulatedEngine(config_of(pools_of(role)), role, role.value), kept), kept  # type: ignore[arg-type]


def asked(above: TraceContext | None = ABOVE) -> EngineRequest:
    trace = () if above is None else above.headers()
    call = ClientCall("/v1/completions", BODY, False, True, trace=trace)
    return replace(request(input_tokens=1000, max_tokens=3), call=call)


def took_s(span: Span) -> float:
    return span.ended_at - span.began_at


@on_virtual_time
async def test_prefill_transfer_and_decode_of_two_replicas():
    (prefill, prefilled), (decode, decoded) = replica(Role.PREFILL), replica(Role.DECODE)
    kv = await prefill.prefill(asked())
    await collect(decode.decode(asked(), kv))
    rules = engine_rules(config_of(), engine_profile(config_of()))
    (computing,) = prefilled.spans
    decoding, transfer = decoded.spans
    assert [(span.name, span.kind) for span in (computing, decoding, transfer)] == [
        ("prefill", "SERVER"),
        ("decode", "SERVER"),
        ("kv_transfer", "INTERNAL"),
    ]
    assert computing.place.parent_id == decoding.place.parent_id == ABOVE.span_id
    assert transfer.place.parent_id == decoding.place.span_id
    assert len({span.place.trace_id for span in (computing, decoding, transfer)}) == 1
    assert took_s(transfer) == pytest.approx(rules.transfer_s(1000), abs=1e-5)
    assert decoding.attributes["gen_ai.usage.output_tokens"] == 3
    assert decoding.attributes["gen_ai.latency.time_in_queue"] == pytest.approx(0.0, abs=1e-6)
    assert decoding.attributes["gen_ai.latency.time_to_first_token"] > took_s(transfer)


@on_virtual_time
async def test_a_mixed_replica_has_its_prefill_below():
    mixed, kept = replica(Role.MIXED)
    await collect(mixed.decode(asked(), None))
    decoding, computing = kept.spans
    assert (decoding.name, computing.name, computing.kind) == ("decode", "prefill", "INTERNAL")
    assert computing.place.parent_id == decoding.place.span_id
    first_s = decoding.attributes["gen_ai.latency.time_to_first_token"]
    assert took_s(computing) == pytest.approx(first_s, abs=1e-5)


@pytest.mark.parametrize("above", [None, ABOVE._replace(sampled=False)])
@on_virtual_time
async def test_what_is_not_sampled_makes_none(above):
    mixed, kept = replica(Role.MIXED)
    await mixed.prefill(asked(above))
    await collect(mixed.decode(asked(above), None))
    assert kept.spans == []


@on_virtual_time
async def test_an_engine_hears_of_the_replicas_span_and_its_errors_are_told():
    heard: list[TraceContext | None] = []

    class Engine:
        async def prefill(self, request: EngineRequest) -> KvHandle:
            assert request.call is not None
            heard.append(read(request.call.trace))
            raise RuntimeError("broken")

        async def decode(self, request: EngineRequest, kv: KvHandle | None):
            assert request.call is not None
            heard.append(read(request.call.trace))
            raise RuntimeError("broken")
            yield

    kept = Kept()
    traced = TracedEngine(Engine(), kept)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError):
        await traced.prefill(asked())
    with pytest.raises(RuntimeError):
        await collect(traced.decode(asked(), None))
    assert [span.error for span in kept.spans] == ["RuntimeError", "RuntimeError"]
    for span, context in zip(kept.spans, heard, strict=True):
        assert context is not None
        assert context.span_id == span.place.span_id
