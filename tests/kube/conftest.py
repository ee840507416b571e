"""One API server for all tests of this folder, and a namespace that each test finds empty."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.connectors.kubernetes import KubernetesConnector
from headway.config import HeadwayConfig
from tests.kube.cluster import NAMESPACE, ROOT, KubeCluster, Objects, missing, settled
from tests.kube.resources import CRDS, Manifest, collection, deployment, path

Connect = Callable[..., KubernetesConnector]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # A server that is killed in the middle of a TLS handshake leaves urllib3 with an open socket.
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            if reason := missing():
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeCluster]:
    made = KubeCluster(tmp_path_factory.mktemp("kube"))
    try:
        made.start()
        admin = made.objects()
        admin.apply("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        admin.apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", *CRDS)
        for manifest in yaml.safe_load_all((ROOT / "examples/kubernetes/rbac.yaml").read_text()):
            for subject in manifest.get("subjects", ()):
                subject["namespace"] = NAMESPACE
            admin.apply(collection(manifest, NAMESPACE), manifest)
        yield made
    finally:
        made.stop()


@pytest.fixture
def admin(cluster: KubeCluster) -> Iterator[Objects]:
    """The administrator; what the test leaves is deleted."""
    objects = cluster.objects()
    yield objects
    for made in objects.made:
        objects.delete(made)
    for lease in objects.call("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases")["items"]:
        objects.delete(
            f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{lease['metadata']['name']}"
        )


@pytest.fixture
def fleet(admin: Objects) -> tuple[Manifest, Manifest]:
    made = deployment("prefill", 8), deployment("decode", 8)
    for manifest in made:
        admin.create(collection(manifest), manifest)
        admin.call("PATCH", f"{path(manifest)}/status", {"status": settled(manifest)})
    return made


@pytest.fixture
def connect(cluster: KubeCluster, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes a connector that finds the server by a kubeconfig, as one of the accounts."""

    def make(
        kubernetes: Mapping[str, Any], account: str = "headway", timeout_s: float = 10.0, **tree: Any
    ) -> KubernetesConnector:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(location, cluster.kubeconfig(account))
        connector = {
            "kind": "kubernetes",
            "timeout_s": timeout_s,
            "kubernetes": {"namespace": NAMESPACE, **kubernetes},
        }
        return KubernetesConnector(
            HeadwayConfig.model_validate({"model": "m", "connector": connector, **tree})
        )

    return make
