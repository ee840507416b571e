"""A fleet from one file: one gateway and control plane, and deployments that come and go beside others."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
import ray
from ray import serve
from ray._private import worker as ray_worker

from actors import control_plane, names
from headway_cli.deployment import delete, deploy
from headway_cli.errors import CliError
from headway_cli.live_fleet import change, fleet_form, fleet_settings
from tests.patience import PATIENCE_S
from tests.ray.clusters import replicas, running_replicas, wait_until
from tests.ray.fleet_system import FLEET, Fleet
from tests.ray.live_system import kill_nine

ROUTER = names.router(FLEET)
COMMON: Mapping[str, Any] = {
    "engine": {"profile": "llama-3.1-8b_h100_tp1", "time_scale": 0.05, "start_up_s": 0.5},
    "slo": {"ttft_ms": 4000, "itl_ms": 136},
    "pools": {"mixed": {"max_replicas": 2}},
    "planner": {"adjustment_interval_s": 2.0, "tick_deadline_s": 60.0},
    "gateway": {"request_timeout_s": 2 * PATIENCE_S},
}
CHAT, CODE = {"model": "llama-3.1-8b"}, {"model": "codestral"}
LONG = 150


@pytest.fixture(scope="module")
def fleet(ray_cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet.yaml", COMMON)
    made.write(chat=CHAT, code=CODE)
    settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)
    assert not {FLEET, "chat", "code", "summaries"} & serve.status().applications.keys()
    assert not control_plane.running()


def test_one_gateway_serves_all_and_each_has_its_decisions(fleet: Fleet) -> None:
    assert fleet.models() == ["llama-3.1-8b", "codestral"]
    wait_until(lambda: all(fleet.deployment(name).newest() >= 0 for name in ("chat", "code")))
    for model in fleet.models():
        assert asyncio.run(fleet.asked(model)) == 3

    for name, model in (("chat", "llama-3.1-8b"), ("code", "codestral")):
        system = fleet.deployment(name)
        # Its planner has heard of its own request from the gateway of all.
        wait_until(lambda: any(record["measured"]["requests"] for record in system.decisions()))  # noqa: B023
        assert system.status()["model"] == model
        assert sum(record["measured"]["requests"] or 0 for record in system.decisions()) == 1
        assert fleet.has_all_decisions(name)
    with pytest.raises(openai.NotFoundError):
        asyncio.run(fleet.asked("gpt-4o"))


def test_what_the_gateway_has_from_its_start_is_not_changed_in_silence(fleet: Fleet) -> None:
    fleet.write(chat=CHAT, code=CODE)
    fleet.path.write_text(fleet.path.read_text().replace(f"port: {fleet.port}", f"port: {fleet.port + 1}"))
    with pytest.raises(CliError, match=r"^gateway.port: the gateway has this from its start"):
        change(fleet_settings(str(fleet.path), FLEET), FLEET, print)
    assert fleet.models() == ["llama-3.1-8b", "codestral"]


def test_what_changes_touches_no_other(fleet: Fleet) -> None:
    before = [each["replica_id"] for each in replicas("chat", "Mixed")]
    gateways = [each["pid"] for each in replicas(FLEET, "Gateway")]

    async def changed() -> list[int]:
        streams = [asyncio.create_task(fleet.asked(model, LONG)) for model in fleet.models()]
        # Both have begun.
        await asyncio.to_thread(wait_until, lambda: fleet.gateway.counted("headway_requests_in_flight") == 2)
        slower = {**CHAT, "slo": {"ttft_ms": 7000}}
        await asyncio.to_thread(fleet.change, chat=slower, summaries={"model": "qwen-2.5-7b"})
        return await asyncio.gather(*streams)

    assert asyncio.run(changed()) == [LONG, LONG]
    wait_until(lambda: fleet.models() == ["llama-3.1-8b", "qwen-2.5-7b"])
    assert asyncio.run(fleet.asked("qwen-2.5-7b")) == 3
    wait_until(lambda: fleet.deployment("chat").status()["slo"]["ttft_ms"] == 7000)
    assert [each["replica_id"] for each in replicas("chat", "Mixed")] == before
    assert [each["pid"] for each in replicas(FLEET, "Gateway")] == gateways
    assert fleet.has_all_decisions("chat")
    wait_until(lambda: "code" not in serve.status().applications)
    assert [name for name in control_plane.running() if name.startswith(names.ROUTER_PREFIX)] == [ROUTER]


def test_what_is_killed_comes_back_with_what_there_is_now(fleet: Fleet) -> None:
    before = fleet.deployment("chat").newest()
    kill_nine(names.PLANNER)
    kill_nine(ROUTER)
    for part in ("ControlPlane", "Gateway"):
        kill_nine(f"{FLEET}#{part}#")
    wait_until(
        lambda: running_replicas(FLEET, "Gateway") == 1 and fleet.deployment("chat").newest() > before + 1
    )
    assert fleet.models() == ["llama-3.1-8b", "qwen-2.5-7b"]
    assert asyncio.run(fleet.asked("llama-3.1-8b")) == 3
    assert fleet.has_all_decisions("chat")


def test_as_many_processes_as_a_fleet_has_are_no_warning_of_rays(ray_cluster: object) -> None:
    @ray.remote(num_cpus=0)
    class Idle:
        """It has a process, and nothing to do."""

    actors = [Idle.remote() for _ in range(18)]
    ray.get([actor.__ray_ready__.remote() for actor in actors])
    said = Path(ray_worker.global_worker.node.get_logs_dir_path(), "raylet.out").read_text()
    assert "worker processes have been started" not in said
