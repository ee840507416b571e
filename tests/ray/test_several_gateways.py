"""Two gateways on one port, one of which is killed while it serves: clients, planner and Router go on.

What dies with it is exact: the ends of the requests that it had under way. Their arrivals had been read.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import ray
from prometheus_client.parser import text_string_to_metric_families
from ray import serve

from actors import control_plane
from actors.collector.interval import HealthStatus, Measured
from actors.metric_collector import MetricCollector
from headway.config import HeadwayConfig, load_config
from tests.ports import free_port
from tests.ray.clusters import POLL_S, replicas, wait_until
from tests.ray.routed_system import MODEL, ROUTED, router_says, router_status

APP = "routed"
ANSWER_S = 60.0
"""For one call of the collector."""
TEST_S = 300.0
HELD_TOKENS = 5_000
"""Of a stream that lasts until its client leaves, or its gateway does."""


@dataclass(frozen=True)
class Fleet:
    url: str
    collector: Any

    def measured(self, interval_s: float) -> Measured:
        found: Measured = ray.get(self.collector.collect.remote(interval_s), timeout=ANSWER_S)
        return found

    def read(self) -> None:
        ok, why = ray.get(self.collector.ready.remote(), timeout=ANSWER_S)
        assert ok, why

    async def ask(self, times: int) -> int:
        """So many requests at once, each on a connection of its own; how many were answered whole."""
        return sum(await asyncio.gather(*(self.one() for _ in range(times))))

    async def one(self) -> bool:
        body = {"model": MODEL, "prompt": [1] * 50, "max_tokens": 2}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}/v1/completions", json=body) as answer,
        ):
            text = await answer.text()
            assert answer.status == 200, text
            return True

    async def ready(self) -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/ready") as answer:
            return answer.status == 200

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[aiohttp.ClientResponse]:
        """A stream whose first token has come, on a connection of its own."""
        body = {"model": MODEL, "prompt": [1] * 50, "max_tokens": HELD_TOKENS, "stream": True}
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self.url}/v1/completions", json=body) as answer,
        ):
            assert answer.status == 200
            await answer.content.readline()
            yield answer

    async def by_gateway(self, name: str) -> dict[str, float]:
        """A metric of each gateway, as whichever answers the scrape has it."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.url}/metrics") as answer:
            text = await answer.text()
        assert answer.status == 200, text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {one.labels["gateway"]: one.value for one in samples if one.name == name}


@pytest.fixture(scope="module")
def fleet(ray_cluster: str) -> Iterator[Fleet]:
    from serve_apps.builders import application

    config: HeadwayConfig = load_config(
        None,
        {
            **ROUTED,
            "engine.max_batch_size": 64,
            "slo": {"ttft_ms": 30_000, "itl_ms": 5_000},
            "gateway": {"port": free_port(), "replicas": 2},
        },
    )
    serve.run(application(config, control_plane=False), name=APP, external_scaler_enabled=True)
    collector = ray.remote(MetricCollector).options(num_cpus=0).remote(config.model_dump_json(), APP)
    try:
        wait_until(lambda: router_says(lambda router: router["gateways"] == 2))
        yield Fleet(f"http://127.0.0.1:{config.gateway.port}", collector)
    finally:
        ray.kill(collector)
        serve.delete(APP)
        control_plane.stop(purge=True)


def gateways() -> dict[str, int]:
    """The process ids of the gateways that run, by replica."""
    return {one["replica_id"]: one["pid"] for one in replicas(APP, "Gateway")}


async def settled(fleet: Fleet, count: int) -> None:
    """Return once so many gateways count, and nothing is under way."""
    while True:
        flying = await fleet.by_gateway("headway_requests_in_flight")
        if len(flying) == count and not any(flying.values()):
            return
        await asyncio.sleep(POLL_S)


def gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_one_of_two_gateways_is_killed_under_load(fleet: Fleet) -> None:
    async def scenario() -> None:
        fleet.measured(10.0)
        began_s, before = time.time(), gateways()
        assert len(before) == 2
        answered = await fleet.ask(30)

        async with AsyncExitStack() as streams:
            held: list[aiohttp.ClientResponse] = []
            flying: dict[str, float] = {}
            while len(flying) < 2 or min(flying.values()) < 2:
                held.append(await streams.enter_async_context(fleet.stream()))
                flying = await fleet.by_gateway("headway_requests_in_flight")
            assert sum(flying.values()) == len(held)
            assert router_status()["running"] == len(held)
            await asyncio.to_thread(fleet.read)

            victim = min(before)
            os.kill(before[victim], signal.SIGKILL)
            while not gone(before[victim]):
                await asyncio.sleep(POLL_S)
            # Each finds the other one at once, as all that come while Serve starts another do.
            assert await fleet.ready()
            answered += await fleet.ask(20)
            ended = [asyncio.create_task(each.content.read()) for each in held]
            while sum(task.done() for task in ended) < flying[victim]:
                await asyncio.sleep(POLL_S)
            broken = [task for task in ended if task.done()]
            assert all(isinstance(task.exception(), aiohttp.ClientPayloadError) for task in broken)
            assert len(broken) == flying[victim], "those of the other one go on"
            await asyncio.to_thread(wait_until, lambda: len(gateways().keys() - {victim}) == 2)
            answered += await fleet.ask(20)
            for task in ended:
                task.cancel()
            await asyncio.gather(*ended, return_exceptions=True)

        assert answered == 70
        await settled(fleet, 2)
        # Nothing of the dead one stays in the Router's books.
        idle = {"running": 0, "queued": 0, "gateways": 2}
        await asyncio.to_thread(
            wait_until, lambda: router_says(lambda said: idle.items() <= dict(said).items())
        )
        found = await asyncio.to_thread(fleet.measured, time.time() - began_s)
        assert found.health.status is HealthStatus.OK, found.health
        assert (found.requests, found.completed) == (answered + len(held), answered)
        assert found.traffic is None, "a list died with its gateway"
        assert found.counted is not None

        began_s = time.time()
        assert await fleet.ask(10) == 10
        found = await asyncio.to_thread(fleet.measured, time.time() - began_s)
        assert (found.requests, found.completed, found.health.status) == (10.0, 10.0, HealthStatus.OK)
        assert found.traffic is not None
        assert len(found.traffic.arrival_s) == 10

    asyncio.run(asyncio.wait_for(scenario(), TEST_S))
