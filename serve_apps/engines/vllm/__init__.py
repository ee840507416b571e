"""vLLM behind the engine protocol. Nothing here imports vLLM before an engine is made or checked.

arguments   settings -> arguments of AsyncEngineArgs
loading     what is wrong with the model or the installation before anything is loaded, environment, loading
requests    the requests that are here, by the id that callers use, and vLLM's statistics of them
kv_events   what vLLM reports of its prefix cache, over ZeroMQ; `cached_blocks` has it in the gateway's blocks
answers     vLLM's own OpenAI server over the engine, for what clients send
engine      VllmEngine, all of it together
metrics     what dashboards made for vLLM read, at the gateway
tiny        a random model of some megabytes, for tests and the example without a GPU
transfer    NIXL on CPUs; loaded by vLLM
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.config import HeadwayConfig, Role
from headway.engine.kinds import EngineKind, EngineResources
from serve_apps.engines.vllm import loading
from serve_apps.engines.vllm.arguments import caches_prefixes, gpus_of, model_of, on_cpu, worker_bundles

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from serve_apps.engines.protocol import Engine
    from serve_apps.gateway.metrics import GatewayMetrics, Traffic


def _make(config: HeadwayConfig, role: Role, engine_id: str) -> "Engine":
    from serve_apps.engines.vllm.engine import VllmEngine

    return VllmEngine(config, role, engine_id)


def _resources(config: HeadwayConfig, role: Role) -> EngineResources:
    """GPUs in the replica's actor, or one for each of vLLM's own actors in a placement group."""
    bundles = worker_bundles(config, role)
    return EngineResources(gpus=0 if bundles else gpus_of(config, role), bundles=bundles)


def _sleeps(config: HeadwayConfig) -> str:
    return "vLLM does not sleep on CPUs" if on_cpu(config.engine.vllm) else ""


def _collector(model: str, traffic: "Traffic", measured: "GatewayMetrics") -> "Collector":
    from serve_apps.engines.vllm.metrics import VllmMetrics

    return VllmMetrics(model, traffic, measured)


def _profile_settings(model: str | None, tp: int) -> Mapping[str, Any]:
    settings = {"engine.vllm.model": model, "pools": {"mixed": {"gpus_per_replica": tp}}}
    # An engine that is measured is in no replica, so there is no placement group for actors of its own.
    return {**settings, "engine.vllm.args.distributed_executor_backend": "mp"} if tp > 1 else settings


VLLM = EngineKind(
    make=_make,
    answers=True,
    file_settings=("engine.vllm.model",),
    resources=_resources,
    model=model_of,
    adapters=lambda config: tuple(config.engine.vllm.adapters),
    caches_prefixes=caches_prefixes,
    sleeps=_sleeps,
    collector=_collector,
    check_settings=loading.check_settings,
    check_here=loading.check_here,
    check_accepted=loading.check_accepted,
    quiet=loading.quiet,
    profile_settings=_profile_settings,
)
