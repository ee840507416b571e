"""docs/start/kubernetes.md with the real kubectl, as far as an API server without nodes goes."""

import shutil
from pathlib import Path

import pytest

from tests.kube.cluster import KubeCluster, Objects
from tests.start.printed import KUBERNETES, commands
from tests.start.terminal import Terminal, below

NOT_HERE = ("docker build", "kubectl port-forward", "export HEADWAY_URL", "headway ")
"""An image needs a daemon, a port a pod; test_machines.py runs the verbs."""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_manifest_and_the_key(cluster: KubeCluster, admin: Objects, tmp_path: Path) -> None:
    lines = [*commands(KUBERNETES, 1), *commands(KUBERNETES, 2)]
    shown = [line for line in lines if not line.startswith(NOT_HERE)]
    assert [line.split()[0] for line in shown] == ["KEY=$(openssl", "kubectl", "kubectl"]
    with below(tmp_path) as folder, Terminal(folder, KUBECONFIG=cluster.kubeconfig("admin")) as terminal:
        try:
            for line in shown:
                terminal.type(line)
            secret = admin.call("GET", "/api/v1/namespaces/llm/secrets/headway-api-keys")
            assert secret["data"]["keys"]
            made = admin.call("GET", "/apis/apps/v1/namespaces/llm/deployments/headway")
            assert made["spec"]["replicas"] == 1
        finally:
            terminal.type(
                shown[1].partition(" --from-literal")[0].replace("create secret generic", "delete secret")
            )
            terminal.type(shown[2].replace("apply", "delete"))
