"""Two engines that sleep share a GPU: one at a time is awake. Ray is made to believe in GPUs."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from headway.config import load_config
from serve_apps.builders import engines_alone
from serve_apps.engines.simulated import SimulatedEngine
from tests.patience import PATIENCE_S
from tests.ray.clusters import replicas, running_replicas, wait_until

SETTINGS = {
    "engine.kind": "vllm",
    "engine.vllm.device": "cuda",
    "engine.sleep.wake_up_s": 0.0,
    "pools": {"mixed": {"min_replicas": 0, "sleepers": 1, "gpus_per_replica": 1}},
}
FIRST, SECOND = "first-on-gpu", "second-on-gpu"
pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def applications() -> Iterator[None]:
    yield
    for name in (FIRST, SECOND):
        serve.delete(name, _blocking=False)
    wait_until(lambda: ray.available_resources().get("GPU", 0.0) == ray.cluster_resources()["GPU"])


def started(name: str) -> DeploymentHandle[Any]:
    """An application of one engine, that may not run yet. What computes makes no difference to turns."""
    app = engines_alone(load_config(None, SETTINGS), SimulatedEngine)
    serve._run(app, name=name, route_prefix=None, _blocking=False)
    return serve.get_deployment_handle("Mixed", name)


def said(handle: DeploymentHandle[Any], *asleep: bool) -> Mapping[str, Any]:
    """Of its replica by name: without one, who rests is not called."""
    (one,) = replicas(handle.app_name, "Mixed")
    named = handle.options(session_id=one["replica_id"])
    found: Mapping[str, Any] = named.rest.remote(*asleep).result(timeout_s=PATIENCE_S)
    return found


def test_an_engine_that_waits_for_its_gpu_ends_with_its_application(applications: None) -> None:
    first = started(FIRST)
    wait_until(lambda: running_replicas(FIRST, "Mixed") == 1)
    started(SECOND)
    wait_until(lambda: said(first).get("wanted", False))
    serve.delete(SECOND, _blocking=False)
    wait_until(lambda: SECOND not in serve.status().applications)
    wait_until(lambda: not said(first).get("wanted", False))
    assert said(first)["rest"] == "awake"


def test_engines_of_one_gpu_are_awake_in_turns(applications: None) -> None:
    first = started(FIRST)
    wait_until(lambda: running_replicas(FIRST, "Mixed") == 1)
    second = started(SECOND)
    # Both have half of the same GPU, so the second one does not even start.
    wait_until(lambda: ray.available_resources()["GPU"] == ray.cluster_resources()["GPU"] - 1.0)
    wait_until(lambda: said(first) == {"rest": "awake", "wanted": True, "requests": 0})
    assert running_replicas(SECOND, "Mixed") == 0
    said(first, True)
    wait_until(lambda: said(first)["rest"] == "asleep")
    wait_until(lambda: running_replicas(SECOND, "Mixed") == 1)
    said(first, False)
    wait_until(lambda: said(first).get("waits", False))
    said(second, True)
    wait_until(lambda: said(first)["rest"] == "awake")
    assert said(second)["rest"] == "asleep"
