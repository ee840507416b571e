"""A fleet that `serve deploy` starts and changes: the shipped Serve file, with simulated engines."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema

from actors import control_plane
from headway.config import ConfigError
from serve_apps.fleet import build, engines
from tests.patience import PATIENCE_S
from tests.ray.clusters import PATIENT, controller, replicas, wait_until
from tests.ray.fleet_system import Fleet

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "examples/serve/fleet.yaml"
COMMON = {
    "engine": {"profile": "llama-3.1-8b_h100_tp1", "time_scale": 0.05, "start_up_s": 0.5},
    "pools": {"mixed": {"max_replicas": 2}},
    "planner": {"adjustment_interval_s": 2.0, "tick_deadline_s": 60.0},
    "gateway": {"request_timeout_s": 2 * PATIENCE_S},
}
CHAT, CODE = {"model": "llama-3.1-8b"}, {"model": "codestral"}


def deploy(path: Path, revision: int, *more: str) -> None:
    """Apply the shipped file, with an application for each of `more`, too."""
    document: dict[str, Any] = yaml.safe_load(SHIPPED.read_text())
    applications = document["applications"]
    applications += ({**applications[-1], "name": name} for name in more)
    for each in applications:
        each["args"] = {**each["args"], "config": str(path)}
        each["deployments"] = [item | PATIENT for item in each["deployments"]]
        # Serve imports the application in a task, which finds this checkout as an installed package is found.
        each["runtime_env"] = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    applications[0]["args"]["revision"] = revision
    for each in applications[1:]:
        each["args"]["deployment"] = each["name"]
    ray.get(controller().apply_config.remote(ServeDeploySchema.model_validate(document)))


@pytest.fixture
def fleet(ray_cluster: object, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(tmp_path / "fleet.yaml", COMMON)
    made.write(chat=CHAT, code=CODE)
    deploy(made.path, 1)
    yield made
    for name in serve.status().applications:
        serve.delete(name)
    wait_until(lambda: not control_plane.running())


def serving(fleet: Fleet, *models: str) -> bool:
    try:
        return fleet.models() == [*models] and {*map(fleet.state, models)} == {"ready"}
    except OSError:
        return False


def test_serve_deploy_starts_a_fleet_and_changes_it(fleet: Fleet) -> None:
    wait_until(lambda: serving(fleet, "llama-3.1-8b", "codestral"))
    for model in fleet.models():
        assert asyncio.run(fleet.asked(model)) == 3
    wait_until(lambda: all(fleet.deployment(name).newest() >= 0 for name in ("chat", "code")))
    before = [each["replica_id"] for each in replicas("chat", "Mixed")]

    fleet.write(chat={**CHAT, "slo": {"ttft_ms": 700}}, code=CODE, summaries={"model": "qwen-2.5-7b"})
    deploy(fleet.path, 2, "summaries")

    wait_until(lambda: serving(fleet, "llama-3.1-8b", "codestral", "qwen-2.5-7b"))
    assert asyncio.run(fleet.asked("qwen-2.5-7b")) == 3
    wait_until(lambda: fleet.deployment("chat").status()["slo"]["ttft_ms"] == 700)
    assert [each["replica_id"] for each in replicas("chat", "Mixed")] == before
    assert fleet.has_all_decisions("chat")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "options: config: should be the path of a fleet's file"),
        ({"slo": {}}, "options: slo: unknown key; settings of a fleet are in its file"),
        ({"deployment": "chad"}, "options: deployment: should be one of chat, code, not 'chad'"),
    ],
)
def test_arguments_that_are_wrong_are_one_line(arguments: dict[str, Any], fault: str, tmp_path: Path) -> None:
    made = Fleet(tmp_path / "fleet.yaml", COMMON)
    made.write(chat=CHAT, code=CODE)
    given = {**arguments, "config": str(made.path)} if arguments else {}
    with pytest.raises(ConfigError) as raised:
        (engines if "deployment" in given else build)(given)
    assert str(raised.value) == fault
