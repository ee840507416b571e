"""The examples of a control plane alone: their settings are taken, their parts fit, and rights suffice."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.connectors import connector_problems
from headway.config import HeadwayConfig
from serve_apps.arguments import read_control_arguments
from tests.cluster.serve_files import the_application

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KUBERNETES = {
    each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / "kubernetes" / "attach.yaml").read_text())
}
RAY_SERVICE = yaml.safe_load((EXAMPLES / "kuberay" / "attach.yaml").read_text())
RULES = {
    (group, resource): set(rule["verbs"])
    for rule in KUBERNETES["Role"]["rules"]
    for group in rule["apiGroups"]
    for resource in rule["resources"]
}


@pytest.fixture
def deployed(tmp_path: Path) -> HeadwayConfig:
    """The settings that the Deployment mounts."""
    path = tmp_path / "headway.yaml"
    path.write_text(KUBERNETES["ConfigMap"]["data"]["headway.yaml"])
    return read_control_arguments({"config": str(path)})


def container() -> dict[str, Any]:
    (found,) = KUBERNETES["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_first_file_watches_and_sets_nothing() -> None:
    config = read_control_arguments({"config": str(EXAMPLES / "attach.yaml")})
    assert (config.metrics.source, config.connector.kind, config.planner.dry_run) == (
        "prometheus",
        "virtual",
        True,
    )


def test_the_pods_rights_are_those_that_its_settings_need(deployed: HeadwayConfig) -> None:
    assert connector_problems(deployed) == []
    assert all(engines.selector for engines in deployed.metrics.engines.values())
    assert RULES["", "pods"] == {"list"}
    assert {each.kind for each in deployed.connector.kubernetes.objects.values()} == {"Deployment"}
    assert RULES["apps", "deployments"] >= {"get"}
    assert RULES["apps", "deployments/scale"] == {"get", "patch"}


def test_the_parts_of_the_deployment_fit(deployed: HeadwayConfig) -> None:
    pod = KUBERNETES["Deployment"]["spec"]["template"]
    (subject,) = KUBERNETES["RoleBinding"]["subjects"]
    assert (
        pod["spec"]["serviceAccountName"]
        == subject["name"]
        == KUBERNETES["ServiceAccount"]["metadata"]["name"]
    )
    assert container()["command"] == ["headway", "attach", "/etc/headway/headway.yaml"]
    mounted = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    kept_in = {each["name"]: each.get("value") for each in container()["env"]}["XDG_STATE_HOME"]
    assert mounted == {"config": "/etc/headway", "state": kept_in}
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] == KUBERNETES["ConfigMap"]["metadata"]["name"]
    assert volumes["state"] == {"name": "state", "emptyDir": {}}
    (port,) = container()["ports"]
    (served,) = KUBERNETES["Service"]["spec"]["ports"]
    assert port["containerPort"] == served["port"] == deployed.gateway.port
    assert KUBERNETES["Service"]["spec"]["selector"] == pod["metadata"]["labels"]
    # Probes come from outside of the pod, and carry no key.
    assert not deployed.gateway.loopback
    assert "HEADWAY_API_KEYS" in {each["name"] for each in container()["env"]}


def test_the_ray_service_has_only_the_control_plane() -> None:
    application = the_application(RAY_SERVICE["spec"]["serveConfigV2"])
    config = read_control_arguments(application.args)
    assert application.import_path == "serve_apps.control:build"
    assert [deployment.name for deployment in application.deployments] == ["ControlPlane"]
    assert connector_problems(config) == []
    assert config.planner.dry_run
