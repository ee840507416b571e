"""Two models whose engines sleep, and host memory for one: it goes to the one that is asked."""

import asyncio
from collections.abc import Iterator

import pytest

from headway_cli.deployment import delete, deploy
from headway_cli.live_fleet import fleet_form, fleet_settings
from tests.ray.clusters import replicas, wait_until
from tests.ray.fleet_system import FLEET, Fleet
from tests.ray.test_live_fleet import COMMON

SLEEPING = {
    **COMMON,
    "engine": {**COMMON["engine"], "sleep": {"wake_up_s": 0.5, "memory": 30e9}},
    "pools": {"mixed": {"min_replicas": 0, "max_replicas": 1, "sleepers": 1}},
    "fleet": {"gpus": 2, "host_memory": 50e9},
}


@pytest.fixture(scope="module")
def fleet(ray_cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet.yaml", SLEEPING)
    made.write(chat={"model": "llama-3.1-8b"}, code={"model": "codestral"})
    settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)


def engines(name: str) -> int:
    return len(replicas(name, "Mixed"))


def asleep(fleet: Fleet, name: str) -> bool:
    return bool(fleet.deployment(name).status()["pools"]["mixed"]["asleep"]) and engines(name) == 1


def test_the_engine_that_is_asked_sleeps_and_the_other_goes(fleet: Fleet) -> None:
    # Nobody was asked: the first by name.
    wait_until(lambda: asleep(fleet, "chat") and engines("code") == 0)
    (record,) = fleet.deployment("code").decisions()[-1:]
    assert (
        "mixed: 0 of 1 engines may sleep; GPUs and host memory hold no more" in record["reasons"]["warnings"]
    )
    assert asyncio.run(fleet.asked("codestral")) == 3
    wait_until(lambda: asleep(fleet, "code") and engines("chat") == 0)
    assert asyncio.run(fleet.asked("llama-3.1-8b")) == 3
    assert fleet.has_all_decisions("chat")
    assert fleet.has_all_decisions("code")
