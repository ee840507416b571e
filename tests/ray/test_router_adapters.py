"""Adapters and tenants on the real path: engines report, the Router places, and both outlive its death."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import aiohttp
import pytest

from tests.ray.clusters import POLL_S, wait_until
from tests.ray.routed_system import (
    MODEL,
    PATIENCE_S,
    Gateway,
    deployed,
    kill_router,
    router_says,
    router_status,
)

ADAPTERS = ("a", "b")


@pytest.fixture(scope="module")
def gateway(ray_cluster: str) -> Iterator[Gateway]:
    plugins = [
        {"pluginRef": "lora-affinity-scorer", "weight": 4},
        {"pluginRef": "least-load"},
        {"pluginRef": "first-max-picker"},
    ]
    settings = {
        "engine.time_scale": 1.0,
        "engine.lora": {"names": ADAPTERS, "at_once": 1},
        "routing.profile": "adapters",
        "routing.scheduling_profiles": [{"name": "adapters", "plugins": plugins}],
        "routing.tenants": {"*": {"per_user": True, "may_be_critical": False, "least_ttft_ms": 2000}},
    }
    with deployed(**settings) as gateway:
        gateway.play(placed_by_the_router(gateway))
        yield gateway


async def asked(gateway: Gateway, http: aiohttp.ClientSession, model: str) -> Mapping[str, str]:
    """The headers of an answer that the Router placed."""
    body = {"model": model, "prompt": "Hi", "max_tokens": 2, "user": "eve/adam"}
    headers = {
        "x-headway-explain": "true",
        "x-slo-ttft-ms": "1",
        "x-headway-criticality": "critical",
        "x-request-id": f"ask-{model}",
    }
    while True:
        async with http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            if answer.headers["x-headway-route-reason"] == "adapters":
                return answer.headers
        await asyncio.sleep(POLL_S)


async def placed_by_the_router(gateway: Gateway) -> None:
    """Return once it places; requests for the model itself move no adapter."""
    async with aiohttp.ClientSession() as http:
        await asked(gateway, http, MODEL)


async def homes(gateway: Gateway) -> dict[str, set[str]]:
    """Where each adapter is served, in turn."""
    found: dict[str, set[str]] = {name: set() for name in ADAPTERS}
    async with aiohttp.ClientSession() as http:
        for _ in range(4):
            for name in ADAPTERS:
                found[name].add((await asked(gateway, http, name))["x-headway-replica"])
    return found


def test_adapters_have_homes_of_which_a_new_router_hears(gateway: Gateway) -> None:
    before = gateway.play(homes(gateway))
    assert [len(replicas) for replicas in before.values()] == [1, 1]
    assert before["a"] != before["b"]
    epoch = router_status()["epoch"]
    kill_router()
    wait_until(lambda: router_says(lambda status: status["epoch"] != epoch), PATIENCE_S)
    gateway.play(placed_by_the_router(gateway))
    assert gateway.play(homes(gateway)) == before
    assert router_status()["metrics"]["adapter_loads"] == {"": 0.0}


def test_a_request_hears_what_its_tenant_may_not_ask_for(gateway: Gateway) -> None:
    async def scenario() -> tuple[Mapping[str, str], Any]:
        async with aiohttp.ClientSession() as http:
            headers = await asked(gateway, http, "a")
            async with http.get(f"{gateway.url}/v1/requests/ask-a") as answer:
                return headers, (await answer.json())["requests"][-1]

    headers, record = gateway.play(scenario())
    assert (headers["x-headway-slo-ttft-ms"], headers["x-headway-criticality"]) == ("2000", "sheddable")
    assert (record["tenant"], record["adapter"]) == ("anonymous/eve%2Fadam", "a")
