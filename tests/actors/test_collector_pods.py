"""Pods by a label selector: a real HTTP server with the API server's answers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from actors.collector.engines import DiscoveryError, Pods
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
    assert found == ["10.0.0.2:8000", "[fd00::1]:8000"]
    (request,) = asked
    assert request.path == "/api/v1/namespaces/llm/pods"
    assert request.query["labelSelector"] == "app=vllm,role=decode"
    assert request.headers["authorization"] == "Bearer secret"


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
            assert await pods(ENGINES, PATIENCE_S) == []
            return
        with pytest.raises(DiscoveryError, match="pods app=vllm,role=decode in namespace llm") as caught:
            await pods(ENGINES, PATIENCE_S)
        assert told in str(caught.value)


async def test_nobody_there():
    pods = Pods(KubernetesSettings(api_url="http://127.0.0.1:9", namespace="llm"))
    with pytest.raises(DiscoveryError, match="namespace llm"):
        await pods(ENGINES, 2.0)
