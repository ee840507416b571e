"""Real vLLM replicas behind the gateway, and what tests ask of them."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import yaml
from openai import OpenAI
from ray import serve
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from serve_apps.engines.protocol import EngineStats
from tests.compatibility import Fields
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.ray.clusters import PATIENT, controller, replicas, wait_until

ROOT = Path(__file__).parents[2]
STARTED_WITHIN_S = 600.0
APP = "headway"
NAME = "tiny-llama"
LONGEST = 2048
TOOL_CALLS = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
TINY: dict[str, Any] = {
    "model": NAME,
    "engine.kind": "vllm",
    "engine.max_model_tokens": LONGEST,
    "engine.max_batch_size": 16,
    "engine.vllm.dtype": "float32",
    "engine.vllm.device": "cpu",
    "engine.vllm.host": "127.0.0.1",
    "engine.vllm.server": TOOL_CALLS,
    "engine.vllm.args": {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": 64 << 20},
}


@dataclass(frozen=True, kw_only=True)
class Served:
    url: str

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S)

    def stats(self, deployment: str) -> EngineStats:
        """Of the only replica, or of any."""
        handle = serve.get_deployment_handle(deployment, APP)
        said: EngineStats = handle.stats.remote().result(timeout_s=PATIENCE_S)
        return said

    def all_stats(self, deployment: str) -> dict[str, EngineStats]:
        """Of each replica."""
        handle = serve.get_deployment_handle(deployment, APP)
        return {
            name: handle.options(session_id=name).stats.remote().result(timeout_s=PATIENCE_S)
            for name in (one["replica_id"] for one in replicas(APP, deployment))
        }


def fields_of_vllm() -> Fields:
    """The fields that vLLM's server reads."""
    with warnings.catch_warnings(action="ignore"):
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    return {
        "/v1/chat/completions": ChatCompletionRequest.model_fields,
        "/v1/completions": CompletionRequest.model_fields,
        "/v1/responses": ResponsesRequest.model_fields,
    }


def deploy_by_file(model: Path, **settings: Any) -> Served:
    """Begin to serve `examples/serve/cluster-vllm-cpu.yaml`, as `serve deploy` does; with settings over it.

    Without its control plane: counts stay, and the engines get the cores.
    """
    document = yaml.safe_load((ROOT / "examples/serve/cluster-vllm-cpu.yaml").read_text())
    (app,) = document["applications"]
    port = free_port()
    app["args"] |= {"engine.vllm.model": str(model), "gateway.port": port, "control_plane": False, **settings}
    app["deployments"] = [each | PATIENT for each in app["deployments"] if each["name"] != "ControlPlane"]
    # Serve imports the application in a task, which finds this checkout as an installed package is found.
    app["runtime_env"]["env_vars"]["PYTHONPATH"] = str(ROOT)
    ray.get(controller().apply_config.remote(ServeDeploySchema.model_validate(document)))
    return Served(url=f"http://127.0.0.1:{port}")


def until_running() -> None:
    """Wait for the application. AssertionError where it will never serve."""

    def runs() -> bool:
        found = serve.status().applications[APP]
        assert found.status != ApplicationStatus.DEPLOY_FAILED, found.message
        return found.status == ApplicationStatus.RUNNING

    wait_until(runs, STARTED_WITHIN_S)


def prefill_pid() -> int:
    (replica,) = replicas(APP, "Prefill")
    return int(replica["pid"])


def engine_of(replica: int) -> int:
    """The process in which vLLM computes for that replica."""
    children = Path(f"/proc/{replica}/task").glob("*/children")
    pids = [int(pid) for listed in children for pid in listed.read_text().split()]
    (engine,) = [pid for pid in pids if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return engine
