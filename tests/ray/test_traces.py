"""One trace of a request through gateway, Router, prefill, KV transfer and decode on a real local Ray.

The collector is a double (`tests.otlp`); engines are simulated, the Router places by `slo`.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from tests.otlp import Collector, Seen, collecting
from tests.ray.clusters import wait_until
from tests.ray.routed_system import Gateway, deployed

TRACE, ABOVE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SPLIT = {"prefill": {"max_replicas": 1}, "decode": {"max_replicas": 1}}
TRANSFER_S = 0.2
TOKENS = 4


@dataclass(frozen=True)
class System:
    gateway: Gateway
    collector: Collector

    def ask(self, **headers: str) -> None:
        async def scenario() -> None:
            async with aiohttp.ClientSession() as http:
                answered = await self.gateway.ask(http, 500, TOKENS, **headers)
            assert (answered.status, answered.tokens) == (200, TOKENS)

        self.gateway.play(scenario())

    def record(self, request_id: str) -> dict[str, Any]:
        async def scenario() -> dict[str, Any]:
            async with aiohttp.ClientSession() as http:
                while True:
                    async with http.get(f"{self.gateway.url}/v1/requests/{request_id}") as answer:
                        (found,) = (await answer.json())["requests"]
                    if found["outcome"] != "under way":
                        return dict(found)
                    await asyncio.sleep(0.05)

        found: dict[str, Any] = self.gateway.play(scenario())
        return found


@pytest.fixture(scope="module")
def system(ray_cluster: str) -> Iterator[System]:
    with collecting() as collector:
        settings = {
            "pools": SPLIT,
            "slo": {"ttft_ms": 30_000, "itl_ms": 5_000},
            "engine.kv_transfer.latency_ms": 1e3 * TRANSFER_S,
            "tracing": {"endpoint": collector.endpoint, "ratio": 0.0},
        }
        with deployed(**settings) as gateway:
            yield System(gateway, collector)


def test_one_trace_crosses_every_part(system: System) -> None:
    system.ask(traceparent=f"00-{TRACE}-{ABOVE}-01", x_request_id="mine")
    wait_until(lambda: len(system.collector.of(TRACE)) == 7)
    spans: dict[tuple[str, str], Seen] = {
        (span.service, span.name): span for span in system.collector.of(TRACE)
    }
    gateway = spans["headway-gateway", "text_completion llama-3.1-8b"]
    route, prefill, decode = (spans["headway-gateway", name] for name in ("route", "prefill", "decode"))
    computing = spans["headway-prefill", "prefill"]
    decoding, transfer = spans["headway-decode", "decode"], spans["headway-decode", "kv_transfer"]
    assert gateway.parent == ABOVE
    assert {span.parent for span in (route, prefill, decode)} == {gateway.span}
    assert (computing.parent, decoding.parent) == (prefill.span, decode.span)
    assert transfer.parent == decoding.span
    # One machine, one clock: each is inside of what is above it, and the parts come one after the other.
    for inner, outer in ((route, gateway), (computing, prefill), (decoding, decode), (transfer, decoding)):
        assert outer.began_s <= inner.began_s <= inner.ended_s <= outer.ended_s + 0.01
    assert route.ended_s <= prefill.began_s <= prefill.ended_s <= decode.began_s
    assert transfer.ended_s - transfer.began_s >= TRANSFER_S
    assert route.attributes["headway.route.profile"] == "slo"
    assert gateway.attributes["headway.request.id"] == "mine"
    assert decoding.attributes["gen_ai.usage.output_tokens"] == TOKENS

    found = system.record("mine")
    assert (found["trace"], found["outcome"], found["output_tokens"]) == (TRACE, "ok", TOKENS)
    assert found["placement"]["profile"] == "slo"
    placed = [found["placement"][f"{role}_replica"] for role in ("prefill", "decode")]
    assert placed == [prefill.attributes["headway.replica"], decode.attributes["headway.replica"]]
    assert [step["name"] for step in found["steps"]] == ["route", "prefill", "decode"]
    assert [step["replica"] for step in found["steps"]] == [None, *placed]
    engine = found["steps"][2]["engine"]
    assert TRANSFER_S <= engine["transferred_s"] <= engine["begun_s"] < engine["first_token_s"]


def test_what_is_not_sampled_is_exported_by_none_of_them(system: System) -> None:
    before = len(system.collector.spans)
    system.ask(x_request_id="unseen")
    found = system.record("unseen")
    system.ask(traceparent=f"00-{TRACE[::-1]}-{ABOVE}-01")
    wait_until(lambda: len(system.collector.of(TRACE[::-1])) == 7)
    assert len(system.collector.spans) == before + 7
    assert found["trace"] not in {span.trace for span in system.collector.spans}
