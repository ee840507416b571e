"""Pods by a label selector: a real HTTP server with the API server's answers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from actors.collector.discovery import DiscoveryError, Pods
from actors.collector.series import GROUP
from headway.config import KubernetesSettings
from headway.config.live import EngineAddresses
from tests.actors.collector_cases import serving
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

ENGINES = EngineAddresses(selector="app=vllm,role=decode", port=8000)


def pod(phase: str, ip: str | None) -> dict[str, Any]:
    return {"metadata": {"name": "x"}, "status": {"phase": phase, **({"podIP": ip} if ip else {})}}


@asynccontextmanager
async def api_server(status: int, body: object, asked: list[web.Request]) -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request)
        return web.Response(status=status, text=json.dumps(body), content_type="application/json")

    async with serving(answer) as url:
        yield url


async def test_running_pods_with_an_address(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HEADWAY_KUBERNETES_TOKEN", "secret")
    asked: list[web.Request] = []
    pods = [
        pod("Running", "10.0.0.2"),
        pod("Pending", None),
        pod("Running", "fd00::1"),
        pod("Succeeded", "10.0.0.3"),
    ]
    async with api_server(200, {"kind": "PodList", "items": pods}, asked) as url:
        found = await Pods(KubernetesSettings(api_url=url, namespace="llm"))(ENGINES, PATIENCE_S)
    assert found == {"10.0.0.2:8000": {"pod": "x"}, "[fd00::1]:8000": {"pod": "x"}}
    (request,) = asked
    assert request.path == "/api/v1/namespaces/llm/pods"
    assert request.query["labelSelector"] == "app=vllm,role=decode"
    assert request.headers["authorization"] == "Bearer secret"


async def test_what_pods_are_a_part_of_and_run_on():
    lws = "leaderworkerset.sigs.k8s.io"
    worker = {
        "metadata": {"name": "lws-0-1", "labels": {f"{lws}/group-key": "a1b2", f"{lws}/worker-index": "1"}},
        "spec": {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}},
        "status": {"phase": "Running", "podIP": "10.0.0.2"},
    }
    engines = EngineAddresses(selector="app=vllm", port=(8000, 8001))
    async with api_server(200, {"items": [worker]}, []) as url:
        found = await Pods(KubernetesSettings(api_url=url, namespace="llm"))(engines, PATIENCE_S)
    told = {"pod": "lws-0-1", GROUP: "a1b2", "worker": "1", "gpu": "h100"}
    assert found == {"10.0.0.2:8000": told, "10.0.0.2:8001": told}


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (403, {"message": "no"}, "403 Forbidden; needed: a Role with pods, verbs: [list]"),
        (500, {}, "500"),
        (200, "not a list", None),
    ],
)
async def test_faults(status: int, body: object, told: str | None):
    async with api_server(status, body, []) as url:
        pods = Pods(KubernetesSettings(api_url=url, namespace="llm"))
        if told is None:
            assert await pods(ENGINES, PATIENCE_S) == {}
            return
        with pytest.raises(DiscoveryError, match="pods app=vllm,role=decode in namespace llm") as caught:
            await pods(ENGINES, PATIENCE_S)
        assert told in str(caught.value)


async def test_nobody_there():
    pods = Pods(KubernetesSettings(api_url="http://127.0.0.1:9", namespace="llm"))
    with pytest.raises(DiscoveryError, match="namespace llm"):
        await pods(ENGINES, 2.0)
