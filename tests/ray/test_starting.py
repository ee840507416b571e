"""Each way of starting ends the same: completions are served, and replica counts can be set from outside.

What only arguments differ in is in tests/serve_apps/test_arguments.py; a file with pools of their own is what
test_one_system.py starts from.
"""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import ray
from ray import serve
from ray.serve._private.exceptions import ExternalScalerDisabledError

from actors import control_plane
from actors.connectors.external_scaling import enable_external_scaling
from actors.connectors.protocol import Refused
from actors.names import PLANNER
from tests.ports import free_port
from tests.ray.clusters import (
    POLL_S,
    application_details,
    controller,
    replicas,
    running_replicas,
    scale,
    wait_until,
)

SERVE = [str(Path(sys.executable).with_name("serve"))]
EXAMPLES = Path(__file__).parents[2] / "examples" / "serve"
STARTED_WITHIN_S = 180


def serve_run(address: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`serve run` as users type it, in a folder of its own."""
    command = [*SERVE, "run", "--address", address, "--non-blocking", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=STARTED_WITHIN_S, check=False
    )


def gateway(app: str) -> str:
    wait_until(lambda: is_deployed(app), STARTED_WITHIN_S)
    handle = serve.get_deployment_handle("Gateway", app)
    addresses = handle.addresses.remote().result(timeout_s=60)
    assert len(addresses) == 1
    return str(addresses[0])


def is_deployed(app: str) -> bool:
    """A config file is deployed after `serve run` has returned."""
    found = serve.status().applications.get(app)
    status = None if found is None else found.status
    assert status != "DEPLOY_FAILED", found
    return status == "RUNNING"


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def completes(url: str) -> None:
    body = {"model": "llama-3.1-8b", "prompt": "Once upon a time", "max_tokens": 5}
    answer = post(f"{url}/v1/completions", body)
    assert answer["usage"]["completion_tokens"] == 5
    assert "simulated" in answer["choices"][0]["text"]


def scales(app: str, deployment: str) -> None:
    """One more replica, and the first one stays."""
    wait_until(lambda: accepted(app, deployment, 1))
    before = {one["replica_id"] for one in replicas(app, deployment)}
    assert len(before) == 1
    scale(app, deployment, 2)
    wait_until(lambda: running_replicas(app, deployment) == 2)
    assert before < {one["replica_id"] for one in replicas(app, deployment)}


def accepted(app: str, deployment: str, count: int) -> bool:
    try:
        scale(app, deployment, count)
    except ExternalScalerDisabledError:
        return False
    return True


def ended(app: str) -> None:
    serve.delete(app)
    # The control plane ends with its application.
    wait_until(lambda: not control_plane.running())


def test_an_import_path(ray_with_proxy: str, tmp_path: Path) -> None:
    done = serve_run(ray_with_proxy, tmp_path, "serve_apps.disagg:app")
    assert done.returncode == 0, done.stderr
    # The default port, or where it is taken one of the next: the gateway says which.
    completes(gateway("default"))
    assert PLANNER in control_plane.running()
    scales("default", "Decode")
    assert {name: running_replicas("default", name) for name in ("Gateway", "Prefill", "ControlPlane")} == {
        "Gateway": 1,
        "Prefill": 1,
        "ControlPlane": 1,
    }
    ended("default")


def test_a_config_file_first_without_the_flag_and_then_with_it(ray_with_proxy: str, tmp_path: Path) -> None:
    port, file = free_port(), tmp_path / "serve.yaml"
    text = example("agg", port)
    file.write_text(text.replace("external_scaler_enabled: true", ""))
    done = serve_run(ray_with_proxy, tmp_path, "serve.yaml")
    assert done.returncode == 0, done.stderr
    assert gateway("headway") == f"http://127.0.0.1:{port}"
    completes(gateway("headway"))
    with pytest.raises(Refused, match="'external_scaler_enabled: true'") as caught:
        enable_external_scaling("headway")
    assert "\n" not in str(caught.value)
    file.write_text(text)
    done = serve_run(ray_with_proxy, tmp_path, "serve.yaml")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: bool((application_details("headway") or {})["external_scaler_enabled"]))
    scales("headway", "Mixed")
    ended("headway")


def example(name: str, port: int) -> str:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    for shipped, here in (
        ("port: 8000", f"port: {port}"),
        # The planner would set counts of its own before the test has looked.
        ("{policy: headway}", "{policy: headway, adjustment_interval_s: 3600}"),
    ):
        assert shipped in text
        text = text.replace(shipped, here)
    return text


APP = "default"


@pytest.fixture(scope="module")
def built(ray_with_proxy: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of an application of a builder with arguments, whose gateway found its port taken."""
    assert not enable_external_scaling(APP)
    folder, proxy = tmp_path_factory.mktemp("built"), f"http://127.0.0.1:{proxy_port()}"
    (folder / "headway.yaml").write_text("pools: {mixed: {max_replicas: 4}}\nengine: {time_scale: 0.05}\n")
    settings = ("config=headway.yaml", f"gateway.port={proxy_port()}", "control_plane=false")
    done = serve_run(ray_with_proxy, folder, "serve_apps.agg:build", *settings)
    assert done.returncode == 0, done.stderr
    return {"own": gateway(APP), "proxy": proxy}


def proxy_port() -> int:
    details = ray.get(controller().get_serve_instance_details.remote())
    return int(details["http_options"]["port"])


def test_a_builder_with_arguments_and_a_port_that_is_taken(built: dict[str, str]) -> None:
    assert built["own"] != built["proxy"]
    for url in built.values():
        completes(url)


@asynccontextmanager
async def streaming(url: str, max_tokens: int) -> AsyncIterator[AsyncIterator[bytes]]:
    """The events of a stream; leaving the block closes the connection."""
    body = {"model": "llama-3.1-8b", "prompt": "x", "stream": True, "max_tokens": max_tokens}
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client,
        client.post(f"{url}/v1/completions", json=body) as response,
    ):
        assert response.status == 200
        yield (line async for line in response.content if line.startswith(b"data:"))


def running() -> int:
    handle = serve.get_deployment_handle("Mixed", APP)
    stats = handle.stats.remote().result(timeout_s=30)
    return int(stats.running + stats.waiting)


@pytest.mark.parametrize("entrance", ["own", "proxy"])
def test_a_client_that_leaves_frees_the_engine(built: dict[str, str], entrance: str) -> None:
    async def scenario() -> None:
        async with streaming(built[entrance], 5_000) as events:
            await anext(events)
            while await asyncio.to_thread(running) != 1:
                await asyncio.sleep(POLL_S)

    asyncio.run(scenario())
    wait_until(lambda: running() == 0)


def test_scaling_is_turned_on_once_and_restarts_nothing(built: dict[str, str]) -> None:
    before = {one["replica_id"] for name in ("Gateway", "Mixed") for one in replicas(APP, name)}
    assert not accepted(APP, "Mixed", 1)
    for _ in range(2):
        assert enable_external_scaling(APP)
    scales(APP, "Mixed")
    assert enable_external_scaling(APP)
    wait_until(lambda: serve.status().applications[APP].status == "RUNNING")
    assert running_replicas(APP, "Mixed") == 2
    assert before <= {one["replica_id"] for name in ("Gateway", "Mixed") for one in replicas(APP, name)}


def test_a_stream_survives_the_end_of_the_application(built: dict[str, str]) -> None:
    async def scenario() -> list[bytes]:
        async with streaming(built["own"], 30) as events:
            first = await anext(events)
            deleting = asyncio.create_task(asyncio.to_thread(serve.delete, APP))
            rest = [event async for event in events]
            await deleting
        return [first, *rest]

    events = asyncio.run(scenario())
    assert events[-1].strip() == b"data: [DONE]"
    texts = [json.loads(event[5:])["choices"] for event in events[:-1]]
    assert [choices[0]["finish_reason"] for choices in texts if choices][-1] == "length"
    assert APP not in serve.status().applications
