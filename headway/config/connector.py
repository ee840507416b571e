"""Settings of the connector, which carries decisions out: its kind, and the objects that it sets."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from headway.config.base import NameOf, PositiveFloat, RoleName, Settings
from headway.extensions import ExtensionPoint


def _kube_name(name: str) -> str:
    if len(name) > 253 or not re.fullmatch("[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name):
        raise ValueError(f"should be lower-case letters, digits, '-' and '.', not {name[:60]!r}")
    return name


def _http_url(url: str) -> str:
    if not re.match(r"https?://[^/\s]", url):
        raise ValueError(f"should begin with https:// or http:// and a host, not {url!r}")
    return url


KubeName = Annotated[str, AfterValidator(_kube_name)]


class ScaledObjectSettings(Settings):
    """One object of the Kubernetes API with a scale subresource, which is one pool."""

    name: KubeName
    """Of the object."""
    kind: str = "Deployment"
    """Anything with a scale subresource."""
    api_version: str | None = None
    """Such as `apps/v1`; null: that of Deployment, StatefulSet or LeaderWorkerSet, needed for other kinds."""
    namespace: KubeName | None = None
    """Null: `connector.kubernetes.namespace`."""


class KubernetesSettings(Settings):
    """The Kubernetes objects whose replica counts are set."""

    target: Literal["dynamo", "kuberay", "scale"] = "dynamo"
    """A Dynamo graph deployment, a KubeRay RayService, or for each pool one object with a scale
    subresource (docs/targets.md)."""
    namespace: KubeName | None = None
    """Null: POD_NAMESPACE, the service account's namespace, or `default`."""
    name: KubeName | None = None
    """Null: DYN_PARENT_DGD_K8S_NAME for dynamo; needed for kuberay; unused for scale."""
    objects: Mapping[RoleName, ScaledObjectSettings] = {}
    """For scale: the object of each pool."""
    api_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """Address of the API server; null: in-cluster configuration, or else the kubeconfig."""


class RayServeSettings(Settings):
    """The Ray Serve application whose deployments are the pools."""

    application: str | None = None
    """The Ray Serve application that is scaled; null: Headway's own."""
    deployments: Mapping[RoleName, str] = {}
    """Its deployment for each pool, such as `{decode: "LLMServer:llama"}` (docs/targets.md#ray-serve);
    empty: Prefill, Decode, Mixed."""


CONNECTORS = ExtensionPoint(
    "headway.connectors",
    "connector",
    {
        "kubernetes": "actors.connectors.kubernetes:KUBERNETES",
        "ray_serve": "actors.connectors.ray_serve:RAY_SERVE",
        "virtual": "actors.virtual_connector.connector:VIRTUAL",
    },
)
"""All connectors: each name is declared by an `actors.connectors.protocol.ConnectorKind`."""


class ConnectorSettings(Settings):
    """The connector, which carries decisions out."""

    kind: Annotated[str, NameOf(CONNECTORS)] = "ray_serve"
    """What carries decisions out: ray_serve, kubernetes, virtual (an outside system fetches them), or one
    of an installed package (docs/extending.md#a-connector)."""
    options: Mapping[str, Any] = {}
    """Settings of a connector from another package, which checks them."""
    scaling_timeout_s: PositiveFloat = 1800.0
    """Virtual: seconds after which an unacknowledged decision no longer blocks the next."""
    report_max_age_s: PositiveFloat = 300.0
    """Virtual: seconds after which reported replica counts are no longer known
    (docs/targets.md#outside-systems)."""
    timeout_s: PositiveFloat = 10.0
    """Seconds that one call of the other side may take."""
    foreign_edits: Literal["overrule", "yield"] = "overrule"
    """What becomes of a count that others have changed (docs/targets.md#edits-by-others): set again at
    the next decision (overrule), or left alone (yield); `headway set` changes it."""
    yield_s: PositiveFloat = 1800.0
    """Seconds without another change of others after which a count that was left alone is set again."""
    ray_serve: RayServeSettings = RayServeSettings()
    kubernetes: KubernetesSettings = KubernetesSettings()
