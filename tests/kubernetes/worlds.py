"""The entries of KubernetesConnector in the conformance suite: a real HTTP server with an operator."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from actors.connectors.kubernetes import KubernetesConnector
from headway.config import HeadwayConfig
from tests.kubernetes.api_server import ApiServer, serving
from tests.kubernetes.manifests import (
    MODEL,
    SERVE_CONFIG,
    graph,
    ray_service,
    settle_graph,
    settle_ray_service,
    settle_workload,
    worker,
    workload,
)
from tests.patience import PATIENCE_S


class KubernetesWorld:
    """A connector, the API server, and an operator that brings replicas up when told to."""

    def __init__(
        self, server: ApiServer, target: str, settle: Callable[[dict[str, Any]], None], **settings: Any
    ) -> None:
        self._server = server
        self._settle = settle
        kubernetes = {"target": target, "namespace": "prod", "name": "llm", "api_url": server.url, **settings}
        self.connector = KubernetesConnector(
            HeadwayConfig.model_validate(
                {"model": MODEL, "connector": {"timeout_s": PATIENCE_S, "kubernetes": kubernetes}}
            )
        )

    async def carry_out(self) -> None:
        for stored in self._server.objects.values():
            self._settle(stored)
            self._server.touch(stored)

    async def go_away(self) -> None:
        self._server.drop = True


@asynccontextmanager
async def dynamo() -> AsyncIterator[KubernetesWorld]:
    with serving() as server:
        services = {"p": worker("prefill", 1, "--model", MODEL), "d": worker("decode", 1, "--model", MODEL)}
        server.put(graph(**services), "dynamographdeployments")
        yield KubernetesWorld(server, "dynamo", settle_graph)


@asynccontextmanager
async def kuberay() -> AsyncIterator[KubernetesWorld]:
    with serving() as server:
        config = SERVE_CONFIG.replace("num_replicas: 2 ", "num_replicas: 1 ").replace(
            "num_replicas: 3", "num_replicas: 1"
        )
        server.put(ray_service(config=config), "rayservices")
        yield KubernetesWorld(server, "kuberay", settle_ray_service)


@asynccontextmanager
async def scale() -> AsyncIterator[KubernetesWorld]:
    """A Deployment for prefill and a LeaderWorkerSet for decode."""
    with serving() as server:
        server.put(workload("prefill", 1), "deployments")
        server.put(
            workload("decode", 1, "LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"), "leaderworkersets"
        )
        objects = {"prefill": {"name": "prefill"}, "decode": {"kind": "LeaderWorkerSet", "name": "decode"}}
        yield KubernetesWorld(server, "scale", settle_workload, objects=objects)
