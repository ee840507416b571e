"""What Ray is asked for per replica."""

from typing import Any

import pytest

from headway.config import load_config

GPUS = {"pools.prefill.gpus_per_replica": 4, "pools.decode.gpus_per_replica": 2}


@pytest.mark.parametrize(
    ("engine", "asked"),
    [
        ({"engine.kind": "simulated"}, {"prefill": None, "decode": None}),
        ({"engine.kind": "vllm", "engine.vllm.device": "cpu"}, {"prefill": 0, "decode": 0}),
        ({"engine.kind": "vllm", "engine.vllm.device": "cuda"}, {"prefill": 4, "decode": 2}),
    ],
)
def test_a_replica_gets_the_gpus_of_its_pool(engine: dict[str, Any], asked: dict[str, int | None]) -> None:
    from serve_apps.builders import application

    app = application(load_config(None, GPUS | engine), control_plane=False)
    _, engines, _ = app._bound_deployment.init_args
    options = {role: bound._bound_deployment.ray_actor_options for role, bound in engines.items()}
    assert {role: found.get("num_gpus") for role, found in options.items()} == asked
    assert {found["num_cpus"] for found in options.values()} == {0}
