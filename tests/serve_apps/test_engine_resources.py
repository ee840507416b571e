"""What Ray is asked for per replica."""

from collections.abc import Mapping
from typing import Any

import pytest

from headway.config import ConfigError, load_config
from headway.engine.kinds import check_sleepers, node_needs
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


def options_of(settings: Mapping[str, Any], role: str) -> Any:
    from serve_apps.builders import application

    app = application(load_config(None, settings), control_plane=False)
    _, engines, _ = app._bound_deployment.init_args
    return engines[role]._bound_deployment._replica_config


def test_a_replica_without_a_group_takes_what_its_pool_names_of_the_node() -> None:
    wants = {"pools.decode.resources": {"CPU": 2, "memory": 1e9, "decode": 1}}
    options = options_of(CUDA | {"pools.decode.gpus_per_replica": 1} | wants, "decode").ray_actor_options
    assert (options["num_cpus"], options["num_gpus"], options["memory"]) == (2, 1, 1e9)
    assert options["resources"] == {"decode": 1}


@pytest.mark.parametrize("gpus", [2, 8])
def test_the_first_bundle_of_a_group_has_it_and_the_actor_asks_for_none_of_it(gpus: int) -> None:
    wants = {"pools.decode.resources": {"CPU": 2, "decode": 1}, "pools.decode.gpus_per_replica": gpus}
    found = options_of(CUDA | wants, "decode")
    assert found.placement_group_bundles == [{"GPU": 1, "CPU": 2, "decode": 1}, *[{"GPU": 1}] * (gpus - 1)]
    assert (found.ray_actor_options["num_cpus"], found.ray_actor_options["num_gpus"]) == (0, 0)


def test_engines_that_sleep_share_a_gpu() -> None:
    one = {"pools.decode.gpus_per_replica": 1, "pools.decode.sleepers": 1, "engine.sleep.per_gpu": 4}
    assert options_of(CUDA | one, "decode").ray_actor_options["num_gpus"] == 0.25
    assert options_of(CUDA | one, "prefill").ray_actor_options["num_gpus"] == 1


@pytest.mark.parametrize(("gpus", "engines", "shared"), [(2, 2, 1.0), (4, 2, 2.0), (4, 3, 4 / 3)])
def test_engines_of_several_gpus_take_turns_on_those_that_ray_only_counts(
    gpus: int, engines: int, shared: float
) -> None:
    pool = {"pools.decode.gpus_per_replica": gpus, "pools.decode.resources": {"CPU": 2, "memory": 1e9}}
    settings = CUDA | pool | {"pools.decode.sleepers": 1, "engine.sleep.per_gpu": engines}
    config, found = load_config(None, settings), options_of(settings, "decode")
    check_sleepers(config)
    assert found.placement_group_bundles is None
    assert found.ray_actor_options["num_gpus"] == 0
    assert found.ray_actor_options["resources"] == {"shared_gpu": shared}
    assert node_needs(config, Role.DECODE) == {"CPU": 2, "memory": 1e9, "shared_gpu": shared}
    arguments = engine_arguments(config, Role.DECODE)
    assert (arguments["tensor_parallel_size"], arguments["distributed_executor_backend"]) == (gpus, "mp")
    # Without turns nothing changes.
    alone = options_of(settings | {"engine.sleep.per_gpu": 1}, "decode")
    assert [bundle["GPU"] for bundle in alone.placement_group_bundles] == [1] * gpus


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            CUDA
            | {"pools.decode.gpus_per_replica": 2}
            | {"engine.vllm.args": {"distributed_executor_backend": "ray"}},
            "decode.sleepers: engines that start actors of their own take no turns on GPUs",
        ),
        (CUDA | {"engine.vllm.device": "cpu"}, "decode.sleepers: vLLM does not sleep on CPUs"),
        ({"engine.kind": "external"}, "decode.sleepers: engine.kind external does not sleep"),
    ],
)
def test_what_can_not_sleep_is_said(settings: Mapping[str, Any], complaint: str) -> None:
    config = load_config(None, {"pools.decode.gpus_per_replica": 1, "pools.decode.sleepers": 1} | settings)
    with pytest.raises(ConfigError, match=complaint):
        check_sleepers(config)
    check_sleepers(load_config(None, {"pools.decode.sleepers": 0} | settings))


def test_gpus_are_not_named_twice() -> None:
    with pytest.raises(ConfigError, match=r"pools.decode.resources: replicas take GPUs by gpus_per_replica"):
        load_config(None, {"pools.decode.resources": {"GPU": 2}})


@pytest.mark.parametrize(
    ("there", "begins"), [(None, 1), ({"Mixed": 0}, 1), ({"Mixed": 3}, 3), ({"Mixed": 9}, 4)]
)
def test_an_application_that_is_changed_keeps_its_replicas(
    there: Mapping[str, int] | None, begins: int
) -> None:
    from serve_apps.builders import engines_alone

    config = load_config(None, {"pools": {"mixed": {"min_replicas": 1, "max_replicas": 4}}})
    app = engines_alone(config, counts=there)
    assert app._bound_deployment._deployment_config.num_replicas == begins
