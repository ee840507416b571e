"""A deployment that may have no replica: idle it has none, and the first requests are held and served."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.patience import PATIENCE_S
from tests.ray.clusters import running_replicas, wait_until
from tests.ray.live_system import APPLICATION, LiveSystem, kill_nine, live_system

MODEL, REQUESTS, OUTPUT_TOKENS = "llama-3.1-8b", 4, 5
SETTINGS = {
    "pools": {"mixed": {"min_replicas": 0, "max_replicas": 2}},
    "planner.policy": "headway",
    "planner.headway.hold_s": 0.0,
    "planner.adjustment_interval_s": 2.0,
    "planner.tick_deadline_s": 60.0,
    "gateway.start_wait_s": PATIENCE_S,
    "gateway.request_timeout_s": 2 * PATIENCE_S,
}


@pytest.fixture(scope="module")
def system(ray_cluster: object) -> Iterator[LiveSystem]:
    without = ("pools.prefill.max_replicas", "pools.decode.max_replicas")
    with live_system({**SETTINGS, **dict.fromkeys(without)}) as running:
        yield running


def replicas() -> int:
    return running_replicas(APPLICATION, "Mixed")


async def asked(system: LiveSystem) -> list[int]:
    """Requests at once, as their users send them; the output tokens of each."""
    async with openai.AsyncOpenAI(
        base_url=f"{system.url}/v1", api_key="-", max_retries=0, timeout=3 * PATIENCE_S
    ) as client:
        answers = [
            client.completions.create(model=MODEL, prompt="Hello", max_tokens=OUTPUT_TOKENS)
            for _ in range(REQUESTS)
        ]
        return [answer.usage.completion_tokens for answer in await asyncio.gather(*answers) if answer.usage]


def test_idle_pools_have_no_replica_and_who_comes_then_is_served(system: LiveSystem) -> None:
    wait_until(lambda: replicas() == 0)
    assert system.get("/ready")["status"] == "ready"
    status = system.status()
    assert status["verdict"]["well"], status["verdict"]
    # Whoever hears of requests first, the planner before or after: they wait in the gateway.
    kill_nine("Planner")
    assert asyncio.run(asked(system)) == [OUTPUT_TOKENS] * REQUESTS
    assert replicas() >= 1
    assert not system.counted("headway_requests_total", 'outcome="not_ready"')
    first = next(record for record in reversed(system.decisions()) if record["targets"] == {"mixed": 0})
    woken = next(record for record in system.decisions() if record["id"] == first["id"] + 1)
    assert woken["targets"]["mixed"] >= 1
    assert woken["pools"]["mixed"]["ready"] == 0
