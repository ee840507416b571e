"""Counts read and set on a real API server, with the rights of examples/kubernetes/rbac.yaml alone."""

import asyncio
from typing import Any

import pytest

from actors.connectors.protocol import PoolCounts, Refused
from headway.planning import Role
from tests.kube.cluster import ApiError, KubeCluster, Kubelet, Objects, settled, wait_until
from tests.kube.conftest import Connect
from tests.kube.resources import Manifest, collection, deployment, leader_worker_set, path
from tests.kubernetes.manifests import adapter, graph, ray_service, worker

TARGETS = {Role.PREFILL: 4, Role.DECODE: 5}


def pool(desired: int, starting: int, ready: int, draining: int) -> PoolCounts:
    return PoolCounts(desired=desired, starting=starting, ready=ready, draining=draining)


def scale(prefill: Manifest, decode: Manifest, **decode_more: str) -> dict[str, Any]:
    objects = {
        role: {"kind": one["kind"], "name": one["metadata"]["name"], **more}
        for role, one, more in (("prefill", prefill, {}), ("decode", decode, decode_more))
    }
    return {"target": "scale", "objects": objects}


def replicas(admin: Objects, manifest: Manifest) -> int:
    count: int = admin.call("GET", path(manifest))["spec"]["replicas"]
    return count


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (deployment("prefill", 8), deployment("decode", 8)),
        (deployment("prefill", 8, "StatefulSet"), leader_worker_set("decode", 8)),
    ],
    ids=["deployments", "statefulset and leaderworkerset"],
)
def test_counts_are_observed_set_and_followed(
    admin: Objects, connect: Connect, prefill: Manifest, decode: Manifest
) -> None:
    for manifest in (prefill, decode):
        admin.create(collection(manifest), manifest)
    connector = connect(scale(prefill, decode))
    state = asyncio.run(connector.state())
    assert state[Role.DECODE] == pool(8, 8, 0, 0)
    assert "no ready replica yet" in asyncio.run(connector.ready()).reason

    with Kubelet(admin, [path(prefill), path(decode)], settled).working():
        wait_until(lambda: asyncio.run(connector.ready()).ok, 30)
        assert asyncio.run(connector.state())[Role.DECODE].ready == 8
        action = asyncio.run(connector.set_targets(TARGETS, {}))
        assert action.status == "sent"
        wanted = {r: pool(n, 0, n, 0) for r, n in TARGETS.items()}
        wait_until(lambda: asyncio.run(connector.state()) == wanted, 30)
    assert asyncio.run(connector.set_targets(TARGETS, {})).status == "unchanged"


def test_a_scale_down_drains_until_the_status_follows(admin: Objects, connect: Connect) -> None:
    prefill, decode = deployment("prefill", 2), deployment("decode", 8)
    for manifest in (prefill, decode):
        admin.create(collection(manifest), manifest)
        admin.call("PATCH", f"{path(manifest)}/status", {"status": settled(manifest)})
    connector = connect(scale(prefill, decode))

    asyncio.run(connector.set_targets({Role.DECODE: 5}, {}))

    assert asyncio.run(connector.state())[Role.DECODE] == PoolCounts(
        desired=5, starting=0, ready=5, draining=3
    )


def test_any_resource_with_a_scale_subresource_is_found_by_discovery(
    cluster: KubeCluster, admin: Objects, connect: Connect
) -> None:
    fleet = {
        "apiVersion": "acme.example/v2",
        "kind": "EngineFleet",
        "metadata": {"name": "decode"},
        "spec": {"engines": {"count": 8}},
    }
    prefill = deployment("prefill", 2)
    for manifest in (prefill, fleet):
        admin.create(collection(manifest), manifest)
    admin.call("PATCH", f"{path(fleet)}/status", {"status": {"engines": {"live": 8}}})
    settings = scale(prefill, fleet, api_version="acme.example/v2")

    with pytest.raises(Refused, match=r'403 .*needed: .*apiGroups: \["acme.example"\]'):
        asyncio.run(connect(settings).set_targets(TARGETS, {}))
    connector = connect(settings, account="admin")
    assert asyncio.run(connector.state())[Role.DECODE] == PoolCounts(
        desired=8, starting=0, ready=8, draining=0
    )
    asyncio.run(connector.set_targets(TARGETS, {}))
    assert admin.call("GET", path(fleet))["spec"]["engines"]["count"] == 5

    for api, kind, said in (
        ("acme.example/v2", "Fleet", "acme.example/v2 has no kind Fleet; it has EngineFleet"),
        ("nvidia.com/v1alpha1", "DynamoGraphDeployment", "has no scale subresource"),
        ("gone.example/v1", "Gone", "404"),
    ):
        wrong = {**settings["objects"], "decode": {"kind": kind, "api_version": api, "name": "x"}}
        with pytest.raises(Refused, match=f"objects.decode: .*{said}"):
            asyncio.run(connect({**settings, "objects": wrong}).state())


def test_a_dynamo_graph_with_a_scaling_adapter(admin: Objects, connect: Connect) -> None:
    services = {"Pre": worker("prefill", 2), "Dec": worker("decode", 3, scalingAdapter={"enabled": True})}
    made = {**graph(**services), "metadata": {"name": "llm"}}
    follows = {**adapter("llm", "Dec", 3), "metadata": {"name": "llm-dec"}}
    for manifest in (made, follows):
        admin.create(collection(manifest), manifest)
        admin.call("PATCH", f"{path(manifest)}/status", {"status": manifest["status"]})
    connector = connect({"target": "dynamo", "name": "llm"})

    assert asyncio.run(connector.ready()).ok
    asyncio.run(connector.set_targets(TARGETS, {}))

    assert admin.call("GET", path(made))["spec"]["services"]["Pre"]["replicas"] == 4
    assert replicas(admin, follows) == 5
    assert asyncio.run(connector.state())[Role.DECODE] == PoolCounts(
        desired=5, starting=2, ready=3, draining=0
    )


def test_a_ray_service(admin: Objects, connect: Connect) -> None:
    made = {**ray_service(), "metadata": {"name": "llm"}}
    admin.create(collection(made), made)
    admin.call("PATCH", f"{path(made)}/status", {"status": made["status"]})
    connector = connect({"target": "kuberay", "name": "llm"}, model="Qwen/Qwen3-0.6B")

    assert asyncio.run(connector.ready()).ok
    asyncio.run(connector.set_targets(TARGETS, {}))

    assert "num_replicas: 5" in admin.call("GET", path(made))["spec"]["serveConfigV2"]


def test_the_rights_of_the_example_are_enough_and_no_more(
    cluster: KubeCluster, admin: Objects, connect: Connect
) -> None:
    prefill, decode = deployment("prefill", 2), deployment("decode", 8)
    for manifest in (prefill, decode):
        admin.create(collection(manifest), manifest)
    asyncio.run(connect(scale(prefill, decode)).set_targets(TARGETS, {}))

    with pytest.raises(Refused, match=r'403 .*needed: .*resources: \["deployments"\], verbs: \["get"\]'):
        asyncio.run(connect(scale(prefill, decode), account="other").state())
    headway = cluster.objects("headway")
    with pytest.raises(ApiError, match="403"):
        headway.call("PATCH", path(decode), {"spec": {"paused": True}})
    with pytest.raises(ApiError, match="403"):
        headway.call("GET", "/api/v1/namespaces/llm/pods")


def test_an_object_that_is_missing_is_named(admin: Objects, connect: Connect) -> None:
    prefill = deployment("prefill", 2)
    admin.create(collection(prefill), prefill)
    connector = connect(scale(prefill, deployment("decode", 1)))

    with pytest.raises(Refused, match=r"deployments\.apps decode in namespace llm: 404"):
        asyncio.run(connector.set_targets(TARGETS, {}))

    assert replicas(admin, prefill) == 4
