"""Resources and objects of the tests, in the shape that their operators give them."""

from collections.abc import Mapping
from typing import Any

from tests.kube.cluster import NAMESPACE

Manifest = dict[str, Any]

PLURALS = {
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ServiceAccount": "serviceaccounts",
    "Deployment": "deployments",
    "StatefulSet": "statefulsets",
    "LeaderWorkerSet": "leaderworkersets",
    "DynamoGraphDeployment": "dynamographdeployments",
    "DynamoGraphDeploymentScalingAdapter": "dynamographdeploymentscalingadapters",
    "RayService": "rayservices",
    "EngineFleet": "enginefleets",
    "HorizontalPodAutoscaler": "horizontalpodautoscalers",
    "ScaledObject": "scaledobjects",
}


def collection(manifest: Mapping[str, Any], namespace: str = NAMESPACE) -> str:
    """The path of the collection that an object belongs to."""
    api = manifest["apiVersion"]
    base = f"/apis/{api}" if "/" in api else f"/api/{api}"
    return f"{base}/namespaces/{namespace}/{PLURALS[manifest['kind']]}"


def path(manifest: Mapping[str, Any]) -> str:
    """The path of an object."""
    return f"{collection(manifest)}/{manifest['metadata']['name']}"


def _crd(group: str, version: str, kind: str, spec_path: str = "", status_path: str = "") -> Manifest:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    subresources: Manifest = {"status": {}}
    if spec_path:
        subresources["scale"] = {"specReplicasPath": spec_path, "statusReplicasPath": status_path}
    plural = PLURALS[kind]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups below *.k8s.io are protected on a real server.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": group,
            "names": {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": subresources,
                }
            ],
        },
    }


USUAL = (".spec.replicas", ".status.replicas")
CRDS = (
    _crd("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", *USUAL),
    _crd("nvidia.com", "v1alpha1", "DynamoGraphDeployment"),
    _crd("nvidia.com", "v1alpha1", "DynamoGraphDeploymentScalingAdapter", *USUAL),
    _crd("ray.io", "v1", "RayService"),
    _crd("keda.sh", "v1alpha1", "ScaledObject"),
    _crd("acme.example", "v2", "EngineFleet", ".spec.engines.count", ".status.engines.live"),
)


def deployment(name: str, replicas: int, kind: str = "Deployment") -> Manifest:
    """A Deployment or StatefulSet of engines."""
    labels = {"app": name}
    container = {"name": "engine", "image": "engine:1", "args": ["serve", "m"]}
    spec: Manifest = {
        "replicas": replicas,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def leader_worker_set(name: str, replicas: int) -> Manifest:
    """A LeaderWorkerSet whose groups have a leader and a worker."""
    worker = {"spec": {"containers": [{"name": "engine", "image": "engine:1", "args": ["--model", "m"]}]}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 2, "workerTemplate": worker}},
    }


def autoscaler(name: str, kind: str, target: str) -> Manifest:
    """A HorizontalPodAutoscaler of one object."""
    reference = {"apiVersion": "apps/v1", "kind": kind, "name": target}
    return {
        "apiVersion": "autoscaling/v1",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {"scaleTargetRef": reference, "maxReplicas": 9},
    }
