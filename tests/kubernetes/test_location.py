"""Where the object and the API server are: settings first, then the surroundings."""

import asyncio
from pathlib import Path

import pytest
import yaml

from actors.connectors.kube_api import configuration
from actors.connectors.kube_object import locate
from actors.connectors.kubernetes import KubernetesConnector
from actors.connectors.protocol import Refused
from headway.config import ConfigError, HeadwayConfig, load_config
from headway.config.live import KubernetesSettings
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.manifests import MODEL, graph


@pytest.mark.parametrize(
    ("setting", "environment", "file", "namespace"),
    [
        ("mine", {"POD_NAMESPACE": "pod"}, "account", "mine"),
        (None, {"POD_NAMESPACE": "pod"}, "account", "pod"),
        (None, {"POD_NAMESPACE": ""}, "account\n", "account"),
        (None, {}, None, "default"),
    ],
)
def test_namespace(
    tmp_path: Path, setting: str | None, environment: dict[str, str], file: str | None, namespace: str
) -> None:
    path = tmp_path / "namespace"
    if file is not None:
        path.write_text(file)

    found = locate(KubernetesSettings(namespace=setting, name="llm"), environment, path)

    assert found.namespace == namespace


def test_the_parent_graph_comes_from_the_setting_or_from_the_operator() -> None:
    environment = {"DYN_PARENT_DGD_K8S_NAME": "parent"}

    assert locate(KubernetesSettings(), environment).name == "parent"
    assert locate(KubernetesSettings(name="own"), environment).name == "own"
    assert str(locate(KubernetesSettings(), environment)) == "DynamoGraphDeployment default/parent"
    with pytest.raises(Refused, match="DYN_PARENT_DGD_K8S_NAME"):
        locate(KubernetesSettings(), {})


def test_a_ray_service_needs_its_name() -> None:
    environment = {"DYN_PARENT_DGD_K8S_NAME": "parent"}

    assert (
        str(locate(KubernetesSettings(target="kuberay", name="llm"), environment)) == "RayService default/llm"
    )
    with pytest.raises(Refused, match=r"connector\.kubernetes\.name"):
        locate(KubernetesSettings(target="kuberay"), environment)


def test_a_connector_without_a_name_or_a_cluster_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DYN_PARENT_DGD_K8S_NAME", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    nameless = asyncio.run(KubernetesConnector(HeadwayConfig()).ready())
    monkeypatch.setenv("DYN_PARENT_DGD_K8S_NAME", "llm")
    nowhere = asyncio.run(KubernetesConnector(HeadwayConfig()).ready())

    assert not nameless.ok
    assert "connector.kubernetes.name" in nameless.reason
    assert not nowhere.ok
    assert "kubeconfig" in nowhere.reason


@pytest.mark.parametrize("text", ["{{{", "- 1", "clusters: 3", "users: [{}]"])
def test_a_kubeconfig_of_another_shape_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config")
    )

    with pytest.raises(Refused, match=r"^neither an in-cluster configuration nor a usable kubeconfig.*"):
        configuration(None, None)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "../pods", "should be lower-case letters, digits, '-' and '.', not '../pods'"),
        ("name", "", "should be lower-case letters"),
        ("name", "x" * 254, "should be lower-case letters"),
        ("namespace", "prod/llm", "should be lower-case letters"),
        ("api_url", "kube.example", "should begin with https:// or http:// and a host, not 'kube.example'"),
        ("api_url", "https://", "should begin with https:// or http:// and a host"),
    ],
)
def test_what_no_server_could_have_is_refused_by_its_key(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"connector\.kubernetes\.{key}: {said}"):
        load_config(None, {f"connector.kubernetes.{key}": value})


SETTINGS = {"connector": {"kubernetes": {"namespace": "prod", "name": "llm"}}, "model": MODEL}


def test_the_kubeconfig_is_used_outside_a_cluster(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    api.put(graph(), "dynamographdeployments")
    api.token = "from-kubeconfig"
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "double", "user": "me"}}],
        "clusters": [{"name": "double", "cluster": {"server": api.url}}],
        "users": [{"name": "me", "user": {"token": api.token}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(path))

    ready = asyncio.run(KubernetesConnector(HeadwayConfig.model_validate(SETTINGS)).ready())

    assert ready.ok, ready.reason
    assert api.requests[0].authorization == "Bearer from-kubeconfig"


def test_the_service_account_is_used_inside_a_cluster(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("from-service-account")
    (tmp_path / "ca.crt").write_text("certificate")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    loader = "kubernetes.config.incluster_config"
    monkeypatch.setattr(f"{loader}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{loader}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))

    found = configuration(None, None)

    assert found.host == "https://10.0.0.1:443"
    assert found.auth_settings()["BearerToken"]["value"].lower() == "bearer from-service-account"
    assert found.ssl_ca_cert == str(tmp_path / "ca.crt")
