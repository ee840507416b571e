"""The connector and a KubeRay RayService, over real HTTP; numbers set inside the text of a Serve config."""

import asyncio

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from actors.connectors.protocol import PoolCounts, Refused
from actors.connectors.ray_service import with_counts
from headway.planning import Role
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.conftest import MakeConnector
from tests.kubernetes.manifests import SERVE_CONFIG, ray_service, settle_ray_service

PATH = "/apis/ray.io/v1/namespaces/prod/rayservices/llm"
PLURAL = "rayservices"
TARGETS = {Role.PREFILL: 4, Role.DECODE: 5}


def test_numbers_change_inside_the_config_and_nothing_else(api: ApiServer, connect: MakeConnector) -> None:
    api.put(ray_service(), PLURAL)
    before = api.only["metadata"]["resourceVersion"]

    action = asyncio.run(connect(target="kuberay").set_targets(TARGETS, {}))

    assert action.status == "sent"
    (patch,) = api.patches()
    assert patch.path == PATH
    assert patch.content_type == "application/merge-patch+json"
    assert patch.body["metadata"] == {"resourceVersion": before}
    assert set(patch.body["spec"]) == {"serveConfigV2"}
    assert api.only["spec"]["rayClusterConfig"] == {"rayVersion": "2.60.0"}
    text = api.only["spec"]["serveConfigV2"]
    meant = SERVE_CONFIG.replace("num_replicas: 2 ", "num_replicas: 4 ")
    assert yaml.safe_load(text) == yaml.safe_load(meant.replace("num_replicas: 3,", "num_replicas: 5,"))


def test_another_writers_text_is_kept(api: ApiServer, connect: MakeConnector) -> None:
    api.put(ray_service(), PLURAL)
    edits = [SERVE_CONFIG.replace("max_ongoing_requests: 64", "max_ongoing_requests: 99")]

    def other_writer(stored: dict[str, object]) -> None:
        if edits:
            stored["spec"]["serveConfigV2"] = edits.pop()  # type: ignore[index]
            api.touch(stored)

    api.before_patch = other_writer
    asyncio.run(connect(target="kuberay").set_targets(TARGETS, {}))

    assert len(api.patches()) == 2
    decode = yaml.safe_load(api.only["spec"]["serveConfigV2"])["applications"][0]["deployments"][2]
    assert decode == {"name": "Decode", "num_replicas": 5, "max_ongoing_requests": 99}


def test_counts_are_the_last_settled_ones_until_the_operator_reports_again(
    api: ApiServer, connect: MakeConnector
) -> None:
    async def conversation() -> list[PoolCounts]:
        connector = connect(target="kuberay")
        seen = [(await connector.state())[Role.DECODE]]
        await connector.set_targets({Role.DECODE: 5}, {})
        seen.append((await connector.state())[Role.DECODE])
        settle_ray_service(api.only)
        seen.append((await connector.state())[Role.DECODE])
        await connector.set_targets({Role.DECODE: 1}, {})
        seen.append((await connector.state())[Role.DECODE])
        return seen

    api.put(ray_service(), PLURAL)

    assert asyncio.run(conversation()) == [
        PoolCounts(desired=3, starting=0, ready=3, draining=0),
        PoolCounts(desired=5, starting=2, ready=3, draining=0),
        PoolCounts(desired=5, starting=0, ready=5, draining=0),
        PoolCounts(desired=1, starting=0, ready=1, draining=0),
    ]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "- name: headway ",
            "- name: elsewhere ",
            "no application named 'headway'; there are 'elsewhere', 'other'",
        ),
        (
            "name: Decode",
            "name: Dekode",
            "deployment 'Decode': not listed; there are 'Gateway', 'Prefill', 'Dekode'",
        ),
        (
            "num_replicas: 3",
            "num_replicas: auto",
            "deployment 'Decode': num_replicas should be a number, not 'auto'",
        ),
        ("num_replicas: 3, ", "", "deployment 'Decode': num_replicas should be a number, not None"),
        ("applications:", "applications: [", "no valid YAML"),
        (SERVE_CONFIG, "just words", "should be a mapping"),
    ],
)
def test_a_wrong_config_is_named(
    api: ApiServer, connect: MakeConnector, old: str, new: str, says: str
) -> None:
    api.put(ray_service(config=SERVE_CONFIG.replace(old, new)), PLURAL)
    connector = connect(target="kuberay")

    ready = asyncio.run(connector.ready())
    with pytest.raises(Refused, match=r"RayService prod/llm: spec\.serveConfigV2") as refused:
        asyncio.run(connector.set_targets({Role.PREFILL: 4}, {}))

    assert not ready.ok
    assert says in ready.reason
    assert says in str(refused.value)
    assert api.patches() == []


def test_ready_wants_the_service_the_application_and_the_model(
    api: ApiServer, connect: MakeConnector
) -> None:
    api.put(ray_service(), PLURAL)
    connector = connect(target="kuberay")
    assert asyncio.run(connector.ready()).ok

    application = api.only["status"]["activeServiceStatus"]["applicationStatuses"]["headway"]
    application.update(status="DEPLOYING", message="waiting for Decode")
    assert "application 'headway' is DEPLOYING: waiting for Decode" in asyncio.run(connector.ready()).reason

    api.only["status"]["conditions"] = [{"type": "Ready", "status": "False", "message": "no endpoints"}]
    assert "not ready: no endpoints" in asyncio.run(connector.ready()).reason

    api.only["status"] = {"serviceStatus": ""}
    assert "serviceStatus is not set" in asyncio.run(connector.ready()).reason

    api.only["spec"]["serveConfigV2"] = SERVE_CONFIG.replace("Qwen3-0.6B", "Qwen3-8B")
    assert "serves model 'Qwen/Qwen3-8B'" in asyncio.run(connector.ready()).reason


SHARED = """
pool: &pool {num_replicas: 2, max_ongoing_requests: 8}
applications:
  - name: headway
    deployments:
      - {name: Prefill, <<: *pool}
      - {name: Decode, num_replicas: &n 3}
      - {name: Gateway, num_replicas: *n}
"""


def counts_in(text: str, application: str) -> dict[str, int]:
    (found,) = [
        item for item in yaml.safe_load(text)["applications"] if item.get("name", "default") == application
    ]
    return {item["name"]: item["num_replicas"] for item in found["deployments"]}


@given(prefill=st.integers(0, 5000), decode=st.integers(0, 5000))
def test_only_the_named_numbers_change(prefill: int, decode: int) -> None:
    text = with_counts(SERVE_CONFIG, "headway", {"Prefill": prefill, "Decode": decode})

    assert counts_in(text, "headway") == {"Gateway": 1, "Prefill": prefill, "Decode": decode}
    assert counts_in(text, "other") == {"Prefill": 7}
    undone = with_counts(text, "headway", {"Prefill": 2, "Decode": 3})
    assert yaml.safe_load(undone) == yaml.safe_load(SERVE_CONFIG)


def test_a_missing_number_is_written() -> None:
    text = "applications:\n- deployments:\n  - name: Prefill\n    user_config: {}\n  - {name: Decode}\n"
    edited = with_counts(text, "default", {"Prefill": 4, "Decode": 5})
    assert counts_in(edited, "default") == {"Prefill": 4, "Decode": 5}


def test_anchors_are_not_changed_for_others() -> None:
    text = with_counts(SHARED, "headway", {"Prefill": 4, "Decode": 5})

    assert counts_in(text, "headway") == {"Prefill": 4, "Decode": 5, "Gateway": 3}
    assert yaml.safe_load(text)["pool"] == {"num_replicas": 2, "max_ongoing_requests": 8}
    assert yaml.safe_load(text)["applications"][0]["deployments"][0]["max_ongoing_requests"] == 8
