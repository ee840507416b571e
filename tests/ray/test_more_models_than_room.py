"""More models that may have no replica than there is room for: they begin empty, and serve in turns."""

import asyncio
from collections.abc import Iterator

import pytest

from headway_cli.deployment import delete, deploy
from headway_cli.live_fleet import fleet_form, fleet_settings
from tests.ray.clusters import replicas, running_replicas, wait_until
from tests.ray.fleet_system import FLEET, Fleet
from tests.ray.test_live_fleet import COMMON

MODELS = ("llama-3.1-8b", "codestral", "qwen-2.5-7b", "olmo-7b")
RARE = {
    **COMMON,
    # Of which the Ray of tests has two.
    "pools": {"mixed": {"min_replicas": 0, "max_replicas": 2, "resources": {"decode": 1}}},
    "fleet": {"gpus": 2},
}


def named(*models: str) -> dict[str, dict[str, str]]:
    return {f"m{at}": {"model": model} for at, model in enumerate(models)}


@pytest.fixture(scope="module")
def fleet(ray_cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet.yaml", RARE)
    made.write(**named(*MODELS))
    settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)


def test_they_begin_empty_and_are_served_in_turns(fleet: Fleet) -> None:
    assert {fleet.state(model) for model in MODELS} == {"asleep"}
    assert not any(replicas(name, "Mixed") for name in named(*MODELS))
    for model in MODELS:
        assert asyncio.run(fleet.asked(model)) == 3
    assert sum(running_replicas(name, "Mixed") for name in named(*MODELS)) <= 2
    assert all(fleet.has_all_decisions(name) for name in named(*MODELS))


def test_one_that_comes_later_begins_empty_too(fleet: Fleet) -> None:
    fleet.change(**named(*MODELS, "aya-8b"))
    wait_until(lambda: fleet.models()[-1] == "aya-8b")
    assert not replicas("m4", "Mixed")
    assert asyncio.run(fleet.asked("aya-8b")) == 3
