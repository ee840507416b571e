"""A fleet from one file: one gateway and control plane, and deployments that come and go beside others."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from ray import serve

from actors import control_plane, names
from headway_cli.deployment import delete, deploy
from headway_cli.errors import CliError
from headway_cli.live_fleet import change, fleet_form, fleet_settings
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import replicas, running_replicas, wait_until
from tests.ray.live_system import LiveSystem, kill_nine

FLEET, KEY = "models", "-"
ROUTER = names.router(FLEET)
COMMON = {
    "engine": {"profile": "llama-3.1-8b_h100_tp1", "time_scale": 0.05, "start_up_s": 0.5},
    "slo": {"ttft_ms": 4000, "itl_ms": 136},
    "pools": {"mixed": {"max_replicas": 2}},
    "planner": {"adjustment_interval_s": 2.0, "tick_deadline_s": 60.0},
    "gateway": {"request_timeout_s": 2 * PATIENCE_S},
}
CHAT, CODE = {"model": "llama-3.1-8b"}, {"model": "codestral"}
LONG = 150


class Fleet:
    """The running fleet, and its file."""

    def __init__(self, path: Path) -> None:
        self.path, self.port = path, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.gateway = LiveSystem(url=self.url)

    def write(self, **deployments: Mapping[str, Any]) -> None:
        common = {**COMMON, "gateway": {**COMMON["gateway"], "port": self.port}}
        self.path.write_text(yaml.safe_dump({**common, "deployments": deployments}))

    def deployment(self, name: str) -> LiveSystem:
        return LiveSystem(url=f"{self.url}/deployments/{name}")

    def change(self, **deployments: Mapping[str, Any]) -> None:
        self.write(**deployments)
        change(fleet_settings(str(self.path), FLEET), FLEET, print)

    def models(self) -> list[str]:
        return [each["id"] for each in self.gateway.get("/v1/models")["data"]]

    async def asked(self, model: str, tokens: int = 3) -> int:
        """The output tokens that came."""
        async with openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=2 * PATIENCE_S
        ) as client:
            stream = await client.completions.create(
                model=model,
                prompt="Hello",
                max_tokens=tokens,
                stream=True,
                stream_options={"include_usage": True},
            )
            usages = [part.usage async for part in stream if part.usage]
            return usages[-1].completion_tokens


@pytest.fixture(scope="module")
def fleet(ray_cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet") / "fleet.yaml")
    made.write(chat=CHAT, code=CODE)
    settings = fleet_settings(str(made.path), FLEET)
    deploy(settings.common, print, fleet_form(settings), FLEET)
    yield made
    delete(FLEET)
    assert not {FLEET, "chat", "code", "summaries"} & serve.status().applications.keys()
    assert not control_plane.running()


def ids(system: LiveSystem) -> list[int]:
    return sorted(record["id"] for record in system.decisions())


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
        assert ids(system) == list(range(len(ids(system))))
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
    assert ids(fleet.deployment("chat")) == list(range(len(ids(fleet.deployment("chat")))))
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
    assert ids(fleet.deployment("chat")) == list(range(len(ids(fleet.deployment("chat")))))
