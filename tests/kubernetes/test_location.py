"""Which object is scaled: settings first, then what the surroundings tell."""

import asyncio
from pathlib import Path

import pytest

from actors.connectors.kube_object import locate
from actors.connectors.kubernetes import KubernetesConnector
from actors.connectors.protocol import Refused
from headway.config import HeadwayConfig
from headway.config.live import KubernetesSettings


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
