"""The connector and objects with a scale subresource, and Dynamo's scaling adapters, over real HTTP."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.connectors import connector_problems
from actors.connectors.kube_api import KubeApi
from actors.connectors.protocol import PoolCounts, Refused
from headway.config import HeadwayConfig
from headway.planning import Role
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.conftest import MakeConnector
from tests.kubernetes.manifests import MODEL, adapter, graph, worker, workload

TARGETS = {Role.PREFILL: 4, Role.DECODE: 5}
OBJECTS: dict[str, Any] = {"prefill": {"name": "vllm-prefill"}, "decode": {"name": "vllm-decode"}}
SCALE: dict[str, Any] = {"target": "scale", "name": None, "objects": OBJECTS}


@pytest.fixture
def fleet(api: ApiServer) -> ApiServer:
    api.put(workload("vllm-prefill", 2, "Deployment", "apps/v1", "serve", MODEL), "deployments")
    api.put(workload("vllm-decode", 8, "Deployment", "apps/v1", "--model", MODEL), "deployments")
    return api


def deployment(api: ApiServer, name: str) -> dict[str, Any]:
    return api.objects["apps", "v1", "prod", "deployments", name]


def test_each_pool_is_set_through_the_scale_subresource_of_its_object(
    fleet: ApiServer, connect: MakeConnector
) -> None:
    action = asyncio.run(connect(**SCALE).set_targets(TARGETS, {}))

    assert action.status == "sent"
    assert action.detail["replicas"] == {"prefill": 4, "decode": 5}
    base = "/apis/apps/v1/namespaces/prod/deployments"
    assert {patch.path for patch in fleet.patches()} == {
        f"{base}/vllm-prefill/scale",
        f"{base}/vllm-decode/scale",
    }
    assert [deployment(fleet, f"vllm-{role}")["spec"]["replicas"] for role in TARGETS] == [4, 5]


def test_only_the_object_that_differs_is_patched(fleet: ApiServer, connect: MakeConnector) -> None:
    action = asyncio.run(connect(**SCALE).set_targets({Role.PREFILL: 2, Role.DECODE: 9}, {}))

    assert action.detail["object"] == "Deployment prod/vllm-decode"
    assert len(fleet.patches()) == 1


def test_counts_are_what_the_status_says(fleet: ApiServer, connect: MakeConnector) -> None:
    deployment(fleet, "vllm-prefill")["status"] = {"replicas": 2}
    deployment(fleet, "vllm-decode")["status"] = {
        "replicas": 9,
        "readyReplicas": 7,
        "terminatingReplicas": 2,
    }

    assert asyncio.run(connect(**SCALE).state()) == {
        Role.PREFILL: PoolCounts(desired=2, starting=2, ready=0, draining=0),
        Role.DECODE: PoolCounts(desired=8, starting=1, ready=7, draining=3),
    }


def test_one_pool_that_fails_does_not_keep_the_other_from_being_set(
    fleet: ApiServer, connect: MakeConnector
) -> None:
    del fleet.objects["apps", "v1", "prod", "deployments", "vllm-prefill"]

    with pytest.raises(Refused, match="vllm-prefill in namespace prod: 404"):
        asyncio.run(connect(**SCALE).set_targets(TARGETS, {}))

    assert deployment(fleet, "vllm-decode")["spec"]["replicas"] == 5


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("DynamoGraphDeployment", "name that one"),
        ("InferenceService", r"KEDA \(spec.predictor.autoScaling\) by headway_target_replicas"),
        ("LLMInferenceService", r"KEDA \(spec.scaling.keda\) by headway_target_replicas"),
    ],
)
def test_an_object_that_another_one_owns_is_refused_with_the_owner(
    kind: str, way: str, fleet: ApiServer, connect: MakeConnector
) -> None:
    owner = {"kind": kind, "name": "llm", "controller": True}
    fleet.put(workload("vllm-decode", 8, ownerReferences=[owner]), "deployments")
    connector = connect(**SCALE)

    with pytest.raises(Refused, match=f"Deployment prod/vllm-decode: belongs to {kind} llm, .*{way}"):
        asyncio.run(connector.set_targets(TARGETS, {}))
    assert "belongs to" in asyncio.run(connector.ready()).reason


def test_readiness_names_another_model_and_missing_replicas(fleet: ApiServer, connect: MakeConnector) -> None:
    assert asyncio.run(connect(**SCALE).ready()).ok
    other = workload("vllm-decode", 8, "Deployment", "apps/v1", "--served-model-name=other")
    other_ready = {**other, "status": {"conditions": []}}
    fleet.put(other_ready, "deployments")
    assert (
        "vllm-decode: serves model 'other', but the settings name"
        in asyncio.run(connect(**SCALE).ready()).reason
    )
    waiting = workload("vllm-decode", 8)
    waiting["status"] = {
        "replicas": 8,
        "conditions": [{"type": "Progressing", "status": "False", "message": "no GPU is free"}],
    }
    fleet.put(waiting, "deployments")
    assert "no ready replica yet: no GPU is free" in asyncio.run(connect(**SCALE).ready()).reason


def test_replicas_that_a_quota_refuses_are_told_and_the_others_scaled(
    fleet: ApiServer, connect: MakeConnector
) -> None:
    short = workload("vllm-decode", 8)
    quota = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus, used: 4"}
    short["status"] = {"replicas": 4, "readyReplicas": 4, "conditions": [quota]}
    fleet.put(short, "deployments")

    ready = asyncio.run(connect(**SCALE).ready())

    assert ready.ok
    assert ready.reason == "Deployment prod/vllm-decode: 4 of 8 ready: exceeded quota: gpus, used: 4"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"objects": {"prefill": {"name": "a"}}}, "objects.decode: needed with target scale"),
        ({"objects": {**OBJECTS, "mixed": {"name": "m"}}}, "objects.mixed: there is no pool mixed"),
        (
            {"objects": {role: {"name": "a"} for role in OBJECTS}},
            "objects.decode: Deployment a is prefill's already",
        ),
        (
            {"objects": {**OBJECTS, "decode": {"kind": "Rollout", "name": "a"}}},
            "decode.api_version: needed for",
        ),
        ({"objects": {**OBJECTS, "decode": {"api_version": "v1", "name": "a"}}}, "should be GROUP/VERSION"),
        ({"target": "dynamo", "name": "g"}, "objects: only read with target scale, but target is dynamo"),
    ],
)
def test_gaps_in_the_settings_are_one_line_each(settings: dict[str, Any], line: str) -> None:
    tree = {"connector": {"kind": "kubernetes", "kubernetes": {**SCALE, **settings}}}

    (problem,) = connector_problems(HeadwayConfig.model_validate(tree))

    assert problem.startswith("connector.kubernetes.objects")
    assert line in problem


def test_a_service_with_a_scaling_adapter_is_scaled_through_it(
    api: ApiServer, connect: MakeConnector
) -> None:
    services = {"Pre": worker("prefill", 1), "Dec": worker("decode", 3, scalingAdapter={"enabled": True})}
    api.put(graph(**services), "dynamographdeployments")
    connector = connect()
    assert "dynamographdeploymentscalingadapters.nvidia.com llm-dec" in asyncio.run(connector.ready()).reason
    api.put(adapter("llm", "Dec", 3), "dynamographdeploymentscalingadapters")

    assert asyncio.run(connector.ready()).ok
    assert asyncio.run(connector.set_targets(TARGETS, {})).status == "sent"

    graphs, adapters = api.objects.values()
    assert graphs["spec"]["services"]["Pre"]["replicas"] == 4
    # The operator copies it there.
    assert graphs["spec"]["services"]["Dec"]["replicas"] == 3
    assert adapters["spec"]["replicas"] == 5
    state = asyncio.run(connector.state())
    assert state[Role.DECODE] == PoolCounts(desired=5, starting=2, ready=3, draining=0)
    assert asyncio.run(connector.set_targets(TARGETS, {})).status == "unchanged"


@pytest.mark.parametrize("kind", ["InferenceService", "LLMInferenceService"])
def test_a_kind_that_cannot_be_scaled_is_refused_with_the_way_that_works(kind: str) -> None:
    async def resources(*_: object, **__: object) -> dict[str, Any]:
        return {"resources": [{"kind": kind, "name": "services"}, {"kind": kind, "name": "services/status"}]}

    api: Any = SimpleNamespace(call=resources)
    with pytest.raises(Refused) as raised:
        asyncio.run(KubeApi.resource_of(api, "serving.kserve.io", "v1", kind, 1.0))
    assert f"{kind} of serving.kserve.io/v1 has no scale subresource: let KServe" in str(raised.value)
    assert "connector.kind virtual (docs/targets.md#kserve)" in str(raised.value)
