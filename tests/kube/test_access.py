"""Ways in which a real API server does not let Headway in, each told in one line with what is needed."""

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.connectors.kubernetes import KubernetesConnector
from actors.connectors.protocol import Refused
from headway.planning import Role
from tests.kube.cluster import ROOT, KubeCluster, Objects, wait_until
from tests.kube.conftest import Connect
from tests.kube.resources import Manifest, collection, deployment, path
from tests.kube.test_others import guard, set_to
from tests.kube.test_targets import replicas, scale

ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/llm"
KUBECONFIG = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"


def refusal(connector: KubernetesConnector) -> str:
    ready = asyncio.run(connector.ready())
    assert not ready.ok
    assert "\n" not in ready.reason
    return ready.reason


@pytest.fixture
def kubeconfig(cluster: KubeCluster, tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(Path(cluster.kubeconfig("headway")).read_text())
    return found


def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, document: object) -> None:
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    monkeypatch.setattr(KUBECONFIG, str(tmp_path / "config"))


def test_a_token_that_has_expired(
    connect: Connect,
    fleet: tuple[Manifest, Manifest],
    kubeconfig: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    connector = connect(scale(*fleet))
    kubeconfig["users"][0]["user"]["token"] = "expired"
    write(monkeypatch, tmp_path, kubeconfig)

    said = refusal(connector)

    assert "401 Unauthorized; needed: a valid token, which is the service account's" in said
    assert "Role" not in said


@pytest.mark.parametrize("command", ["false", "no-such-plugin"])
def test_a_plugin_that_gives_no_token(
    connect: Connect,
    fleet: tuple[Manifest, Manifest],
    kubeconfig: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    connector = connect(scale(*fleet))
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    kubeconfig["users"][0]["user"] = {"exec": plugin}
    write(monkeypatch, tmp_path, kubeconfig)

    assert 'User "system:anonymous"' in (said := refusal(connector))
    assert "needed: a valid token" in said


def test_a_certificate_of_an_authority_of_its_own(
    cluster: KubeCluster,
    fleet: tuple[Manifest, Manifest],
    connect: Connect,
    kubeconfig: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = kubeconfig["clusters"][0]["cluster"]
    # With the line break that a file of a token often ends with.
    monkeypatch.setenv("HEADWAY_KUBERNETES_TOKEN", "headway\n")
    settings = {**scale(*fleet), "api_url": found["server"]}

    said = refusal(connect(settings))

    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert "or from the file that SSL_CERT_FILE names" in said
    monkeypatch.setenv("SSL_CERT_FILE", found["certificate-authority"])
    assert asyncio.run(connect(settings).ready()).ok
    plain = {**settings, "api_url": found["server"].replace("https:", "http:")}
    assert "400 Bad Request: Client sent an HTTP request to an HTTPS server" in refusal(connect(plain))


def rules() -> list[dict[str, Any]]:
    """Those of the example for Deployments."""
    manifests = yaml.safe_load_all((ROOT / "examples/kubernetes/rbac.yaml").read_text())
    (role,) = [one for one in manifests if one["kind"] == "Role"]
    return [
        one for one in role["rules"] if one["apiGroups"][0] in ("apps", "coordination.k8s.io", "autoscaling")
    ]


RIGHTS = [(rule, verb) for rule in rules() for verb in rule["verbs"]]
NEEDED = {("deployments", "get"), ("deployments/scale", "patch")}
"""Without the others Headway scales all the same."""


@pytest.fixture
def granted(admin: Objects) -> Callable[[list[dict[str, Any]]], None]:
    """Gives the account `other` these rules."""
    subject = {"kind": "ServiceAccount", "name": "other", "namespace": "llm"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"}

    def grant(rules: list[dict[str, Any]]) -> None:
        admin.create(f"{ROLES}/roles", {"metadata": {"name": "some"}, "rules": rules})
        binding = {"metadata": {"name": "some"}, "roleRef": reference, "subjects": [subject]}
        admin.create(f"{ROLES}/rolebindings", binding)

    return grant


@pytest.mark.parametrize(
    ("rule", "verb"), RIGHTS, ids=[f"{verb} {rule['resources'][0]}" for rule, verb in RIGHTS]
)
def test_without_one_right_it_is_named_or_not_needed(
    admin: Objects,
    connect: Connect,
    fleet: tuple[Manifest, Manifest],
    granted: Callable[[list[dict[str, Any]]], None],
    rule: dict[str, Any],
    verb: str,
) -> None:
    left = copy.deepcopy(rules())
    left[rules().index(rule)]["verbs"].remove(verb)
    granted([one for one in left if one["verbs"]])
    connector = guard(connect(scale(*fleet), account="other"))
    resource = rule["resources"][0]
    said: list[str] = []

    def takes_effect() -> bool:
        # The server takes a moment to see new rights: until then the first one is missing.
        try:
            return set_to(connector, 5, 6) == "sent"
        except Refused as error:
            said[:] = [str(error)]
            return f'resources: ["{resource}"], verbs: ["{verb}"] (examples' in said[0]

    wait_until(takes_effect, 30)

    if (resource, verb) in NEEDED:
        assert 'needed: a Role in namespace llm with the rule apiGroups: ["apps"]' in said[0]
        assert [replicas(admin, one) for one in fleet] == [8, 8]
    else:
        assert [replicas(admin, one) for one in fleet] == [5, 6]
        assert connector.document() == {}


def test_objects_of_one_name_in_two_namespaces(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    admin.apply("/api/v1/namespaces", {"metadata": {"name": "other"}})
    same = deployment("prefill", 5)
    admin.create(collection(same, "other"), same)
    settings = scale(fleet[0], same, namespace="other")

    assert "a Role in namespace other with the rule" in refusal(connect(settings))
    connector = guard(connect(settings, account="admin"))
    assert {role: pool.desired for role, pool in asyncio.run(connector.state()).items()} == {
        Role.PREFILL: 8,
        Role.DECODE: 5,
    }
    assert set_to(connector, 7, 4) == "sent"
    assert replicas(admin, fleet[0]) == 7
    assert admin.call("GET", f"{collection(same, 'other')}/prefill")["spec"]["replicas"] == 4
    admin.delete("/apis/coordination.k8s.io/v1/namespaces/other/leases/headway-deployment-prefill")


def test_a_renamed_deployment_is_told_and_scaled_again_under_its_old_name(
    admin: Objects, connect: Connect, fleet: tuple[Manifest, Manifest]
) -> None:
    connector = guard(connect(scale(*fleet)))
    assert set_to(connector, 6, 6) == "sent"
    admin.delete(path(fleet[1]))

    with pytest.raises(Refused, match=r"deployments\.apps decode in namespace llm: 404"):
        set_to(connector, 7, 7)
    assert replicas(admin, fleet[0]) == 6
    again = deployment("decode", 2)
    admin.create(collection(again), again)
    assert set_to(connector, 7, 7) == "sent"
    assert [replicas(admin, one) for one in fleet] == [7, 7]
