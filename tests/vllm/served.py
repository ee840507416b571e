"""Real vLLM replicas behind the gateway, and what tests ask of them."""

import asyncio
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import yaml
from openai import OpenAI
from ray import serve
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from headway.config import load_config
from headway.planning import Role
from serve_apps.engines.protocol import EngineRequest, EngineStats
from tests.compatibility import Fields
from tests.ports import free_port
from tests.ray.clusters import controller, replicas, wait_until

ROOT = Path(__file__).parents[2]
STARTED_WITHIN_S = 400.0
APP = "headway"
NAME = "tiny-llama"
LONGEST = 2048
KV_BYTES = 64 << 20
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
    "engine.vllm.args": {"enforce_eager": True, "block_size": 32, "kv_cache_memory_bytes": KV_BYTES},
}


@dataclass(frozen=True, kw_only=True)
class Served:
    url: str

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)

    def stats(self, deployment: str) -> EngineStats:
        handle = serve.get_deployment_handle(deployment, APP)
        said: EngineStats = handle.stats.remote().result(timeout_s=30)
        return said


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


@contextmanager
def served_by_file(model: Path, **settings: Any) -> Iterator[Served]:
    """`examples/serve/cluster-vllm-cpu.yaml` as `serve deploy` has it, with these settings over its own."""
    document = yaml.safe_load((ROOT / "examples/serve/cluster-vllm-cpu.yaml").read_text())
    (app,) = document["applications"]
    port = free_port()
    app["args"] |= {"engine.vllm.model": str(model), "gateway.port": port, **settings}
    for item in app["deployments"]:
        # It would be settings over those of this test.
        item.pop("user_config", None)
    # Serve imports the application in a task, which finds this checkout as an installed package is found.
    app["runtime_env"]["env_vars"]["PYTHONPATH"] = str(ROOT)
    ray.get(controller().apply_config.remote(ServeDeploySchema.model_validate(document)))
    try:
        wait_until(lambda: why_not_running() == "", STARTED_WITHIN_S)
        yield Served(url=f"http://127.0.0.1:{port}")
    finally:
        serve.delete(APP)


def why_not_running() -> str:
    """Empty when the application serves. AssertionError where it never will."""
    found = serve.status().applications[APP]
    assert found.status != ApplicationStatus.DEPLOY_FAILED, found.message
    return "" if found.status == ApplicationStatus.RUNNING else str(found.status)


@contextmanager
def served(model: Path, *, control_plane: bool = False, **settings: Any) -> Iterator[Served]:
    """The disaggregated application; gone again at the end."""
    from serve_apps.builders import application

    port = free_port()
    overrides = {**TINY, "engine.vllm.model": str(model), "gateway.port": port, **settings}
    app = application(load_config(None, overrides), control_plane=control_plane)
    serve.run(app, name=APP, route_prefix="/", external_scaler_enabled=True)
    try:
        yield Served(url=f"http://127.0.0.1:{port}")
    finally:
        serve.delete(APP)


def prefill_pid() -> int:
    (replica,) = replicas(APP, "Prefill")
    return int(replica["pid"])


def engine_of(replica: int) -> int:
    """The process in which vLLM computes for that replica."""
    children = Path(f"/proc/{replica}/task").glob("*/children")
    pids = [int(pid) for listed in children for pid in listed.read_text().split()]
    (engine,) = [pid for pid in pids if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return engine


def said_by_one_engine(model: str, prompts: list[str], max_tokens: int) -> list[str]:
    """The greedy outputs of a separate, mixed engine, which reads text by itself; runs in any process."""
    from serve_apps.engines import make_engine

    config = load_config(None, {**TINY, "engine.vllm.model": model, "pools": {"mixed": {}}})
    engine = make_engine(config, Role.MIXED, "reference")

    async def say(number: int, prompt: str) -> str:
        request = EngineRequest(
            request_id=f"r{number}",
            model=NAME,
            prompt=prompt,
            input_tokens=1,
            max_tokens=max_tokens,
            sampling={"temperature": 0.0},
        )
        return "".join([chunk.text async for chunk in engine.decode(request, None)])

    async def say_all() -> list[str]:
        return [await say(number, prompt) for number, prompt in enumerate(prompts)]

    try:
        return asyncio.run(say_all())
    finally:
        engine.close()
