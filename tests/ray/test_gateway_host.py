"""The gateway where it runs: clients that leave, its own death, the end of the application."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import pytest
import ray
from ray import serve

from serve_apps import agg
from tests.ports import free_port
from tests.ray.clusters import POLL_S, controller, replicas, wait_until

APP = "headway"
SLOW = {"engine.time_scale": 0.05, "control_plane": False, "pools.mixed.max_replicas": 2}


@dataclass(frozen=True)
class Urls:
    own: str
    proxy: str


@pytest.fixture(scope="module")
def urls(ray_with_proxy: str) -> Urls:
    port = free_port()
    serve.run(agg.build({**SLOW, "gateway.port": port}), name=APP)
    proxy_port = ray.get(controller().get_serve_instance_details.remote())["http_options"]["port"]
    return Urls(own=f"http://127.0.0.1:{port}", proxy=f"http://127.0.0.1:{proxy_port}")


@asynccontextmanager
async def streaming(url: str, max_tokens: int) -> AsyncIterator[AsyncIterator[bytes]]:
    """The events of a stream; leaving the block closes the connection."""
    body = {"model": "llama-3.1-8b", "prompt": "x", "stream": True, "max_tokens": max_tokens}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client,
        client.post(f"{url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200
        yield (line async for line in response.content if line.startswith(b"data:"))


def running() -> int:
    handle = serve.get_deployment_handle("Mixed", APP)
    stats = handle.stats.remote().result(timeout_s=30)
    return int(stats.running + stats.waiting)


@pytest.mark.parametrize("entrance", ["own", "proxy"])
def test_a_client_that_leaves_frees_the_engine(urls: Urls, entrance: str) -> None:
    async def scenario() -> None:
        async with streaming(getattr(urls, entrance), 5_000) as events:
            await anext(events)
            while await asyncio.to_thread(running) != 1:
                await asyncio.sleep(POLL_S)

    asyncio.run(scenario())
    wait_until(lambda: running() == 0)


def test_a_killed_gateway_comes_back_where_it_was(urls: Urls) -> None:
    (before,) = replicas(APP, "Gateway")
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: [one["pid"] for one in replicas(APP, "Gateway")] not in ([], [before["pid"]]))

    async def scenario() -> bytes:
        async with streaming(urls.own, 3) as events:
            return [event async for event in events][-1]

    assert asyncio.run(scenario()).strip() == b"data: [DONE]"
    # What the dead gateway had under way went with it.
    wait_until(lambda: running() == 0)


def test_a_stream_survives_the_end_of_the_application(urls: Urls) -> None:
    async def scenario() -> list[bytes]:
        async with streaming(urls.own, 30) as events:
            first = await anext(events)
            deleting = asyncio.create_task(asyncio.to_thread(serve.delete, APP))
            rest = [event async for event in events]
            await deleting
        return [first, *rest]

    events = asyncio.run(scenario())
    assert events[-1].strip() == b"data: [DONE]"
    texts = [json.loads(event[5:])["choices"] for event in events[:-1]]
    assert [choices[0]["finish_reason"] for choices in texts if choices][-1] == "length"
    assert APP not in serve.status().applications
