"""Two engines of two GPUs each take turns on both, on a node whose GPUs Ray only counts."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from headway.config import HeadwayConfig, Role, load_config
from headway.engine.kinds import SHARED_GPU
from serve_apps.builders import engines_alone
from serve_apps.engines.protocol import EngineRequest
from serve_apps.engines.simulated import SimulatedEngine
from tests.ray.clusters import GPUS, replicas, running_replicas, wait_until
from tests.ray.conftest import LocalRay
from tests.ray.test_gpu_turns import SETTINGS, said

FIRST, SECOND = "first-of-two", "second-of-two"
POOLS = {"mixed": {"min_replicas": 0, "sleepers": 1, "gpus_per_replica": GPUS}}
TOKENS = 200


@pytest.fixture
def _shared(local_ray: LocalRay) -> Iterator[None]:
    local_ray.use(proxy=False, shared_gpus=True)
    yield
    for name in (FIRST, SECOND):
        serve.delete(name, _blocking=False)
    # Together: one that waits for GPUs ends once the other one has.
    wait_until(lambda: not {FIRST, SECOND} & serve.status().applications.keys())
    local_ray.clear()


def started(name: str) -> DeploymentHandle[Any]:
    # A function in a function travels to the replica by value.
    def on_both(config: HeadwayConfig, role: Role, engine_id: str) -> SimulatedEngine:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
        return SimulatedEngine(config, role, engine_id)

    app = engines_alone(load_config(None, SETTINGS | {"pools": POOLS}), on_both)
    serve._run(app, name=name, route_prefix=None, _blocking=False)
    return serve.get_deployment_handle("Mixed", name)


def answer(handle: DeploymentHandle[Any], name: str) -> Any:
    request = EngineRequest(request_id=name, model="m", prompt="why", input_tokens=1, max_tokens=TOKENS)
    return handle.options(stream=True).decode.remote(request, None)


def tokens(chunks: Any) -> int:
    return sum(chunk.tokens for chunk in chunks)


@pytest.mark.usefixtures("_shared")
def test_engines_of_two_gpus_take_turns_on_both_and_lose_nothing() -> None:
    first = started(FIRST)
    wait_until(lambda: running_replicas(FIRST, "Mixed") == 1)
    second = started(SECOND)
    # Ray has placed both, but the second one does not start.
    wait_until(lambda: ray.available_resources().get(SHARED_GPU, 0.0) == 0.0)
    assert running_replicas(SECOND, "Mixed") == 0
    running = answer(first, "a")
    said(first, True)
    assert tokens(running) == TOKENS
    wait_until(lambda: running_replicas(SECOND, "Mixed") == 1)
    assert said(first)["rest"] == "asleep"
    said(first, False)
    wait_until(lambda: said(first).get("waits", False))
    assert tokens(answer(second, "b")) == TOKENS
    said(second, True)
    wait_until(lambda: said(first)["rest"] == "awake")
    assert tokens(answer(first, "c")) == TOKENS
    # Both GPUs are free when their holder dies.
    said(second, False)
    wait_until(lambda: said(second).get("waits", False))
    (killed,) = replicas(FIRST, "Mixed")
    os.kill(killed["pid"], signal.SIGKILL)
    wait_until(lambda: said(second)["rest"] == "awake")
    assert tokens(answer(second, "d")) == TOKENS
