"""examples/kubernetes/attach.yaml: a real API server takes it, and its account has its rights alone."""

from typing import Any

import yaml

from tests.kube.cluster import ROOT, Objects
from tests.kube.resources import PLURALS

NAMESPACE = "attached"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:headway"
ALL_PLURALS = {**PLURALS, "ConfigMap": "configmaps", "Service": "services"}


def collection(manifest: dict[str, Any]) -> str:
    api, kind = manifest["apiVersion"], manifest["kind"]
    base = f"/apis/{api}" if "/" in api else f"/api/{api}"
    return f"{base}/namespaces/{NAMESPACE}/{ALL_PLURALS[kind]}"


def allowed(admin: Objects, verb: str, group: str, resource: str) -> bool:
    resource, _, subresource = resource.partition("/")
    attributes = {"namespace": NAMESPACE, "verb": verb, "group": group, "resource": resource}
    spec = {"user": ACCOUNT, "resourceAttributes": {**attributes, "subresource": subresource}}
    answer = admin.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec})
    return bool(answer["status"]["allowed"])


def test_it_is_taken_as_it_stands_and_gives_no_more_rights_than_it_says(admin: Objects) -> None:
    text = (ROOT / "examples/kubernetes/attach.yaml").read_text(encoding="utf-8")
    admin.apply("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for manifest in yaml.safe_load_all(text):
        admin.call("POST", f"{collection(manifest)}?fieldValidation=Strict", manifest)

    assert allowed(admin, "list", "", "pods")
    assert allowed(admin, "get", "apps", "deployments")
    assert allowed(admin, "patch", "apps", "deployments/scale")
    assert not allowed(admin, "patch", "apps", "deployments")
    assert not allowed(admin, "get", "", "secrets")
