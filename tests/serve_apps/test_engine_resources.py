"""What Ray is asked for per replica."""

from collections.abc import Mapping
from typing import Any

import pytest

from headway.config import load_config
from headway.planning import Role
from headway.simulation.build import make_plan
from serve_apps.engines.vllm.arguments import engine_arguments

GPUS = {"pools.prefill.gpus_per_replica": 4, "pools.decode.gpus_per_replica": 1}
CUDA = {"engine.kind": "vllm", "engine.vllm.device": "cuda"}
MP = {"engine.vllm.args": {"distributed_executor_backend": "mp"}}


def asked(settings: Mapping[str, Any]) -> Mapping[str, tuple[float | None, list[Any] | None, str | None]]:
    """GPUs of the actor, bundles and strategy, by role."""
    from serve_apps.builders import application

    app = application(load_config(None, settings), control_plane=False)
    _, engines, _ = app._bound_deployment.init_args
    configs = {role: bound._bound_deployment._replica_config for role, bound in engines.items()}
    assert {found.ray_actor_options["num_cpus"] for found in configs.values()} == {0}
    return {
        role: (
            found.ray_actor_options.get("num_gpus"),
            found.placement_group_bundles,
            found.placement_group_strategy,
        )
        for role, found in configs.items()
    }


@pytest.mark.parametrize(
    ("settings", "prefill", "decode"),
    [
        ({"engine.kind": "simulated"}, (None, None, None), (None, None, None)),
        (CUDA | {"engine.vllm.device": "cpu"}, (0, None, None), (0, None, None)),
        (CUDA, (0, [{"GPU": 1}] * 4, "STRICT_PACK"), (1, None, None)),
        (CUDA | MP, (4, None, None), (1, None, None)),
    ],
    ids=["simulated", "cpu", "actors of vLLM", "processes of the replica"],
)
def test_a_replica_gets_the_gpus_of_its_pool(
    settings: Mapping[str, Any], prefill: tuple[Any, ...], decode: tuple[Any, ...]
) -> None:
    assert asked(GPUS | settings) == {"prefill": prefill, "decode": decode}


@pytest.mark.parametrize("pools", [GPUS, {}], ids=["of the pool", "as profiled"])
@pytest.mark.parametrize("executor", [{}, MP], ids=["ray", "mp"])
def test_the_planner_counts_what_ray_is_asked_for_and_the_model_is_split_over(
    pools: Mapping[str, int], executor: Mapping[str, Any]
) -> None:
    settings = CUDA | executor | pools | {"engine.profile": "llama-3.1-70b_h100_tp4"}
    config = load_config(None, settings)
    counted = make_plan(config).settings.limits
    for role, (held, bundles, _) in asked(settings).items():
        gpus = counted[Role(role)].gpus_per_replica
        assert (held or 0) + len(bundles or ()) == gpus
        assert engine_arguments(config, Role(role))["tensor_parallel_size"] == gpus
