"""Settings that only live operation reads: where metrics come from, the connector, the gateway."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, model_validator

from headway.config.base import NameOf, NonNegativeInt, PositiveFloat, PositiveInt, Settings
from headway.extensions import ExtensionPoint


class MetricsSettings(Settings):
    """Where observations come from."""

    source: Literal["gateway", "prometheus"] = "gateway"
    url: str | None = None
    """Address of Prometheus (needed with `source: prometheus`), or of the gateway; null: our own gateway."""
    preset: Literal["headway", "dynamo", "vllm", "sglang"] = "headway"
    """Whose metric names to query."""
    scrape_interval_s: PositiveFloat = 1.0
    """Seconds between two reads of the gateway's metrics."""
    timeout_s: PositiveFloat = 5.0
    """Seconds that one query or scrape may take."""
    stale_after_s: PositiveFloat = 30.0
    """Age in seconds from which the newest sample no longer counts."""

    @model_validator(mode="after")
    def _prometheus_has_an_address(self) -> "MetricsSettings":
        if self.source == "prometheus" and not self.url:
            raise ValueError("source 'prometheus' needs a url")
        return self


class KubernetesSettings(Settings):
    """The Kubernetes object whose replica counts are set."""

    target: Literal["dynamo", "kuberay"] = "dynamo"
    """A Dynamo graph deployment, or a KubeRay RayService."""
    namespace: str | None = None
    """Null: POD_NAMESPACE, the service account's namespace, or `default`."""
    name: str | None = None
    """Null: DYN_PARENT_DGD_K8S_NAME for dynamo; needed for kuberay."""
    api_url: str | None = None
    """Address of the API server; null: in-cluster configuration, or else the kubeconfig."""


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
    options: Mapping[str, Any] = {}
    """Settings of a connector from another package, which checks them."""
    scaling_timeout_s: PositiveFloat = 1800.0
    """Virtual: seconds after which an unacknowledged decision no longer blocks the next."""
    timeout_s: PositiveFloat = 10.0
    """Seconds that one call of the other side may take."""
    kubernetes: KubernetesSettings = KubernetesSettings()


class GatewaySettings(Settings):
    """Where the OpenAI-compatible gateway listens, and whom and how much it lets in."""

    host: str = "127.0.0.1"
    port: NonNegativeInt = Field(default=8000, le=65_535)
    """0: any free port."""
    api_keys: tuple[SecretStr, ...] = ()
    """Keys that clients send as `Authorization: Bearer KEY`; HEADWAY_API_KEYS (commas) adds to them."""
    allow_anonymous: bool = False
    """Without keys, listen beyond loopback all the same."""
    max_requests: PositiveInt = 1024
    """Requests in flight; beyond that they are shed with status 429."""
    retry_after_s: PositiveFloat = 1.0
    """What a shed client is told to wait."""
    request_timeout_s: PositiveFloat = 600.0
    """Seconds that one request may take; then it ends with status 504."""
    tokenizer: str | None = None
    """A tokenizer.json, or a directory with one; null: text is estimated. vLLM: the model's own, always."""
    default_max_tokens: PositiveInt = 256
    """Output tokens of a request that does not say."""

    @property
    def loopback(self) -> bool:
        """True when only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False
