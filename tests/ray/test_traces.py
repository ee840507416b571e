"""What is seen of requests on their way through gateway, Router, prefill, KV transfer and decode.

One trace goes to a collector, a double (`tests.otlp`). Replicas report their latencies, by which the planner
refines a profile that is faster than the engines; that this outlives the Interpolator is shown in
tests/ray/test_router_actors.py. The Router places by `slo`.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import ray

from actors import names
from headway.config import load_config
from headway.engine import engine_profile
from headway.engine.refinement import MOST_RATIO
from interp import Profile
from tests.otlp import Collector, Seen, collecting
from tests.ray.clusters import wait_until
from tests.ray.live_system import LiveSystem, live_system
from tests.ray.routed_system import Gateway

TRACE, ABOVE = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRANSFER_S = 0.2
CLOCKS_S = 0.05
"""Of spans of two processes; 2 ms were seen on a busy machine."""
TOKENS = 4
SPEED, TIME_SCALE = 1 / 1.6, 0.4
"""Of the engines beside their profile, and of all."""
ISL, OSL = 800, 60
LOAD = f"steady:rate_rps=4,duration_s=1800,input_tokens={ISL},output_tokens={OSL},input_cv=0"
SETTINGS = {
    "engine.time_scale": TIME_SCALE,
    "simulation.engine": {"prefill_speed": SPEED, "decode_speed": SPEED},
    "engine.refinement.report_interval_s": 0.25,
    "engine.kv_transfer.latency_ms": 1e3 * TRANSFER_S,
    "planner.adjustment_interval_s": 2.0,
    "planner.tick_deadline_s": 10.0,
    "pools.prefill.max_replicas": 1,
    "pools.decode.max_replicas": 1,
    "routing.profile": "slo",
    # A busy machine is no reason to place without the router.
    "routing.call_timeout_ms": 10_000,
    "slo.ttft_ms": 30_000.0,
    "slo.itl_ms": 5_000.0,
}


@dataclass(frozen=True)
class System:
    live: LiveSystem
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
        tracing = {"tracing": {"endpoint": collector.endpoint, "ratio": 0.0}}
        with live_system({**SETTINGS, **tracing}) as live:
            yield System(live, Gateway(live.url), collector)


def interpolator(method: str, *arguments: object) -> Any:
    actor = ray.get_actor(names.INTERPOLATOR, namespace=names.NAMESPACE)
    return ray.get(getattr(actor, method).remote(*arguments), timeout=30)


def measured() -> Profile:
    """What the control plane was given."""
    return engine_profile(load_config(None, {"engine.time_scale": TIME_SCALE}))


def phases(profile: Profile) -> tuple[bool, bool]:
    """Whether each phase's samples are other than measured."""
    before = measured()
    return (
        list(profile.prefill.samples.ttft_s) != list(before.prefill.samples.ttft_s),
        list(profile.decode.samples.itl_s) != list(before.decode.samples.itl_s),
    )


def test_the_planner_goes_by_a_profile_that_is_as_slow_as_the_engines(system: System) -> None:
    live = system.live
    assert live.status()["refined"] is None
    with live.under_load(LOAD):
        wait_until(lambda: phases(interpolator("model").profile) == (True, True))
    profile = interpolator("model").profile
    # Slower by as much as the engines are, and by whatever the machine was busy with, within the bound.
    assert 1.2 < profile.prefill.ttft_s(ISL) / measured().prefill.ttft_s(ISL) <= MOST_RATIO + 1e-9
    # The last reports may still change what is served.
    wait_until(lambda: live.status()["refined"] == interpolator("model").profile.meta["refined"])
    profile = interpolator("model").profile
    assert live.status()["refined"]["factors"]["decode"] > 1.2
    assert live.status()["refined"]["cells"] >= 2
    assert live.get("/v1/control/profile")["meta"] == profile.meta
    last = live.decisions()[-1]["id"]
    wait_until(lambda: live.decisions()[-1]["id"] >= last + 2)


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
        assert outer.began_s - CLOCKS_S <= inner.began_s <= inner.ended_s <= outer.ended_s + CLOCKS_S
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
