"""What the connector makes of conflicts, refusals, silence and noise."""

import asyncio
from typing import Any

import pytest

from actors.connectors.kubernetes import ATTEMPTS
from actors.connectors.protocol import Refused, Unreachable
from headway.planning import Role
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.conftest import MakeConnector
from tests.kubernetes.manifests import graph
from tests.ports import free_port

PLURAL = "dynamographdeployments"
TARGETS = {Role.PREFILL: 4, Role.DECODE: 5}


def other_writer(api: ApiServer, times: int) -> None:
    """Change the object under the connector's feet, so many times."""
    left = [times]

    def write(stored: dict[str, Any]) -> None:
        if left[0] > 0:
            left[0] -= 1
            stored["status"]["services"]["VllmDecodeWorker"]["replicas"] += 1
            api.touch(stored)

    api.before_patch = write


def test_a_conflict_is_read_again_and_retried(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)
    other_writer(api, times=2)

    action = asyncio.run(connect().set_targets(TARGETS, {}))

    assert action.status == "sent"
    assert [request.method for request in api.requests] == ["GET", "PATCH"] * 3
    versions = [patch.body["metadata"]["resourceVersion"] for patch in api.patches()]
    assert len(set(versions)) == 3
    assert api.only["spec"]["services"]["VllmDecodeWorker"]["replicas"] == 5


def test_a_conflict_that_brings_the_target_ends_without_another_patch(
    api: ApiServer, connect: MakeConnector
) -> None:
    api.put(graph(), PLURAL)

    def somebody_sets_the_same(stored: dict[str, Any]) -> None:
        stored["spec"]["services"]["VllmPrefillWorker"]["replicas"] = 4
        stored["spec"]["services"]["VllmDecodeWorker"]["replicas"] = 5
        api.touch(stored)

    api.before_patch = somebody_sets_the_same

    assert asyncio.run(connect().set_targets(TARGETS, {})).status == "unchanged"
    assert len(api.patches()) == 1


def test_endless_conflicts_end(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)
    other_writer(api, times=1000)

    with pytest.raises(Unreachable, match="DynamoGraphDeployment prod/llm: changed by others"):
        asyncio.run(connect().set_targets(TARGETS, {}))

    assert len(api.patches()) == ATTEMPTS
    assert api.only["spec"]["services"]["VllmDecodeWorker"]["replicas"] == 3


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_missing_right_names_verb_resource_namespace_and_rule(
    api: ApiServer, connect: MakeConnector, verb: str
) -> None:
    api.put(graph(), PLURAL)
    api.verbs.remove(verb)

    with pytest.raises(Refused) as refused:
        asyncio.run(connect().set_targets(TARGETS, {}))

    text = str(refused.value)
    assert f"{verb.upper()} dynamographdeployments.nvidia.com llm in namespace prod: 403" in text
    assert f'cannot {verb} resource "dynamographdeployments"' in text
    assert f'apiGroups: ["nvidia.com"], resources: ["dynamographdeployments"], verbs: ["{verb}"]' in text


def test_a_denial_by_a_webhook_is_not_taken_for_a_missing_right(
    api: ApiServer, connect: MakeConnector
) -> None:
    api.put(graph(), PLURAL)
    api.denies = "replicas are managed by the scaling adapter"

    with pytest.raises(Refused, match="managed by the scaling adapter") as refused:
        asyncio.run(connect().set_targets(TARGETS, {}))

    assert "Role" not in str(refused.value)


def test_the_token_is_sent_and_a_wrong_one_is_refused(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)
    api.token = "right"

    assert asyncio.run(connect(token="right").ready()).ok
    assert "401" in asyncio.run(connect(token="wrong").ready()).reason
    assert "401" in asyncio.run(connect().ready()).reason


def test_the_token_may_come_from_the_environment(
    api: ApiServer, connect: MakeConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(graph(), PLURAL)
    api.token = "secret"
    monkeypatch.setenv("HEADWAY_KUBERNETES_TOKEN", "secret")

    assert asyncio.run(connect().ready()).ok


def test_a_missing_object_is_named(api: ApiServer, connect: MakeConnector) -> None:
    with pytest.raises(Refused, match=r"dynamographdeployments\.nvidia\.com llm in namespace prod: 404"):
        asyncio.run(connect().state())

    assert "404" in asyncio.run(connect().ready()).reason


def test_an_invalid_count_is_refused_with_the_servers_words(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)

    with pytest.raises(Refused, match=r"422 spec\.services\.VllmDecodeWorker\.replicas: Invalid value"):
        asyncio.run(connect().set_targets({Role.DECODE: 101}, {}))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_server_in_trouble_is_unreachable_and_asked_once(
    api: ApiServer, connect: MakeConnector, status: int
) -> None:
    api.put(graph(), PLURAL)
    api.statuses["GET"] = status
    connector = connect()

    with pytest.raises(Unreachable, match=f"{status} made to answer"):
        asyncio.run(connector.state())

    assert len(api.requests) == 1
    api.statuses.clear()
    assert set(asyncio.run(connector.state())) == {Role.PREFILL, Role.DECODE}


def test_a_failed_patch_is_not_repeated_within_the_call(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)
    api.statuses["PATCH"] = 500

    with pytest.raises(Unreachable, match="PATCH dynamographdeployments"):
        asyncio.run(connect().set_targets(TARGETS, {}))

    assert len(api.patches()) == 1


def test_a_slow_server_is_given_up_in_time(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)
    api.delay_s = 30.0

    with pytest.raises(Unreachable, match="prod"):
        asyncio.run(connect(timeout_s=0.2).state())


def test_a_dropped_connection_is_unreachable(api: ApiServer, connect: MakeConnector) -> None:
    api.put(graph(), PLURAL)
    api.drop = True

    with pytest.raises(Unreachable, match="namespace prod"):
        asyncio.run(connect().state())

    assert len(api.requests) == 1


def test_nobody_listening_is_unreachable(connect: MakeConnector) -> None:
    with pytest.raises(Unreachable, match="namespace prod"):
        asyncio.run(connect(api_url=f"http://127.0.0.1:{free_port()}").state())


def test_an_answer_that_is_no_object_is_unreachable(api: ApiServer, connect: MakeConnector) -> None:
    api.garbage = True

    with pytest.raises(Unreachable, match=r"no Kubernetes object|not understood"):
        asyncio.run(connect().state())


def test_a_role_without_a_pool_is_refused_before_anything_is_sent(
    api: ApiServer, connect: MakeConnector
) -> None:
    api.put(graph(), PLURAL)

    with pytest.raises(Refused, match="no pool mixed: the settings have prefill, decode"):
        asyncio.run(connect().set_targets({Role.MIXED: 1}, {}))
    with pytest.raises(Refused, match="-1"):
        asyncio.run(connect().set_targets({Role.DECODE: -1}, {}))

    assert api.requests == []
