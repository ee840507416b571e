"""Which object the connector scales: its kind, namespace and name.

A Dynamo operator tells each container of a graph the graph's name in `DYN_PARENT_DGD_K8S_NAME`, so that a
control plane that runs as one of the graph's services needs no setting. The namespace is, in this order:
the setting, `POD_NAMESPACE` (downward API), the service account's own file, `default`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from actors.connectors.protocol import Refused
from headway.config.live import KubernetesSettings

PARENT_GRAPH = "DYN_PARENT_DGD_K8S_NAME"
POD_NAMESPACE = "POD_NAMESPACE"
SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A custom resource of the Kubernetes API."""

    group: str
    version: str
    plural: str
    kind: str

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """One object: its resource, namespace and name."""

    resource: Resource
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource.kind} {self.namespace}/{self.name}"


DYNAMO_GRAPH = Resource(
    group="nvidia.com", version="v1alpha1", plural="dynamographdeployments", kind="DynamoGraphDeployment"
)
RAY_SERVICE = Resource(group="ray.io", version="v1", plural="rayservices", kind="RayService")


def locate(
    settings: KubernetesSettings,
    environment: Mapping[str, str],
    namespace_file: Path = SERVICE_ACCOUNT_NAMESPACE,
) -> Location:
    """The object that the settings and the surroundings name; Refused if nothing gives its name."""
    namespace = (
        settings.namespace or environment.get(POD_NAMESPACE) or _from_file(namespace_file) or "default"
    )
    if settings.target == "kuberay":
        if not settings.name:
            raise Refused("connector.kubernetes.name: needed with target kuberay, the name of the RayService")
        return Location(resource=RAY_SERVICE, namespace=namespace, name=settings.name)
    name = settings.name or environment.get(PARENT_GRAPH)
    if not name:
        raise Refused(
            f"no graph deployment is named: set connector.kubernetes.name, or {PARENT_GRAPH} as the "
            "Dynamo operator does"
        )
    return Location(resource=DYNAMO_GRAPH, namespace=namespace, name=name)


def _from_file(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
