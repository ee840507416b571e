"""vLLM behind the engine protocol. Nothing here imports vLLM before an engine is made or checked.

arguments   settings -> arguments of AsyncEngineArgs
loading     the model and the installation as seen before anything is loaded, environment variables, loading
requests    the requests that are here, by the id that callers use, and vLLM's statistics of them
kv_events   what vLLM says of its prefix cache, over ZeroMQ; `cached_blocks` says it in the gateway's blocks
answers     vLLM's own OpenAI server over the engine, for what clients send
engine      VllmEngine, all of it together
metrics     what dashboards made for vLLM read, at the gateway
tiny        a random model of some megabytes, for tests and the example without a GPU
transfer    NIXL on CPUs; loaded by vLLM
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.config import HeadwayConfig, Role
from headway.engine.kinds import EngineKind, EngineResources

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from serve_apps.engines.protocol import Engine
    from serve_apps.gateway.metrics import GatewayMetrics, Traffic


def _make(config: HeadwayConfig, role: Role, engine_id: str) -> "Engine":
    from serve_apps.engines.vllm.engine import VllmEngine

    return VllmEngine(config, role, engine_id)


def _resources(config: HeadwayConfig, role: Role) -> EngineResources:
    """GPUs in the replica's actor, or one for each of vLLM's own actors in a placement group."""
    from serve_apps.engines.vllm.arguments import gpus_of, worker_bundles

    bundles = worker_bundles(config, role)
    return EngineResources(gpus=0 if bundles else gpus_of(config, role), bundles=bundles)


def _model(config: HeadwayConfig) -> str:
    from serve_apps.engines.vllm.arguments import model_of

    return model_of(config)


def _caches_prefixes(config: HeadwayConfig) -> bool:
    from serve_apps.engines.vllm.arguments import caches_prefixes

    return caches_prefixes(config)


def _collector(model: str, traffic: "Traffic", measured: "GatewayMetrics") -> "Collector":
    from serve_apps.engines.vllm.metrics import VllmMetrics

    return VllmMetrics(model, traffic, measured)


def _check_settings(config: HeadwayConfig) -> None:
    """A model that is here can be looked at before replicas fail one after the other."""
    from serve_apps.engines.vllm.loading import check_directory

    directory = Path(_model(config))
    if directory.is_dir():
        check_directory(directory)


def _check_here(config: HeadwayConfig) -> None:
    from serve_apps.engines.vllm.loading import check_here, check_model

    check_model(config)
    check_here(_model(config))


def _check_accepted(config: HeadwayConfig) -> None:
    from serve_apps.engines.vllm.loading import check_accepted

    check_accepted(config)


def _quiet() -> AbstractContextManager[None]:
    from serve_apps.engines.vllm.loading import quiet

    return quiet()


def _profile_settings(model: str | None, tp: int) -> Mapping[str, Any]:
    settings = {"engine.vllm.model": model, "pools": {"mixed": {"gpus_per_replica": tp}}}
    # An engine that is measured is in no replica, so there is no placement group for actors of its own.
    return {**settings, "engine.vllm.args.distributed_executor_backend": "mp"} if tp > 1 else settings


VLLM = EngineKind(
    make=_make,
    answers=True,
    file_settings=("engine.vllm.model",),
    resources=_resources,
    model=_model,
    adapters=lambda config: tuple(config.engine.vllm.adapters),
    caches_prefixes=_caches_prefixes,
    collector=_collector,
    check_settings=_check_settings,
    check_here=_check_here,
    check_accepted=_check_accepted,
    quiet=_quiet,
    profile_settings=_profile_settings,
)
