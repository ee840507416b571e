"""A deployment whose last replica sleeps instead of going: the same engine serves whoever comes next."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.ray.clusters import replicas, wait_until
from tests.ray.live_system import APPLICATION, LiveSystem, kill_nine, live_system
from tests.ray.test_from_zero import OUTPUT_TOKENS, REQUESTS, SETTINGS, asked


@pytest.fixture(scope="module")
def system(ray_cluster: object) -> Iterator[LiveSystem]:
    without = dict.fromkeys(("pools.prefill.max_replicas", "pools.decode.max_replicas"))
    sleeping = {
        "pools": {"mixed": {"min_replicas": 0, "max_replicas": 2, "sleepers": 1}},
        "engine.sleep.wake_up_s": 1.0,
    }
    with live_system({**SETTINGS, **sleeping, **without}) as running:
        yield running


def engines() -> set[str]:
    return {one["replica_id"] for one in replicas(APPLICATION, "Mixed")}


def test_the_last_replica_sleeps_and_wakes_for_who_comes(system: LiveSystem) -> None:
    wait_until(lambda: system.running("mixed") == 0 and not system.status()["pools"]["mixed"]["draining"])
    (slept,) = engines()
    assert system.get("/ready")["status"] == "ready"
    assert system.status()["verdict"]["well"]
    # Its successor finds out what sleeps, and what was wanted.
    kill_nine("Planner")
    assert asyncio.run(asked(system)) == [OUTPUT_TOKENS] * REQUESTS
    assert slept in engines()
    assert not system.counted("headway_requests_total", 'outcome="not_ready"')
    wait_until(lambda: system.running("mixed") == 0 and engines() == {slept})
    assert asyncio.run(asked(system)) == [OUTPUT_TOKENS] * REQUESTS
    assert slept in engines()
