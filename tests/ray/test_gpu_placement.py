"""A replica over several GPUs gets a placement group, or waits for it. Ray is made to believe in two GPUs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema
from ray.util import placement_group_table

from headway.config import load_config
from serve_apps.arguments import read_arguments
from serve_apps.builders import application
from serve_apps.engines.simulated import SimulatedEngine
from tests.ray.clusters import controller, running_replicas, scale, wait_until

APP, POOL = "split", "Decode"
SPLIT = {
    "engine.kind": "vllm",
    "engine.vllm.device": "cuda",
    "engine.vllm.connector": "disk",
    "pools.decode.gpus_per_replica": 2,
}
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("ray_cluster")


def groups(state: str) -> Sequence[Mapping[str, Any]]:
    return [group for group in placement_group_table().values() if group["state"] == state]


def free_gpus() -> float:
    return ray.available_resources().get("GPU", 0.0)


def test_a_replica_runs_in_a_group_of_its_gpus_and_the_next_one_waits(ray_cluster: str) -> None:
    # Placement is Ray's; what computes there makes no difference to it.
    app = application(load_config(None, SPLIT), SimulatedEngine, control_plane=False)
    _, engines, _ = app._bound_deployment.init_args
    serve.run(engines["decode"], name=APP, route_prefix=None, external_scaler_enabled=True)
    (group,) = groups("CREATED")
    assert (group["strategy"], list(group["bundles"].values())) == ("STRICT_PACK", [{"GPU": 1.0}] * 2)
    wait_until(lambda: free_gpus() == 0.0)
    scale(APP, POOL, 2)
    wait_until(lambda: len(groups("PENDING")) == 1)
    assert running_replicas(APP, POOL) == 1
    serve.delete(APP)
    wait_until(lambda: free_gpus() == 2.0)


def build(arguments: Mapping[str, Any]) -> serve.Application:
    """The decode pool of a Serve file's settings, with engines that compute nothing. Serve calls it."""
    config = read_arguments(arguments, "disaggregated")
    app = application(config, SimulatedEngine, control_plane=False)
    _, engines, _ = app._bound_deployment.init_args
    found: serve.Application = engines["decode"]
    return found


def shipped_file(gpus: int) -> ServeDeploySchema:
    """`cluster-vllm.yaml` with so many GPUs a replica, as far as the decode pool goes."""
    document = yaml.safe_load((ROOT / "examples/serve/cluster-vllm.yaml").read_text())
    (app,) = document["applications"]
    app |= {"name": APP, "import_path": "tests.ray.test_gpu_placement:build", "route_prefix": None}
    app["args"]["pools"]["decode"] |= {"gpus_per_replica": gpus, "resources": {"CPU": 1}}
    app["deployments"] = [item for item in app["deployments"] if item["name"] == POOL]
    app["runtime_env"]["env_vars"]["PYTHONPATH"] = str(ROOT)
    return ServeDeploySchema.model_validate(document)


@pytest.mark.parametrize(("gpus", "state"), [(1, None), (2, "CREATED")])
def test_serve_takes_the_shipped_file_with_and_without_tensor_parallelism(
    gpus: int, state: str | None
) -> None:
    ray.get(controller().apply_config.remote(shipped_file(gpus)))
    wanted = [{"GPU": 1.0, "CPU": 1.0}, *[{"GPU": 1.0}] * (gpus - 1)]
    if state is None:
        wait_until(lambda: running_replicas(APP, POOL) == 1)
    else:
        wait_until(lambda: [list(group["bundles"].values()) for group in groups(state)] == [wanted])
    wait_until(lambda: free_gpus() == 2.0 - gpus)
    wait_until(lambda: serve.status().applications[APP].status == "RUNNING")
    serve.delete(APP)
    wait_until(lambda: free_gpus() == 2.0)
