"""docs/start/kubernetes.md with the real kubectl, as far as an API server without nodes goes."""

import shutil
from pathlib import Path

import pytest

from tests.kube.cluster import NAMESPACE, KubeCluster
from tests.start.printed import KUBERNETES, commands
from tests.start.terminal import Terminal, below

NOT_HERE = ("docker build", "kubectl port-forward", "export HEADWAY_URL", "headway ")
"""An image needs a daemon, a port a pod; test_machines.py runs the verbs."""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_manifest_and_the_key(tmp_path: Path) -> None:
    """On a server of its own: the manifest's account and role have the names of the others' tests."""
    lines = [*commands(KUBERNETES, 1), *commands(KUBERNETES, 2)]
    shown = [line for line in lines if not line.startswith(NOT_HERE)]
    assert [line.split()[0] for line in shown] == ["KEY=$(openssl", "kubectl", "kubectl"]
    (tmp_path / "server").mkdir()
    cluster = KubeCluster(tmp_path / "server")
    try:
        cluster.start()
        admin = cluster.objects()
        admin.apply("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        with below(tmp_path) as folder, Terminal(folder, KUBECONFIG=cluster.kubeconfig("admin")) as terminal:
            for line in shown:
                terminal.type(line)
        secret = admin.call("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/headway-api-keys")
        assert secret["data"]["keys"]
        made = admin.call("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/headway")
        assert made["spec"]["replicas"] == 1
        admin.close()
    finally:
        cluster.stop()
