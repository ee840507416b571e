"""Mixed replicas behind the Router, on one application: adapters and tenants, and offloaded prefills.

Engines report their adapters, the Router places by them, and both outlive its death. An offloaded prefill
whose replica dies or stalls is no error: the prompt is computed where it decodes.
"""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import aiohttp
import pytest
import ray
from ray import serve
from ray.util import list_named_actors

from actors import names
from serve_apps.control_plane import ActorControlPlane
from serve_apps.engines.protocol import EngineStats
from tests.ray.clusters import POLL_S, replicas, running_replicas, wait_until
from tests.ray.routed_system import (
    MODEL,
    PATIENCE_S,
    Answered,
    Gateway,
    deployed,
    kill_router,
    router_says,
    router_status,
)

APP, POOL = "routed", "Mixed"
HEAVY = 4_000
TOKENS = 4
STAMPS = ("t_proxy_recv", "t_prefill_sent", "t_prefill_done", "t_first_token", "t_done")
ADAPTERS = ("a", "b")


@pytest.fixture(scope="module")
def gateway(ray_cluster: str) -> Iterator[Gateway]:
    plugins = [
        {"pluginRef": "lora-affinity-scorer", "weight": 4},
        {"pluginRef": "least-load"},
        {"pluginRef": "first-max-picker"},
    ]
    settings = {
        "engine.lora": {"names": ADAPTERS, "at_once": 1},
        "routing.profile": "adapters",
        "routing.scheduling_profiles": [{"name": "adapters", "plugins": plugins}],
        "routing.tenants": {"*": {"per_user": True, "may_be_critical": False, "least_ttft_ms": 2000}},
        "routing.offload": {
            "mode": "always",
            "heavy_tokens": 2_000,
            "deadline_factor": 1.0,
            "deadline_slack_ms": 1_000,
        },
    }
    with deployed(**settings) as gateway:
        gateway.play(placed_by_the_router(gateway))
        yield gateway


@pytest.mark.usefixtures("gateway")
def test_full_collections_pass_over_what_processes_that_serve_began_with():
    """The Router looked through 200,000 objects for 100 ms, in which it placed nothing."""
    named = [f"{APP}#{kind}#" for kind in ("Gateway", POOL)] + [names.router(MODEL)]
    serving = [
        each for each in list_named_actors(all_namespaces=True) if any(name in each["name"] for name in named)
    ]
    assert len(serving) == 4
    for each in serving:
        actor = ray.get_actor(each["name"], namespace=each["namespace"])
        # Not a function of this module, which the process can't import.
        counts = actor.__ray_call__.remote(lambda _: (gc.get_freeze_count(), len(gc.get_objects())))
        frozen, looked_at = ray.get(counts, timeout=PATIENCE_S)
        assert frozen > 100_000, each["name"]
        assert looked_at < frozen, each["name"]


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
            if answer.headers["x-headway-route-reason"] != "fallback":
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


def test_each_output_of_a_call_is_placed_by_itself(gateway: Gateway) -> None:
    """Four take all places of a replica (`engine.max_batch_size`): the others go to the second one."""

    async def scenario() -> tuple[Any, Any]:
        async with aiohttp.ClientSession() as http:
            body = {"model": MODEL, "prompt": "Hi", "max_tokens": 3, "n": 8}
            headers = {"x-request-id": "eight", "x-headway-criticality": "critical"}
            async with http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as answer:
                document = await answer.json()
            async with http.get(f"{gateway.url}/v1/requests/eight") as answer:
                return document, (await answer.json())["requests"]

    document, records = gateway.play(scenario())
    assert [choice["index"] for choice in document["choices"]] == list(range(8))
    assert document["usage"]["completion_tokens"] == 24
    assert len(records) == 8
    assert len({record["placement"]["decode_replica"] for record in records}) == 2


def call(replica: str, method: str, *arguments: Any) -> Any:
    handle = serve.get_deployment_handle(POOL, APP).options(session_id=replica, method_name=method)
    return handle.remote(*arguments).result(timeout_s=PATIENCE_S)


async def computing_elsewhere() -> str:
    """The replica that computes the prompt for another one, which has nothing to do until it has the KV."""
    while True:
        for one in replicas(APP, POOL):
            stats: EngineStats = await asyncio.to_thread(call, one["replica_id"], "stats")
            if stats.running or stats.waiting:
                return str(one["replica_id"])
        await asyncio.sleep(POLL_S)


def traces() -> Sequence[Mapping[str, Any]]:
    """What the router has recorded of long prompts, by the way that the control API takes."""
    found = asyncio.run(ActorControlPlane(names.router(MODEL)).offload_traces(100))
    return [trace for trace in found if trace["route_class"].startswith("HEAVY")]


def heavy(gateway: Gateway, fault: Callable[[str], None] | None) -> Answered:
    """A long prompt; the replica that computes it for another suffers the fault meanwhile."""

    async def scenario() -> Answered:
        async with aiohttp.ClientSession() as http:
            asked = asyncio.create_task(gateway.ask(http, HEAVY, TOKENS, x_headway_explain="true"))
            if fault is not None:
                await asyncio.to_thread(fault, await computing_elsewhere())
            return await asked

    answered: Answered = gateway.play(scenario())
    return answered


def test_a_long_prompt_is_computed_elsewhere(gateway: Gateway) -> None:
    answer = heavy(gateway, None)
    assert (answer.status, answer.tokens) == (200, TOKENS)
    assert answer.headers["x-headway-route-class"] == "HEAVY_P2P"
    assert answer.headers["x-headway-prefill-replica"] != answer.headers["x-headway-replica"]
    wait_until(lambda: len(traces()) == 1, PATIENCE_S)
    (trace,) = traces()
    assert (trace["route_class"], trace["offload_decision_reason"]) == ("HEAVY_P2P", "always")
    stamps = [trace[name] for name in STAMPS]
    assert stamps == sorted(stamps)
    assert trace["t_prefill_done"] < trace["t_first_token"]
    assert abs(stamps[-1] - time.time()) < PATIENCE_S
    metrics = router_status()["metrics"]
    assert metrics["transfer"]["measured"] == 1
    wait_until(lambda: len(router_status()["metrics"]["busy_s"]) == 2, PATIENCE_S)


def test_a_prefill_that_stalls_is_given_up_at_its_deadline(gateway: Gateway) -> None:
    stalled: list[str] = []

    def stall(replica: str) -> None:
        stalled.append(replica)
        call(replica, "inject", "stall")

    try:
        answer = heavy(gateway, stall)
    finally:
        for replica in stalled:
            call(replica, "inject", "clear")
    assert (answer.status, answer.tokens, answer.error) == (200, TOKENS, None)
    assert answer.headers["x-headway-route-class"] == "HEAVY_COLO"
    assert answer.headers["x-headway-replica"] not in stalled
    assert answer.headers["x-headway-prefill-replica"] == answer.headers["x-headway-replica"]


def test_a_prefill_whose_replica_dies_is_computed_where_it_decodes(gateway: Gateway) -> None:
    killed: list[str] = []

    def kill(replica: str) -> None:
        killed.append(replica)
        victim = next(one for one in replicas(APP, POOL) if one["replica_id"] == replica)
        os.kill(victim["pid"], signal.SIGKILL)

    answer = heavy(gateway, kill)
    assert (answer.status, answer.tokens, answer.error) == (200, TOKENS, None)
    assert answer.headers["x-headway-route-class"] == "HEAVY_COLO"
    assert answer.headers["x-headway-replica"] not in killed
    wait_until(lambda: running_replicas(APP, POOL) == 2, PATIENCE_S)
