"""Other writers on a real API server, and one that is away: conflicts, edits with their authors, autoscalers,
a second Headway.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from actors.connectors.drift import DriftAwareConnector, drift_aware
from actors.connectors.kubernetes import KubernetesConnector
from actors.connectors.protocol import Refused, Unreachable
from headway.config import HeadwayConfig, load_config
from headway.planning import Role
from tests.kube.cluster import ApiError, KubeCluster, Kubelet, Objects, settled, wait_until
from tests.kube.conftest import Connect
from tests.kube.resources import Manifest, autoscaler, collection, path
from tests.kube.test_targets import replicas, scale
from tests.stores import MemoryStore

AWAY_S = 60.0


def guard(connector: KubernetesConnector, **settings: object) -> DriftAwareConnector:
    overrides = {"connector.kind": "kubernetes"}
    config: HeadwayConfig = load_config(None, {**overrides, **settings})
    return drift_aware(connector, lambda: config, MemoryStore(), time.time)


def set_to(connector: DriftAwareConnector | KubernetesConnector, prefill: int, decode: int) -> str:
    action = asyncio.run(connector.set_targets({Role.PREFILL: prefill, Role.DECODE: decode}, {}))
    return action.status


def test_counts_are_set_while_controllers_write_the_status_all_the_time(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    stop, writes = threading.Event(), [0]

    def noise() -> None:
        while not stop.is_set():
            with suppress(ApiError):
                count = writes[0] % 7
                admin.call("PATCH", f"{path(fleet[1])}/status", {"status": {"unavailableReplicas": count}})
                writes[0] += 1

    noisy = threading.Thread(target=noise)
    noisy.start()
    try:
        connector = connect(scale(*fleet))
        for count in (5, 9, 4, 7, 6):
            with suppress(Unreachable):
                set_to(connector, 8, count)
            wait_until(setting(connector, count, admin, fleet[1]), 30)
    finally:
        stop.set()
        noisy.join()
    assert writes[0] > 20


def setting(
    connector: KubernetesConnector, count: int, admin: Objects, manifest: Manifest
) -> Callable[[], bool]:
    """As the planner does: again at the next tick, until it holds."""

    def holds() -> bool:
        with suppress(Unreachable):
            set_to(connector, 8, count)
        return replicas(admin, manifest) == count

    return holds


def test_an_edit_is_said_with_its_author_as_the_server_keeps_it(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    connector = guard(connect(scale(*fleet)))
    assert set_to(connector, 6, 8) == "sent"
    admin.call("PATCH", path(fleet[1]), {"spec": {"replicas": 3}}, manager="kubectl-edit")

    asyncio.run(connector.state())
    (line,) = connector.notes()
    assert line.startswith("decode: 3, not 8 as set, changed by kubectl-edit at 20")
    assert set_to(connector, 6, 8) == "sent"
    assert replicas(admin, fleet[1]) == 8

    # Through the scale subresource, which this version of the server does not note.
    admin.call("PATCH", f"{path(fleet[1])}/scale", {"spec": {"replicas": 4}}, manager="somebody")
    asyncio.run(connector.state())
    assert connector.notes()[0].startswith("decode: 4, not 8 as set, changed by ")


def test_yielding_leaves_the_edit_of_a_human(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    connector = guard(
        connect(scale(*fleet)), **{"connector.foreign_edits": "yield", "connector.yield_s": 2.0}
    )
    set_to(connector, 6, 8)
    admin.call("PATCH", path(fleet[1]), {"spec": {"replicas": 3}}, manager="kubectl-edit")

    assert set_to(connector, 5, 8) == "yielded"
    assert [replicas(admin, one) for one in fleet] == [5, 3]
    time.sleep(2.1)
    assert set_to(connector, 5, 8) == "sent"
    assert [replicas(admin, one) for one in fleet] == [5, 8]


@pytest.mark.parametrize("kind", ["HorizontalPodAutoscaler", "ScaledObject"])
def test_an_autoscaler_of_the_same_object_is_refused_by_name(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest], kind: str
) -> None:
    scaler = autoscaler("auto", "Deployment", "decode")
    if kind == "ScaledObject":
        scaler |= {"apiVersion": "keda.sh/v1alpha1", "kind": kind}
    where = admin.create(collection(scaler), scaler)
    connector = guard(connect(scale(*fleet)))

    with pytest.raises(Refused, match=f"{kind} llm/auto scales Deployment llm/decode too"):
        set_to(connector, 6, 6)
    assert [replicas(admin, one) for one in fleet] == [8, 8]
    admin.delete(where)
    assert set_to(connector, 6, 6) == "sent"


def test_a_second_headway_on_the_same_objects_is_refused_until_the_first_is_gone(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    first, second = guard(connect(scale(*fleet))), guard(connect(scale(*fleet)))
    assert set_to(first, 6, 6) == "sent"

    with pytest.raises(
        Refused, match=r"another Headway \(headway started on .*\) scales Deployment llm/prefill"
    ):
        set_to(second, 4, 4)
    assert [replicas(admin, one) for one in fleet] == [6, 6]
    leases = "/apis/coordination.k8s.io/v1/namespaces/llm/leases"
    for item in admin.call("GET", leases)["items"]:
        assert item["spec"]["holderIdentity"].startswith("headway started on")
        admin.call(
            "PATCH",
            f"{leases}/{item['metadata']['name']}",
            {"spec": {"renewTime": "2020-01-01T00:00:00.000000Z"}},
        )
    assert set_to(second, 4, 4) == "sent"
    with pytest.raises(Refused, match="another Headway"):
        set_to(first, 6, 6)


def test_without_the_rights_to_see_others_counts_are_set_all_the_same(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    base = "/apis/rbac.authorization.k8s.io/v1/namespaces/llm"
    rules = [
        {"apiGroups": ["apps"], "resources": ["deployments", "deployments/scale"], "verbs": ["get", "patch"]}
    ]
    role = {"metadata": {"name": "old"}, "rules": rules}
    subject = {"kind": "ServiceAccount", "name": "other", "namespace": "llm"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "old"}
    admin.create(f"{base}/roles", role)
    admin.create(
        f"{base}/rolebindings", {"metadata": {"name": "old"}, "roleRef": reference, "subjects": [subject]}
    )
    connector = guard(connect(scale(*fleet), account="other"))

    wait_until(lambda: _sets(connector, 5, 5), 30)

    assert connector.document() == {}


def _notes(connector: DriftAwareConnector) -> list[str]:
    with suppress(Refused, Unreachable):
        asyncio.run(connector.state())
    return connector.notes()


def _sets(connector: DriftAwareConnector, prefill: int, decode: int) -> bool:
    # The server takes a moment to see new rights.
    with suppress(Refused):
        return set_to(connector, prefill, decode) in ("sent", "unchanged")
    return False


def test_a_server_that_is_away_for_a_minute_is_unreachable_and_then_right_again(
    cluster: KubeCluster, admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    connector = guard(connect(scale(*fleet), timeout_s=2.0))
    with Kubelet(admin, [path(one) for one in fleet], settled).working():
        set_to(connector, 6, 6)
        cluster.stop_server(kill=True)
        try:
            end_s, failed = time.monotonic() + AWAY_S, 0
            while time.monotonic() < end_s:
                with pytest.raises(Unreachable):
                    set_to(connector, 7, 9)
                failed += 1
                time.sleep(1.0)
            assert failed > 3
        finally:
            cluster.start_server()
        # Before Headway looks again: what a watch that broke would have missed shows in what stands there.
        admin.call("PATCH", path(fleet[1]), {"spec": {"replicas": 3}}, manager="kubectl-edit")
        wait_until(lambda: _notes(connector) != [], 30)
        (line,) = connector.notes()
        assert line.startswith("decode: 3, not 6 as set, changed by kubectl-edit at 20")
        # The server refuses all but administrators until it has read its roles; the next tick asks again.
        wait_until(lambda: _sets(connector, 7, 9), 30)
        wait_until(lambda: asyncio.run(connector.state())[Role.DECODE].ready == 9, 30)
    assert connector.document() == {}
