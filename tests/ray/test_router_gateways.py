"""Two gateways at one Router, which fills replicas to what the AIBrix profile of their GPU type says.

Each of the two replicas bears two requests. Streams last until the test closes them: nothing here depends on
how long a restart takes.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from ray import serve
from ray.exceptions import RayError

from tests.ray.clusters import GPU_TYPE, POLL_S, scale, wait_until
from tests.ray.routed_system import MODEL, PATIENCE_S, Gateway, deployed, kill_router, router_status

APP = "routed"
BEARS_TWO = {"indexes": [[100], [1000]], "tputs": [[2.0]], "e2e": [[1.0]]}
ENDLESS_TOKENS = 5_000


@pytest.fixture(scope="module")
def gateways(ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Gateway]]:
    file: Path = tmp_path_factory.mktemp("aibrix") / "l20.json"
    file.write_text(json.dumps(BEARS_TWO), encoding="utf-8")
    with deployed(**{"routing.profile": "pull", "routing.gpu_profiles": {GPU_TYPE: str(file)}}):
        scale(APP, "Gateway", 2)
        urls: set[str] = set()
        wait_until(lambda: len(found(urls)) == 2, PATIENCE_S)
        wait_until(lambda: router_status()["gateways"] == 2, PATIENCE_S)
        wait_until(lambda: router_status()["gpu_types"] == {GPU_TYPE: 2}, PATIENCE_S)
        yield [Gateway(url) for url in sorted(urls)]


def found(urls: set[str]) -> set[str]:
    """One gateway, whichever answers, more."""
    handle = serve.get_deployment_handle("Gateway", APP)
    urls.update(handle.addresses.remote().result(timeout_s=PATIENCE_S))
    return urls


@asynccontextmanager
async def streaming(gateway: Gateway, http: aiohttp.ClientSession) -> AsyncIterator[str]:
    """The replica of a stream whose first token has come; leaving the block closes it."""
    body = {"model": MODEL, "prompt": [1] * 100, "max_tokens": ENDLESS_TOKENS, "stream": True}
    headers = {"x-headway-explain": "true"}
    async with http.post(f"{gateway.url}/v1/completions", json=body, headers=headers) as answer:
        assert answer.status == 200
        assert (await answer.content.readline()).startswith(b"data: ")
        yield answer.headers["x-headway-replica"]


async def until(**wanted: int) -> Mapping[str, Any]:
    """The router's status once it is so; while the router is away there is none."""
    while True:
        try:
            status = await asyncio.to_thread(router_status)
        except (RayError, ValueError):
            status = {}
        if status and all(status[name] == value for name, value in wanted.items()):
            return status
        await asyncio.sleep(POLL_S)


def test_what_one_gateway_frees_goes_to_a_request_of_the_other(gateways: list[Gateway]) -> None:
    async def scenario() -> tuple[Counter[str], int]:
        async with aiohttp.ClientSession() as http, AsyncExitStack() as first, AsyncExitStack() as second:
            filled = [
                await stack.enter_async_context(streaming(gateway, http))
                for gateway, stack in zip(gateways, (first, second), strict=True)
                for _ in range(2)
            ]
            await until(running=4, queued=0)
            held = asyncio.create_task(gateways[1].ask(http, 100, 3))
            await until(running=4, queued=1)
            assert not held.done()
            await first.aclose()
            answer = await held
        await until(running=0, queued=0)
        return Counter(filled), answer.tokens

    filled, tokens = gateways[0].play(scenario())
    assert sorted(filled.values()) == [2, 2]
    assert tokens == 3


def test_after_kill_nine_the_router_knows_the_streams_of_both(gateways: list[Gateway]) -> None:
    async def scenario() -> list[tuple[int, int]]:
        async with aiohttp.ClientSession() as http:
            async with AsyncExitStack() as stack:
                for gateway in gateways:
                    await stack.enter_async_context(streaming(gateway, http))
                epoch = (await until(running=2))["epoch"]
                await asyncio.to_thread(kill_router)
                ended = await asyncio.gather(
                    *(gateway.ask(http, 100, 4) for gateway in gateways for _ in range(3))
                )
                status = await until(running=2, queued=0, gateways=2)
                assert status["epoch"] != epoch
                assert status["gpu_types"] == {GPU_TYPE: 2}
            await until(running=0, queued=0)
            return [(answer.status, answer.tokens) for answer in ended]

    assert gateways[0].play(scenario()) == [(200, 4)] * 6
