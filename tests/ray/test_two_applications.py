"""Two applications with a model each in one cluster: one set of actors plans for both, each for itself."""

import subprocess
from collections.abc import Iterator

import pytest
import ray
from ray import serve

from actors import control_plane, names
from actors.control_plane import ControlPlaneError
from headway.config import HeadwayConfig, load_config
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import running_replicas, start, wait_until
from tests.ray.live_system import SLOW, LiveSystem, headway, kill_nine, pids

MODELS = {"small": "llama-3.1-8b", "large": "llama-3.1-70b"}
WITHOUT = ("pools.prefill.max_replicas", "pools.decode.max_replicas")
GPUS, FLOOD = 3, "steady:rate_rps=4"
"""Of replicas with a GPU each; and requests that want all of them."""
ONE_SET = {*names.HOSTS - {names.VIRTUAL_CONNECTOR}, *map(names.router, MODELS.values())}


def settings(name: str) -> HeadwayConfig:
    own = {
        "model": MODELS[name],
        "pools": {"mixed": {"max_replicas": GPUS}},
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


def fleet() -> dict[str, str]:
    """The models of the applications that the Planner knows."""
    found = ray.get(names.find_actor(names.PLANNER).fleet.remote())["deployments"]
    return {each["name"]: each["model"] for each in found}


def assert_ids_are_its_own(system: LiveSystem) -> None:
    """From 0 without a gap."""
    ids = sorted(record["id"] for record in system.decisions())
    assert ids == list(range(len(ids)))


def test_each_has_its_own_decisions_from_one_set_of_actors(systems: dict[str, LiveSystem]) -> None:
    assert set(control_plane.running()) == ONE_SET
    assert fleet() == MODELS
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


def change(system: LiveSystem, *changes: str) -> None:
    subprocess.run([*headway("set", *changes), "--url", system.url], check=True, timeout=PATIENCE_S)


def test_a_setting_of_one_is_none_of_the_other(systems: dict[str, LiveSystem]) -> None:
    change(systems["large"], "slo.ttft_ms=7000", "pools.mixed.min_replicas=2")
    wait_until(lambda: running_replicas("large", "Mixed") == 2)
    shown = {name: system.status()["slo"]["ttft_ms"] for name, system in systems.items()}
    assert shown == {"small": 4000, "large": 7000}
    assert running_replicas("small", "Mixed") == 1


def target(system: LiveSystem) -> int:
    """That of the newest decision; -1 while nobody answers."""
    try:
        return int(system.decisions()[-1]["targets"]["mixed"])
    except OSError:
        return -1


def most_together(systems: dict[str, LiveSystem]) -> int:
    """GPUs that both had at most by their targets, since both share."""
    decisions = [(each["created_at"], name, each) for name in systems for each in systems[name].decisions()]
    since_s = max(
        min(at for at, of, each in decisions if of == name and "grant" in each["reasons"]) for name in systems
    )
    held, most = dict.fromkeys(systems, 0), 0
    for at, name, each in sorted(decisions, key=lambda found: found[0]):
        held[name] = each["targets"]["mixed"]
        most = max(most, sum(held.values())) if at >= since_s else 0
    return most


def test_a_budget_of_both_is_never_exceeded_and_goes_by_rank_also_after_kill_nine(
    systems: dict[str, LiveSystem],
) -> None:
    small, large = systems["small"], systems["large"]
    for system in systems.values():
        change(system, f"fleet.gpus={GPUS + 1}")
    # Of the common budget one change is for both.
    change(small, f"fleet.gpus={GPUS}", "share.priority=0")
    change(large, "pools.mixed.min_replicas=1")
    wait_until(lambda: [each.status()["fleet"]["gpus"] for each in systems.values()] == [GPUS, GPUS])
    with small.under_load(FLOOD):
        wait_until(lambda: (target(small), target(large)) == (GPUS - 1, 1))
        change(large, "share.priority=1")
        with large.under_load(FLOOD):
            wait_until(lambda: (target(small), target(large)) == (1, GPUS - 1))
            before = {name: system.newest() for name, system in systems.items()}
            kill_nine(names.PLANNER)
            for name, system in systems.items():
                wait_until(lambda name=name, system=system: system.newest() > before[name] + 2)  # type: ignore[misc]
            wait_until(lambda: (target(small), target(large)) == (1, GPUS - 1))
            assert "went to large (priority 1)" in small.status()["fleet"]["words"]
    assert most_together(systems) == GPUS
    for system in systems.values():
        assert_ids_are_its_own(system)


def test_a_model_has_one_application(systems: dict[str, LiveSystem]) -> None:
    with pytest.raises(ControlPlaneError, match=r"'small' of this cluster serves 'llama-3.1-8b' already"):
        start(settings("small"), "another")


def test_the_end_of_one_leaves_the_other_its_actors_and_its_past(systems: dict[str, LiveSystem]) -> None:
    planner, before = pids(names.PLANNER), systems["large"].newest()
    serve.delete("small")
    wait_until(lambda: names.router(MODELS["small"]) not in control_plane.running())
    assert names.router(MODELS["large"]) in control_plane.running()
    wait_until(lambda: systems["large"].newest() > before + 1)
    assert pids(names.PLANNER) == planner
    wait_until(lambda: set(fleet()) == {"large"})
    assert_ids_are_its_own(systems["large"])
