"""Requests routed by the Router actor through the gateway: two SLO classes at overload; its death."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

import aiohttp
import pytest

from tests.ray.clusters import POLL_S, replicas, wait_until
from tests.ray.routed_system import (
    PATIENCE_S,
    Answered,
    Gateway,
    deployed,
    kill_router,
    router_says,
    router_status,
)

Judged = Mapping[tuple[str, ...], float]
"""Requests by class and whether they met their SLO."""


@pytest.fixture(scope="module")
def gateway(ray_cluster: str) -> Iterator[Gateway]:
    classes = {
        "urgent": {"ttft_ms": 20_000, "tpot_ms": 2_000, "critical": True},
        "batch": {"ttft_ms": 3_000, "tpot_ms": 400},
    }
    with deployed(**{"slo.classes": classes}) as gateway:
        gateway.play(placed_by_the_router(gateway))
        yield gateway


async def placed_by_the_router(gateway: Gateway) -> None:
    """Return once the gateway places by it: before the router has answered it, it places by itself."""
    async with aiohttp.ClientSession() as http:
        while True:
            told = await gateway.ask(http, 100, 1, x_headway_explain="true", x_headway_slo_class="urgent")
            if "x-headway-predicted-ttft-ms" in told.headers:
                return
            await asyncio.sleep(POLL_S)


def test_placement_and_prediction_are_told_when_asked(gateway: Gateway) -> None:
    async def scenario() -> tuple[Answered, Answered]:
        async with aiohttp.ClientSession() as http:
            told = await gateway.ask(http, 100, 3, x_headway_explain="true", x_headway_slo_class="urgent")
            return told, await gateway.ask(http, 100, 3, x_headway_slo_class="urgent")

    told, silent = gateway.play(scenario())
    assert told.tokens == silent.tokens == 3
    assert told.headers["x-headway-replica"] in {one["replica_id"] for one in replicas("routed", "Mixed")}
    assert float(told.headers["x-headway-predicted-ttft-ms"]) > 0
    assert float(told.headers["x-headway-predicted-tpot-ms"]) > 0
    assert "x-headway-replica" not in silent.headers


def test_critical_requests_keep_their_slo_at_overload_and_others_are_shed(gateway: Gateway) -> None:
    async def scenario() -> tuple[list[Answered], list[Answered], Judged]:
        async with aiohttp.ClientSession() as http:
            before = sum_of("urgent", await judged(http))
            others = [ask("batch", http) for _ in range(40)]
            await asyncio.sleep(1.0)
            urgent = [ask("urgent", http) for _ in range(6)]
            ended = await asyncio.gather(*urgent), await asyncio.gather(*others)
            # Clients have the last token before it is counted.
            while sum_of("urgent", counts := await judged(http)) < before + 6:
                await asyncio.sleep(POLL_S)
            return *ended, counts

    def ask(slo_class: str, http: aiohttp.ClientSession) -> asyncio.Task[Answered]:
        return asyncio.create_task(gateway.ask(http, 500, 20, x_headway_slo_class=slo_class))

    async def judged(http: aiohttp.ClientSession) -> Judged:
        return await gateway.samples(http, "headway_slo_class_requests_total")

    urgent, others, counts = gateway.play(scenario())
    assert [(answer.status, answer.tokens) for answer in urgent] == [(200, 20)] * 6
    assert counts.get(("urgent", "false"), 0.0) == 0
    statuses = Counter(answer.status for answer in others)
    assert set(statuses) == {200, 429}
    assert statuses[429] >= 10
    assert all("retry-after" in answer.headers for answer in others if answer.status == 429)
    assert all(answer.tokens == 20 for answer in others if answer.status == 200)


def sum_of(slo_class: str, counts: Judged) -> float:
    return sum(value for labels, value in counts.items() if labels[0] == slo_class)


def test_kill_nine_of_the_router_under_load_loses_no_request(gateway: Gateway) -> None:
    async def scenario() -> tuple[list[Answered], float]:
        async with aiohttp.ClientSession() as http:
            before = await fallbacks(http)
            tasks = []
            for number in range(24):
                tasks.append(asyncio.create_task(gateway.ask(http, 100, 8, x_headway_slo_class="urgent")))
                if number == 8:
                    await asyncio.to_thread(kill_router)
                await asyncio.sleep(0.15)
            ended = await asyncio.gather(*tasks)
            return ended, await fallbacks(http) - before

    async def fallbacks(http: aiohttp.ClientSession) -> float:
        return sum((await gateway.samples(http, "headway_router_fallback_total")).values())

    epoch = router_status()["epoch"]
    ended, fell_back = gateway.play(scenario())
    assert [(answer.status, answer.tokens) for answer in ended] == [(200, 8)] * 24
    assert fell_back > 0
    wait_until(lambda: router_says(lambda status: status["epoch"] != epoch), PATIENCE_S)
    wait_until(lambda: router_says(lambda status: status["gateways"] == 1), PATIENCE_S)
    # It has no request left over, and places again.
    wait_until(lambda: router_says(lambda status: status["running"] == 0), PATIENCE_S)
    gateway.play(placed_by_router(gateway))


async def placed_by_router(gateway: Gateway) -> None:
    async with aiohttp.ClientSession() as http:
        while True:
            answer = await gateway.ask(http, 100, 3, x_headway_explain="true", x_headway_slo_class="urgent")
            assert answer.tokens == 3
            if answer.headers["x-headway-route-reason"] != "fallback":
                return
            await asyncio.sleep(POLL_S)
