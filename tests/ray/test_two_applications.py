"""Two applications with a model each in one cluster: one set of actors plans for both, each for itself."""

import subprocess
from collections.abc import Iterator

import pytest
from ray import serve

from actors import control_plane, names
from actors.control_plane import ControlPlaneError
from headway.config import HeadwayConfig, load_config
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import running_replicas, wait_until
from tests.ray.live_system import SLOW, LiveSystem, headway, kill_nine, pids

MODELS = {"small": "llama-3.1-8b", "large": "llama-3.1-70b"}
WITHOUT = ("pools.prefill.max_replicas", "pools.decode.max_replicas")
ONE_SET = {*names.HOSTS - {names.VIRTUAL_CONNECTOR}, *map(names.router, MODELS.values())}


def settings(name: str) -> HeadwayConfig:
    own = {
        "model": MODELS[name],
        "pools": {"mixed": {"max_replicas": 2}},
        "planner.policy": "headway",
        "gateway.port": free_port(),
        "planner.adjustment_interval_s": 2.0,
        "planner.tick_deadline_s": 60.0,
    }
    return load_config(None, {**SLOW, **dict.fromkeys(WITHOUT), **own})


def plans(system: LiveSystem) -> bool:
    return system.newest() >= 0


@pytest.fixture(scope="module")
def systems(ray_cluster: object) -> Iterator[dict[str, LiveSystem]]:
    from serve_apps.builders import application

    made, targets = {}, []
    for name in MODELS:
        config = settings(name)
        made[name] = LiveSystem(url=f"http://127.0.0.1:{config.gateway.port}")
        targets.append(
            serve.RunTarget(application(config), name=name, route_prefix=None, external_scaler_enabled=True)
        )
    # At once, as those of a Serve file are.
    serve.run_many(targets)
    for system in made.values():
        wait_until(lambda system=system: plans(system))  # type: ignore[misc]
    yield made
    for name in MODELS:
        serve.delete(name)


def assert_ids_are_its_own(system: LiveSystem) -> None:
    """From 0 without a gap."""
    ids = sorted(record["id"] for record in system.decisions())
    assert ids == list(range(len(ids)))


def test_each_has_its_own_decisions_from_one_set_of_actors(systems: dict[str, LiveSystem]) -> None:
    assert set(control_plane.running()) == ONE_SET
    for name, system in systems.items():
        assert system.status()["model"] == MODELS[name]
        assert system.get("/v1/models")["data"][0]["id"] == MODELS[name]
        assert_ids_are_its_own(system)


def test_a_planner_that_is_killed_goes_on_for_both(systems: dict[str, LiveSystem]) -> None:
    before = {name: system.newest() for name, system in systems.items()}
    kill_nine(names.PLANNER)
    for name, system in systems.items():
        wait_until(lambda name=name, system=system: system.newest() > before[name] + 1)  # type: ignore[misc]
        assert_ids_are_its_own(system)


def test_a_setting_of_one_is_none_of_the_other(systems: dict[str, LiveSystem]) -> None:
    changing = [*headway("set", "slo.ttft_ms=7000", "pools.mixed.min_replicas=2"), "--url"]
    subprocess.run([*changing, systems["large"].url], check=True, timeout=PATIENCE_S)
    wait_until(lambda: running_replicas("large", "Mixed") == 2)
    shown = {name: system.status()["slo"]["ttft_ms"] for name, system in systems.items()}
    assert shown == {"small": 4000, "large": 7000}
    assert running_replicas("small", "Mixed") == 1


def test_a_model_has_one_application(systems: dict[str, LiveSystem]) -> None:
    with pytest.raises(ControlPlaneError, match=r"'small' of this cluster serves 'llama-3.1-8b' already"):
        control_plane.start(settings("small"), "another")


def test_the_end_of_one_leaves_the_other_its_actors_and_its_past(systems: dict[str, LiveSystem]) -> None:
    planner, before = pids(names.PLANNER), systems["large"].newest()
    serve.delete("small")
    wait_until(lambda: names.router(MODELS["small"]) not in control_plane.running())
    assert names.router(MODELS["large"]) in control_plane.running()
    wait_until(lambda: systems["large"].newest() > before + 1)
    assert pids(names.PLANNER) == planner
    assert_ids_are_its_own(systems["large"])
