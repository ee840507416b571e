"""A fleet of real vLLM engines: four models, room for two, and each is served whenever it is asked."""

import asyncio
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors import names
from headway.config.models import with_key
from headway_cli.deployment import delete, deploy
from headway_cli.live_fleet import fleet_form, fleet_settings
from tests.patience import PATIENCE_S
from tests.ray.clusters import wait_until
from tests.ray.fleet_system import FLEET, Fleet
from tests.ray.live_system import alive_again, kill_nine
from tests.vllm.served import STARTED_WITHIN_S, TINY

MODELS, ROOM, LONG = ("one", "two", "three", "four"), 2, 1000
ROUTER = names.router(FLEET)
SETTINGS: dict[str, Any] = {
    **{key: value for key, value in TINY.items() if key != "model"},
    "engine.ready_within_s": STARTED_WITHIN_S,
    "slo.ttft_ms": 60_000.0,
    "slo.itl_ms": 1000.0,
    "fleet.gpus": ROOM,
    # As many as there are on this Ray: an engine more than the budget has would never start.
    "pools.mixed": {"min_replicas": 0, "max_replicas": 1, "resources": {"decode": 1}},
    "planner.adjustment_interval_s": 2.0,
    "planner.tick_deadline_s": 60.0,
    "planner.headway.hold_s": 0.0,
    "gateway.start_wait_s": PATIENCE_S,
    "gateway.request_timeout_s": 2 * PATIENCE_S,
}


@pytest.fixture(scope="module")
def fleet(ray_cluster: object, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    common: dict[str, Any] = {}
    for key, value in {**SETTINGS, "engine.vllm.model": str(model)}.items():
        common = with_key(common, key, value)
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet.yaml", common)
    made.write(**{name: {"model": name} for name in MODELS})
    # The checks import vLLM.
    with warnings.catch_warnings(action="ignore"):
        settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)


def awake(fleet: Fleet) -> list[str]:
    return [name for name in MODELS if fleet.state(name) == "ready"]


async def seen(holds: Any) -> None:
    await asyncio.to_thread(wait_until, holds)


def test_requests_for_models_that_sleep_are_held_wake_them_and_are_served(fleet: Fleet) -> None:
    wait_until(lambda: not awake(fleet))

    async def asked() -> list[int]:
        held = [asyncio.create_task(fleet.asked(name)) for name in MODELS[:ROOM]]
        await seen(lambda: [fleet.state(name) for name in MODELS[:ROOM]] == ["starting"] * ROOM)
        return await asyncio.gather(*held)

    assert asyncio.run(asked()) == [3] * ROOM
    assert awake(fleet) == [*MODELS[:ROOM]]
    for name in MODELS[:ROOM]:
        notes = [note for record in fleet.deployment(name).decisions() for note in record["notes"]]
        assert "1 request held for the first replica of a pool" in notes


def test_others_wake_once_these_are_idle_and_kill_9_meanwhile_loses_nothing(fleet: Fleet) -> None:
    async def asked() -> list[int]:
        streams = [asyncio.create_task(fleet.asked(name, LONG, ignore_eos=True)) for name in MODELS[:ROOM]]
        await seen(lambda: fleet.gateway.counted("headway_requests_in_flight") == ROOM)
        held = [asyncio.create_task(fleet.asked(name)) for name in MODELS[ROOM:]]
        await seen(lambda: [fleet.state(name) for name in MODELS[ROOM:]] == ["waiting"] * ROOM)
        killed = {name: await asyncio.to_thread(kill_nine, name) for name in (names.PLANNER, ROUTER)}
        await seen(lambda: all(alive_again(name, pid) for name, pid in killed.items()))
        return await asyncio.gather(*streams, *held)

    assert asyncio.run(asked()) == [*[LONG] * ROOM, *[3] * ROOM]
    assert awake(fleet) == [*MODELS[ROOM:]]
    for name in MODELS:
        assert fleet.has_all_decisions(name)
        assert not fleet.deployment(name).counted("headway_requests_total", 'outcome="not_ready"')
