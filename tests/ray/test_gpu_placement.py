"""A replica over several GPUs gets a placement group, or waits for it. Ray is made to believe in two GPUs."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import ray
from ray import serve
from ray.util import placement_group_table

from headway.config import load_config
from serve_apps.builders import application
from serve_apps.engines.simulated import SimulatedEngine
from tests.ray.clusters import running_replicas, scale, wait_until

APP, POOL = "split", "Decode"
SPLIT = {
    "engine.kind": "vllm",
    "engine.vllm.device": "cuda",
    "engine.vllm.connector": "disk",
    "pools.decode.gpus_per_replica": 2,
}
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
