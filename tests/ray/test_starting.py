"""Each way of starting ends the same: completions are served, and replica counts can be set from outside."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve._private.exceptions import ExternalScalerDisabledError

from actors import control_plane
from actors.connectors.external_scaling import enable_external_scaling
from actors.connectors.protocol import Refused
from actors.names import PLANNER
from headway.config import ConfigError
from tests.ports import free_port
from tests.ray.clusters import (
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
UNTOUCHED = "planner.adjustment_interval_s=3600"
"""The planner would set counts of its own before the test has looked."""


@pytest.fixture(autouse=True)
def clean(ray_with_proxy: str) -> Iterator[None]:
    yield
    for app in list(serve.status().applications):
        serve.delete(app)
    # The control plane ends with its application.
    wait_until(lambda: not control_plane.running())


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


def test_a_builder_with_arguments(ray_with_proxy: str, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "headway.yaml").write_text("pools: {mixed: {max_replicas: 4}}\n")
    arguments = ["serve_apps.agg:build", "config=headway.yaml", f"gateway.port={port}", UNTOUCHED]
    done = serve_run(ray_with_proxy, tmp_path, *arguments)
    assert done.returncode == 0, done.stderr
    assert gateway("default") == f"http://127.0.0.1:{port}"
    completes(gateway("default"))
    # Serve's own proxy leads to the same place.
    completes(f"http://127.0.0.1:{proxy_port()}")
    scales("default", "Mixed")


def proxy_port() -> int:
    details = ray.get(controller().get_serve_instance_details.remote())
    return int(details["http_options"]["port"])


@pytest.mark.parametrize(("name", "deployment"), [("disagg", "Prefill"), ("agg", "Mixed")])
def test_a_serve_config_file(ray_with_proxy: str, tmp_path: Path, name: str, deployment: str) -> None:
    port = free_port()
    text = example(name, port)
    (tmp_path / "serve.yaml").write_text(text)
    done = serve_run(ray_with_proxy, tmp_path, "serve.yaml")
    assert done.returncode == 0, done.stderr
    assert gateway("headway") == f"http://127.0.0.1:{port}"
    completes(gateway("headway"))
    details = application_details("headway")
    assert details is not None
    assert details["external_scaler_enabled"]
    scales("headway", deployment)


def example(name: str, port: int) -> str:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    for shipped, here in (
        ("port: 8000", f"port: {port}"),
        ("{policy: headway}", "{policy: headway, adjustment_interval_s: 3600}"),
    ):
        assert shipped in text
        text = text.replace(shipped, here)
    return text


def test_serve_run_from_python_with_a_port_that_is_taken(ray_with_proxy: str) -> None:
    from serve_apps import disagg

    port = proxy_port()
    app = disagg.build({"gateway.port": port, "planner.adjustment_interval_s": 3600})
    serve.run(app, name="headway", external_scaler_enabled=True)
    assert gateway("headway") != f"http://127.0.0.1:{port}"
    completes(gateway("headway"))
    completes(f"http://127.0.0.1:{port}")
    scales("headway", "Decode")


def test_scaling_is_turned_on_once_and_restarts_nothing(ray_with_proxy: str) -> None:
    from serve_apps import agg

    assert not enable_external_scaling("headway")
    serve.run(agg.build({"gateway.port": 0, "control_plane": False}), name="headway")
    before = {name: replicas("headway", name) for name in ("Gateway", "Mixed")}
    assert not accepted("headway", "Mixed", 1)
    for _ in range(2):
        assert enable_external_scaling("headway")
    scales("headway", "Mixed")
    assert enable_external_scaling("headway")
    wait_until(lambda: serve.status().applications["headway"].status == "RUNNING")
    assert running_replicas("headway", "Mixed") == 2
    after = {name: replicas("headway", name) for name in before}
    assert {one["replica_id"] for name in before for one in before[name]} <= {
        one["replica_id"] for name in after for one in after[name]
    }


def test_a_config_file_without_the_flag_is_told_what_to_write(ray_with_proxy: str, tmp_path: Path) -> None:
    text = example("agg", free_port()).replace("external_scaler_enabled: true", "")
    (tmp_path / "serve.yaml").write_text(text)
    done = serve_run(ray_with_proxy, tmp_path, "serve.yaml")
    assert done.returncode == 0, done.stderr
    completes(gateway("headway"))
    with pytest.raises(Refused, match="'external_scaler_enabled: true'") as caught:
        enable_external_scaling("headway")
    assert "\n" not in str(caught.value)


def test_a_wrong_setting_is_said_in_one_line(ray_with_proxy: str, tmp_path: Path) -> None:
    done = serve_run(ray_with_proxy, tmp_path, "serve_apps.disagg:build", "gateway.prt=1")
    assert done.returncode != 0
    assert "options: gateway.prt: " in done.stderr
    assert not serve.status().applications


@pytest.mark.parametrize("module", ["disagg", "agg"])
def test_the_application_is_made_when_it_is_asked_for(module: str) -> None:
    import importlib

    found = importlib.import_module(f"serve_apps.{module}")
    assert isinstance(found.app, serve.Application)
    missing: Callable[[], Any] = lambda: found.other  # noqa: E731
    with pytest.raises(AttributeError, match="other"):
        missing()
    with pytest.raises(ConfigError, match="nowhere"):
        found.build({"engine.profile": "nowhere"})
