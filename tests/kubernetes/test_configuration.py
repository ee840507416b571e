"""Where the API server is: inside a cluster, or as the kubeconfig says."""

import asyncio
from pathlib import Path

import pytest
import yaml

from actors.connectors.kube_object import _configuration
from actors.connectors.kubernetes import KubernetesConnector
from headway.config import HeadwayConfig
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.manifests import MODEL, graph

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

    configuration = _configuration(None, None)

    assert configuration.host == "https://10.0.0.1:443"
    assert configuration.auth_settings()["BearerToken"]["value"].lower() == "bearer from-service-account"
    assert configuration.ssl_ca_cert == str(tmp_path / "ca.crt")
