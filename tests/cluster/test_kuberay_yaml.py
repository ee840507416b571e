"""examples/kuberay/rayservice.yaml: Serve takes its config, and the object has the shape that KubeRay reads.

The expected fields are written down here by hand from KubeRay's Go types (`ray-operator/apis/ray/v1`), as
far as the example uses them: a misspelt key would be dropped by the API server without a word.
"""

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.connectors.kube_object import DYNAMO_GRAPH, RAY_SERVICE
from actors.connectors.ray_service import (
    DEPLOYMENTS,
    RayServiceApplication,
    applications,
    deployments,
    read_config,
)
from headway.planning import Role
from serve_apps.arguments import read_arguments
from tests.cluster.serve_files import assert_replicas_are_lean, the_application

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "kuberay" / "rayservice.yaml"
REAL = FILE.with_name("rayservice-vllm.yaml")
RBAC = ROOT / "examples" / "kubernetes" / "rbac.yaml"
SERVE_FILE = ROOT / "examples" / "serve" / "disagg.yaml"
ROLES = (Role.PREFILL, Role.DECODE)

FIELDS: Mapping[str, set[str]] = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"serveConfigV2", "rayClusterConfig"},
    "spec.rayClusterConfig": {
        "rayVersion",
        "authOptions",
        "enableInTreeAutoscaling",
        "autoscalerOptions",
        "gcsFaultToleranceOptions",
        "headGroupSpec",
        "workerGroupSpecs",
    },
    "spec.rayClusterConfig.authOptions": {"mode", "secretName"},
    "spec.rayClusterConfig.autoscalerOptions": {"idleTimeoutSeconds", "upscalingMode", "resources"},
    "spec.rayClusterConfig.headGroupSpec": {"rayStartParams", "template", "serviceType"},
    "spec.rayClusterConfig.workerGroupSpecs": {
        "groupName",
        "replicas",
        "minReplicas",
        "maxReplicas",
        "rayStartParams",
        "template",
    },
    "template": {"metadata", "spec"},
    "template.spec": {
        "serviceAccountName",
        "terminationGracePeriodSeconds",
        "containers",
        "initContainers",
        "volumes",
    },
    "container": {"name", "image", "env", "ports", "resources", "volumeMounts"},
}


@pytest.fixture(params=[FILE, REAL], ids=lambda path: path.name)
def service(request: pytest.FixtureRequest) -> dict[str, Any]:
    trees = [tree for tree in yaml.safe_load_all(request.param.read_text()) if tree["kind"] == "RayService"]
    assert len(trees) == 1
    return dict(trees[0])


def application_of(service: dict[str, Any]) -> Any:
    return the_application(service["spec"]["serveConfigV2"])


def templates(service: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = service["spec"]["rayClusterConfig"]
    return [
        cluster["headGroupSpec"]["template"],
        *(group["template"] for group in cluster["workerGroupSpecs"]),
    ]


def containers(service: dict[str, Any]) -> list[dict[str, Any]]:
    return [container for template in templates(service) for container in template["spec"]["containers"]]


def test_serve_takes_the_config(service: dict[str, Any]) -> None:
    application = application_of(service)

    assert application.name == "headway"
    assert application.external_scaler_enabled is True
    counts = {deployment.name: deployment.num_replicas for deployment in application.deployments}
    assert set(counts) >= {"Gateway", *(DEPLOYMENTS[role] for role in ROLES)}
    assert all(isinstance(count, int) for count in counts.values())


def test_it_runs_what_the_serve_example_runs(service: dict[str, Any]) -> None:
    ours, theirs = application_of(service), the_application(SERVE_FILE.read_text())

    assert (ours.import_path, ours.name) == (theirs.import_path, theirs.name)
    assert {item.name for item in ours.deployments} == {item.name for item in theirs.deployments}


def test_the_settings_inside_are_valid_and_streams_outlive_a_scale_down(service: dict[str, Any]) -> None:
    application = application_of(service)
    config = read_arguments(application.args, "disaggregated")
    pods = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]

    assert config.gateway.loopback
    assert pods["terminationGracePeriodSeconds"] > config.gateway.request_timeout_s
    assert_replicas_are_lean(application)


def test_the_connector_can_scale_it(service: dict[str, Any]) -> None:
    application = application_of(service)
    target = RayServiceApplication(ROLES, application.args["model"], application.name)

    spec = target.patch(service, {Role.PREFILL: 3, Role.DECODE: 4})

    assert spec is not None
    changed = deployments(applications(read_config(spec["serveConfigV2"]))["headway"])
    assert {name: item["num_replicas"] for name, item in changed.items()} == {
        "Gateway": 1,
        "Prefill": 3,
        "Decode": 4,
        "ControlPlane": 1,
    }
    before, after = (read_config(each["serveConfigV2"]) for each in (service["spec"], spec))
    for config in (before, after):
        for name in ("Prefill", "Decode"):
            deployments(applications(config)["headway"])[name]["num_replicas"] = 0
    assert after == before


def test_only_fields_that_kuberay_has(service: dict[str, Any]) -> None:
    cluster = service["spec"]["rayClusterConfig"]
    found: list[tuple[str, Mapping[str, Any]]] = [
        ("", service),
        ("spec", service["spec"]),
        ("spec.rayClusterConfig", cluster),
        ("spec.rayClusterConfig.authOptions", cluster["authOptions"]),
        ("spec.rayClusterConfig.autoscalerOptions", cluster["autoscalerOptions"]),
        ("spec.rayClusterConfig.headGroupSpec", cluster["headGroupSpec"]),
        *(("spec.rayClusterConfig.workerGroupSpecs", group) for group in cluster["workerGroupSpecs"]),
        *(("template", template) for template in templates(service)),
        *(("template.spec", template["spec"]) for template in templates(service)),
        *(("container", container) for container in containers(service)),
    ]

    assert {
        path: sorted(set(value) - FIELDS[path]) for path, value in found if set(value) - FIELDS[path]
    } == {}


def test_the_object_is_the_kind_that_the_connector_scales(service: dict[str, Any]) -> None:
    assert service["apiVersion"] == f"{RAY_SERVICE.group}/{RAY_SERVICE.version}"
    assert service["kind"] == RAY_SERVICE.kind
    for group in service["spec"]["rayClusterConfig"]["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_versions_images_and_environment_agree(service: dict[str, Any]) -> None:
    assert service["spec"]["rayClusterConfig"]["rayVersion"] == version("ray")
    assert f"rayproject/ray:{version('ray')}-py311" in (FILE.parent / "Dockerfile").read_text()
    (image,) = {container["image"] for container in containers(service)}
    assert image in {f"headway:{version('headway')}", f"headway-vllm:{version('headway')}"}
    assert image in (FILE.parent / "Dockerfile").read_text()
    head, *workers = (container["env"] for container in containers(service))
    assert all(environment == head for environment in workers)


def test_the_service_account_has_the_rights_that_the_connector_needs(service: dict[str, Any]) -> None:
    account, role, binding = yaml.safe_load_all(RBAC.read_text())

    assert {template["spec"]["serviceAccountName"] for template in templates(service)} == {
        account["metadata"]["name"]
    }
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    rights = {(rule["apiGroups"][0], rule["resources"][0]): set(rule["verbs"]) for rule in role["rules"]}
    for resource in (DYNAMO_GRAPH, RAY_SERVICE):
        assert rights[resource.group, resource.plural] == {"get", "patch"}
