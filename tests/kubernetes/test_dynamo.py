"""The connector and a Dynamo graph deployment, over real HTTP."""

import asyncio
from typing import Any

import pytest

from actors.connectors.protocol import PoolCounts, Refused
from headway.planning import Role
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.conftest import MakeConnector
from tests.kubernetes.manifests import MODEL, graph, replica_status, settle_graph, worker

PATH = "/apis/nvidia.com/v1alpha1/namespaces/prod/dynamographdeployments/llm"
PLURAL = "dynamographdeployments"
TARGETS = {Role.PREFILL: 4, Role.DECODE: 5}


def replicas(api: ApiServer) -> dict[str, int]:
    return {name: service["replicas"] for name, service in api.only["spec"]["services"].items()}


def test_one_merge_patch_sets_both_counts_and_nothing_else(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)
    before = api.only["metadata"]["resourceVersion"]
    untouched = dict(api.only["spec"]["services"]["VllmDecodeWorker"])

    action = asyncio.run(connect().set_targets(TARGETS, {}))

    assert action.status == "sent"
    assert action.detail["replicas"] == {"prefill": 4, "decode": 5}
    assert action.detail["resource_version"] == api.only["metadata"]["resourceVersion"]
    (patch,) = api.patches()
    assert patch.path == PATH
    assert patch.content_type == "application/merge-patch+json"
    assert patch.body == {
        "metadata": {"resourceVersion": before},
        "spec": {"services": {"VllmPrefillWorker": {"replicas": 4}, "VllmDecodeWorker": {"replicas": 5}}},
    }
    assert replicas(api) == {"Frontend": 1, "VllmPrefillWorker": 4, "VllmDecodeWorker": 5}
    assert api.only["spec"]["services"]["VllmDecodeWorker"] == {**untouched, "replicas": 5}


def test_equal_targets_send_no_patch(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)

    action = asyncio.run(connect().set_targets({Role.PREFILL: 2, Role.DECODE: 3}, {}))

    assert action.status == "unchanged"
    assert api.patches() == []


def test_only_the_count_that_differs_is_sent(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)

    asyncio.run(connect().set_targets({Role.PREFILL: 2, Role.DECODE: 8}, {}))

    assert api.patches()[0].body["spec"] == {"services": {"VllmDecodeWorker": {"replicas": 8}}}


def test_counts_follow_the_status(api: ApiServer, connect: MakeConnector) -> None:
    manifest = graph()
    manifest["spec"]["services"]["VllmPrefillWorker"]["replicas"] = 5
    manifest["spec"]["services"]["VllmDecodeWorker"]["replicas"] = 1
    manifest["status"]["services"]["VllmPrefillWorker"] = replica_status(2, live=4)
    manifest["status"]["services"]["VllmDecodeWorker"] = replica_status(3)
    api.put(manifest, PLURAL)

    state = asyncio.run(connect().state())

    assert state == {
        Role.PREFILL: PoolCounts(desired=5, starting=3, ready=2, draining=0),
        Role.DECODE: PoolCounts(desired=1, starting=0, ready=1, draining=2),
    }


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({"replicas": 3, "updatedReplicas": 3, "readyReplicas": 2}, 2),
        ({"replicas": 3, "updatedReplicas": 3, "availableReplicas": 1}, 1),
        ({"replicas": 3, "updatedReplicas": 3, "readyReplicas": 3, "availableReplicas": 1}, 1),
        ({}, 0),
    ],
)
def test_ready_is_what_the_kind_of_workload_reports(
    api: ApiServer, connect: MakeConnector, status: dict[str, int], ready: int
) -> None:
    manifest = graph()
    manifest["status"]["services"]["VllmDecodeWorker"] = status
    api.put(manifest, PLURAL)

    counts = asyncio.run(connect().state())[Role.DECODE]

    assert (counts.ready, counts.starting, counts.draining) == (ready, 3 - ready, 0)


def test_no_status_at_all_means_everything_is_starting(api: ApiServer, connect: MakeConnector) -> None:
    manifest = graph()
    del manifest["status"]
    api.put(manifest, PLURAL)

    assert asyncio.run(connect().state())[Role.DECODE] == PoolCounts(
        desired=3, starting=3, ready=0, draining=0
    )


def test_without_services_in_the_status_the_ready_condition_counts(
    api: ApiServer, connect: MakeConnector
) -> None:
    manifest = graph()
    del manifest["status"]["services"]
    api.put(manifest, PLURAL)
    connector = connect()
    settled = asyncio.run(connector.state())[Role.DECODE]
    api.only["status"]["conditions"][0]["status"] = "False"
    scaling = asyncio.run(connector.state())[Role.DECODE]

    assert settled == PoolCounts(desired=3, starting=0, ready=3, draining=0)
    assert scaling == PoolCounts(desired=3, starting=3, ready=0, draining=0)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ("VllmPrefillWorker", "VllmDecodeWorker"),
        ("TRTLLMPrefillWorker", "TRTLLMDecodeWorker"),
        ("SGLangPrefillWorker", "SGLangDecodeWorker"),
        ("prefill", "decode"),
    ],
)
def test_legacy_names_are_found_without_a_sub_component_type(
    api: ApiServer, connect: MakeConnector, prefill: str, decode: str
) -> None:
    api.put(graph(**{prefill: worker(None, 1), decode: worker(None, 1), "Planner": worker(None, 1)}), PLURAL)

    asyncio.run(connect().set_targets(TARGETS, {}))

    assert replicas(api) == {"Frontend": 1, prefill: 4, decode: 5, "Planner": 1}


def test_sub_component_type_goes_before_component_type_and_legacy_name(
    api: ApiServer, connect: MakeConnector
) -> None:
    services = {
        "fast": worker("prefill", 1),
        "prefill": worker(None, 1, componentType="prefill"),
        "VllmPrefillWorker": worker(None, 1),
        "slow": worker(None, 1, componentType="decode"),
        "VllmDecodeWorker": worker(None, 1),
    }
    api.put(graph(**services), PLURAL)

    asyncio.run(connect().set_targets(TARGETS, {}))

    assert replicas(api) == {**dict.fromkeys(services, 1), "Frontend": 1, "fast": 4, "slow": 5}


def test_mixed_pool_is_the_only_worker(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(VllmWorker=worker(None, 1, "--model", MODEL)), PLURAL)
    connector = connect(pools={"mixed": {}})

    assert asyncio.run(connector.ready()).ok
    asyncio.run(connector.set_targets({Role.MIXED: 6}, {}))

    assert replicas(api) == {"Frontend": 1, "VllmWorker": 6}


SERVED = worker("prefill", 1, "--model", "/weights", "--served-model-name", MODEL)
WRONG_STRUCTURES: list[tuple[dict[str, dict[str, Any]], str]] = [
    ({"a": worker("prefill", 1)}, "no service with subComponentType decode"),
    ({"a": worker("decode", 1)}, "no service with subComponentType prefill"),
    ({"VllmPrefillWorker": worker("decode", 1)}, "no service with subComponentType prefill"),
    (
        {"a": worker("prefill", 1), "b": worker("prefill", 1), "c": worker("decode", 1)},
        "'a' and 'b' are all prefill",
    ),
    (
        {"VllmDecodeWorker": worker(None, 1), "decode": worker(None, 1), "p": worker("prefill", 1)},
        "'VllmDecodeWorker' and 'decode' are all decode",
    ),
]


@pytest.mark.parametrize(("services", "says"), WRONG_STRUCTURES)
def test_a_wrong_structure_is_named(
    api: ApiServer, connect: MakeConnector, services: dict[str, dict[str, Any]], says: str
) -> None:
    api.put(graph(**services), PLURAL)
    connector = connect()

    ready = asyncio.run(connector.ready())
    with pytest.raises(Refused) as refused:
        asyncio.run(connector.set_targets(TARGETS, {}))

    assert not ready.ok
    for text in (ready.reason, str(refused.value)):
        assert says in text
        assert "DynamoGraphDeployment prod/llm" in text
    assert api.patches() == []


@pytest.mark.parametrize(
    ("prefill", "decode", "says"),
    [
        (
            ("--model", MODEL),
            ("--model", "other"),
            "services serve different models: p 'Qwen/Qwen3-0.6B', d 'other'",
        ),
        (("--model", "other"), ("--model", "other"), "'p' serves model 'other', but the settings name"),
        (("--model=" + MODEL,), (), ""),
        ((), (), ""),
        (("--model", "/w", "--served-model-name", MODEL), ("--served-model-name=" + MODEL.lower(),), ""),
        (("--model-path", MODEL), ("--model-name", MODEL), ""),
        (("-c", f"exec python3 -m dynamo.vllm --model {MODEL} 2>&1 | tee log"), ("--model", MODEL), ""),
        (("--model", "$(MODEL)"), ("--model", MODEL), ""),
        (("-c", f"echo it's --model {MODEL}"), ("--model", MODEL), ""),
    ],
)
def test_models_must_match_each_other_and_the_settings(
    api: ApiServer, connect: MakeConnector, prefill: tuple[str, ...], decode: tuple[str, ...], says: str
) -> None:
    api.put(graph(p=worker("prefill", 1, *prefill), d=worker("decode", 1, *decode)), PLURAL)

    ready = asyncio.run(connect().ready())

    assert ready.ok == (not says)
    assert says in ready.reason


def test_not_ready_before_the_first_replicas_and_ready_while_scaling(
    api: ApiServer, connect: MakeConnector
) -> None:
    connector = connect()
    manifest = graph()
    manifest["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "decode: 0/3 pods"}]
    manifest["status"]["services"]["VllmDecodeWorker"] = replica_status(0, live=3)
    api.put(manifest, PLURAL)
    first = asyncio.run(connector.ready())
    api.only["status"]["services"]["VllmDecodeWorker"] = replica_status(1, live=3)
    second = asyncio.run(connector.ready())
    del api.only["status"]["services"]["Frontend"]
    third = asyncio.run(connector.ready())
    settle_graph(api.only)
    fourth = asyncio.run(connector.ready())

    assert (first.ok, second.ok, third.ok, fourth.ok) == (False, True, False, True)
    assert first.reason == (
        "DynamoGraphDeployment prod/llm: no ready replica of 'VllmDecodeWorker' yet: decode: 0/3 pods"
    )
    assert "'Frontend'" in third.reason


def test_a_pool_scaled_to_zero_is_no_reason_to_wait(api: ApiServer, connect: MakeConnector) -> None:
    manifest = graph(p=worker("prefill", 0), d=worker("decode", 1))
    manifest["status"]["conditions"] = []
    api.put(manifest, PLURAL)

    assert asyncio.run(connect().ready()).ok
