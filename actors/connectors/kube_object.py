"""Where the objects of a Kubernetes cluster are that are scaled.

A Dynamo operator gives each container of a graph the graph's name in `DYN_PARENT_DGD_K8S_NAME`, so a control
plane that runs as one of the graph's services needs no setting. The namespace is, in this order: the setting,
`POD_NAMESPACE` (downward API), the service account's own file, `default`.

Scaled objects. Of the kinds in `SCALABLE` the resource is known here, and `spec.replicas` and
`status.replicas` are what their scale subresource shows; of any other kind `api_version` is needed, and its
resource is discovered.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from actors.connectors.kube_api import KubeApi, Location, Resource
from actors.connectors.protocol import Refused
from headway.config.live import KubernetesSettings, ScaledObjectSettings

PARENT_GRAPH = "DYN_PARENT_DGD_K8S_NAME"
POD_NAMESPACE = "POD_NAMESPACE"
SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

DYNAMO_GRAPH = Resource(
    group="nvidia.com", version="v1alpha1", plural="dynamographdeployments", kind="DynamoGraphDeployment"
)
DYNAMO_ADAPTER = Resource(
    group="nvidia.com",
    version="v1alpha1",
    plural="dynamographdeploymentscalingadapters",
    kind="DynamoGraphDeploymentScalingAdapter",
)
RAY_SERVICE = Resource(group="ray.io", version="v1", plural="rayservices", kind="RayService")
SCALABLE: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in (
        Resource(group="apps", version="v1", plural="deployments", kind="Deployment"),
        Resource(group="apps", version="v1", plural="statefulsets", kind="StatefulSet"),
        Resource(
            group="leaderworkerset.x-k8s.io", version="v1", plural="leaderworkersets", kind="LeaderWorkerSet"
        ),
    )
}


def locate(
    settings: KubernetesSettings,
    environment: Mapping[str, str],
    namespace_file: Path = SERVICE_ACCOUNT_NAMESPACE,
) -> Location:
    """The one object of dynamo and kuberay; Refused if neither settings nor surroundings give its name."""
    namespace = namespace_of(settings, environment, namespace_file)
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


def namespace_of(
    settings: KubernetesSettings,
    environment: Mapping[str, str],
    namespace_file: Path = SERVICE_ACCOUNT_NAMESPACE,
) -> str:
    """The namespace of objects that name none of their own."""
    namespace = settings.namespace or environment.get(POD_NAMESPACE)
    if not namespace:
        with suppress(OSError):
            namespace = namespace_file.read_text(encoding="utf-8").strip()
    return namespace or "default"


def group_and_version(named: ScaledObjectSettings) -> tuple[str, str]:
    """The API group and version of a scaled object; Refused if neither it nor its kind gives them."""
    known = SCALABLE.get(named.kind)
    if named.api_version is None and known is not None:
        return known.group, known.version
    group, slash, version = (named.api_version or "").partition("/")
    if slash and group and version:
        return group, version
    if named.api_version is None:
        raise Refused(f"api_version: needed for kind {named.kind}; known without are {', '.join(SCALABLE)}")
    raise Refused(f"api_version: should be GROUP/VERSION such as apps/v1, not {named.api_version!r}")


async def find(
    named: ScaledObjectSettings, namespace: str, api: KubeApi, timeout_s: float
) -> tuple[Location, bool]:
    """The scaled object, and whether its counts must be read through its scale subresource."""
    group, version = group_and_version(named)
    known = SCALABLE.get(named.kind)
    if known is not None and (known.group, known.version) == (group, version):
        resource, indirect = known, False
    else:
        resource, indirect = await api.resource_of(group, version, named.kind, timeout_s), True
    return Location(resource=resource, namespace=named.namespace or namespace, name=named.name), indirect
