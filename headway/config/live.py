"""Settings of live operation: gateway, where observations come from, and what carries decisions out.

The gateway listens, lets in by keys, roles and TLS, and traces requests. Observations come from it, from a
Prometheus, or from the engines themselves. A connector is a kind, and the objects that it sets.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from headway.config.base import (
    NameOf,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RoleName,
    Settings,
)
from headway.config.presets import ENGINE_PRESETS, PresetName, PresetSettings
from headway.extensions import ExtensionPoint


class Right(StrEnum):
    """A role of an API key: the requests that it is good for."""

    INFER = "infer"
    """Output, and the list of models."""
    OBSERVE = "observe"
    """Status, decisions, the profile, the requests one by one."""
    OPERATE = "operate"
    """Settings of the running planner."""
    SCALE = "scale"
    """Answers to decisions of the virtual connector."""


class TlsSettings(Settings):
    """The certificate that the gateway shows; both files are read again when they change."""

    cert: str
    """A PEM file: the certificate, and those between it and its authority. Read again when it changes."""
    key: str
    """A PEM file: its private key, without a password. Read again when it changes."""


class GatewaySettings(Settings):
    """Where the OpenAI-compatible gateway listens, and whom and how much it lets in."""

    host: str = "127.0.0.1"
    """Where the gateway listens, or with `headway attach` the control plane."""
    hosts: tuple[str, ...] = ()
    """Further names under which clients without keys may send control requests (docs/howto/secure.md)."""
    port: NonNegativeInt = Field(default=8000, le=65_535)
    """0: any free port; for one that is taken, the next free one. Several gateways need one that is named."""
    replicas: PositiveInt = Field(default=1, le=64)
    """Gateways, each a process; those of one node share the port (docs/hosts.md#several-gateways)."""
    max_per_node: PositiveInt | None = Field(default=None, le=64)
    """Gateways on one node at most, so that they spread; null: where Ray puts them."""
    api_keys: tuple[SecretStr, ...] = ()
    """Keys that clients send as `Authorization: Bearer KEY`; HEADWAY_API_KEYS (commas) adds to them. They
    infer and observe.
    """
    keys_file: str | None = None
    """Keys with roles (docs/reference/http.md#keys-and-roles): a YAML list of `name`, `key` or `sha256`,
    `roles`; read again when it changes."""
    tls: TlsSettings | None = None
    """HTTPS instead of HTTP."""
    allow_anonymous: bool = False
    """Without keys, listen beyond loopback all the same."""
    max_requests: PositiveInt = 1024
    """Requests in flight at each gateway; beyond that they are shed with status 429."""
    retry_budget: NonNegativeFloat | None = None
    """While requests are turned away: repeats that a key may send for each of its first attempts of the last
    minute, and 10 in any case (docs/reference/http.md#trying-again); null: any number."""
    request_timeout_s: PositiveFloat = 600.0
    """Seconds that one request may take; then it ends with status 504."""
    start_wait_s: NonNegativeFloat = 300.0
    """Seconds that a request waits for the first replica of a pool that may be empty. Then, or with 0 at
    once, it ends with status 503 and `Retry-After`, while the replica goes on starting."""
    heartbeat_s: PositiveFloat | None = None
    """Seconds of silence after which a stream gets a comment, for proxies that hang up on silence; null:
    never. A stream that began with one has status 200, whatever follows."""
    tokenizer: str | None = None
    """A tokenizer.json, or a directory with one; null: text is estimated. vLLM: the model's own, always."""
    default_max_tokens: PositiveInt = 256
    """Output tokens of a request that does not say."""

    kept_requests: PositiveInt = Field(default=10_000, le=10_000_000)
    """Records of ended requests that a gateway keeps, for `headway request`: about 2 KB each."""
    request_log: Literal["none", "problems", "all"] = "problems"
    """Requests that get a line in the gateway's log: those that failed, were shed or missed their SLO; all;
    or none."""

    @model_validator(mode="after")
    def _is_found(self) -> "GatewaySettings":
        if self.replicas > 1 and not self.port:
            raise ValueError("several replicas need a port")
        return self

    @property
    def loopback(self) -> bool:
        """True when only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


HTTP_PATH = "/v1/traces"


class TracingSettings(Settings):
    """One trace of a request through gateway, router and engines, for any OpenTelemetry collector
    (docs/howto/requests.md#traces)."""

    endpoint: str | None = None
    """An OTLP collector, such as http://127.0.0.1:4317; null: no tracing. Needs the extra `otel`."""
    protocol: Literal["grpc", "http"] = "grpc"
    """OTLP over gRPC (port 4317), or as protobuf over HTTP (port 4318; without a path to /v1/traces)."""
    ratio: NonNegativeFloat = Field(default=1.0, le=1.0)
    """Share of the requests that are sampled, of those whose client has not decided by its `traceparent`."""

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        try:
            parts = urlsplit(endpoint)
            known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            known = False
        if not known:
            raise ValueError(f"should be an address such as http://127.0.0.1:4317, not {endpoint!r:.80}")
        return endpoint

    @property
    def address(self) -> str | None:
        """The endpoint, of HTTP with its path."""
        if self.endpoint is None or self.protocol == "grpc" or urlsplit(self.endpoint).path.strip("/"):
            return self.endpoint
        return self.endpoint.rstrip("/") + HTTP_PATH


LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")

MOST_ENGINES = 4096
Port = Annotated[int, Field(ge=1, le=65_535)]


class EngineAddresses(Settings):
    """The engines of one role, found in one or several ways."""

    addresses: tuple[str, ...] = Field(default=(), max_length=MOST_ENGINES)
    """One an engine: `host:port`, or a URL; the preset's path is read (`/metrics`), unless it ends so."""
    https: bool = False
    """True: addresses without a scheme, and those that are looked up, are https."""
    dns: str | None = None
    """`host:port`: every address that the name has is an engine, as with a headless Service."""
    selector: str | None = None
    """Kubernetes: a label selector; every running pod that it matches is an engine, or a group of pods."""
    port: Port | tuple[Port, ...] | None = None
    """Kubernetes: the pods' port with `/metrics`, or several, where ranks have ports of their own."""
    namespace: str | None = None
    """Kubernetes: of the pods; null: as `connector.kubernetes.namespace`."""

    @field_validator("dns")
    @classmethod
    def _has_a_port(cls, dns: str | None) -> str | None:
        host, _, port = (dns or "x:1").rpartition(":")
        if not host or not port.isdecimal() or "/" in host:
            raise ValueError(f"should be host:port, not {dns!r}")
        return dns

    @field_validator("addresses")
    @classmethod
    def _are_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for address in addresses:
            scheme, found, _ = address.rpartition("://")
            if not address or (found and scheme not in ("http", "https")):
                raise ValueError(f"should be host:port or a URL, not {address!r}")
        if len(set(addresses)) < len(addresses):
            raise ValueError("an address is there twice")
        return addresses

    @model_validator(mode="after")
    def _are_somewhere(self) -> "EngineAddresses":
        if not (self.addresses or self.dns or self.selector):
            raise ValueError("needs addresses, dns or selector")
        if self.selector and not self.port:
            raise ValueError("selector needs the pods' port")
        return self


class MetricsSettings(Settings):
    """Where observations come from."""

    source: Literal["gateway", "prometheus", "engines"] = "gateway"
    """What is read (docs/reference/measurements.md): a gateway, a Prometheus, or the engines themselves."""
    url: str | None = None
    """Address of Prometheus (needed with `source: prometheus`, and for `wake`), or of the gateway; null: our
    own gateway."""
    wake: str | None = None
    """For `min_replicas: 0` of engines that others run: a PromQL query for the requests that wait in front of
    them (docs/howto/zero.md#engines-that-others-run). Above 0 it wakes them. `$model`: the model's name."""
    preset: PresetName = "headway"
    """Whose metric names; source engines takes those that engines show (not headway, dynamo, llm-d)."""
    overrides: PresetSettings = PresetSettings()
    """What differs from the preset (docs/reference/measurements.md#other-names)."""
    labels: Mapping[str, str] = {}
    """Prometheus: labels that all series carry; a value that begins with ~ is a regular expression."""
    role_labels: Mapping[RoleName, Mapping[str, str]] = {}
    """Prometheus: by role, labels of the series of its engines; all pools or none."""
    engines: Mapping[RoleName, EngineAddresses] = {}
    """Source engines: by role, where its engines are."""
    headers: Mapping[str, str] = {}
    """Headers to send, such as `X-Scope-OrgID: team`; `@FILE` sends what is in the file."""
    offset_s: NonNegativeFloat = 0.0
    """Prometheus: intervals end so many seconds ago, for samples that always come late."""
    max_answer_mib: PositiveFloat = Field(default=64.0, le=4096)
    """Of a longer answer nothing is used, so that the collector's memory stays bounded."""
    ca_file: str | None = None
    """HTTPS: a PEM file of authorities to trust; null: the system's."""
    cert_file: str | None = None
    """HTTPS: a PEM file with our certificate, where the other side asks for one."""
    key_file: str | None = None
    """HTTPS: a PEM file with its private key; null: `cert_file` holds it too."""
    verify: Literal["full", "authority", "none"] = "full"
    """HTTPS: certificates have to be of a trusted authority and of that host, of the authority alone (pods
    by their addresses), or none is looked at."""
    token_file: str | None = None
    """A file with the key to send (`Authorization: Bearer KEY`); read for each question. A user and a
    password stand in the address: `https://user:password@host`."""
    scrape_interval_s: PositiveFloat = 1.0
    """Seconds between two reads of metrics, of a gateway or of engines."""
    timeout_s: PositiveFloat = 5.0
    """Seconds that one query or scrape may take."""
    stale_after_s: PositiveFloat = 30.0
    """Age in seconds from which the newest sample no longer counts."""

    @model_validator(mode="after")
    def _prometheus_has_an_address(self) -> "MetricsSettings":
        if self.source == "prometheus" and not self.url:
            raise ValueError("source 'prometheus' needs a url")
        return self

    @model_validator(mode="after")
    def _wake_has_a_prometheus(self) -> "MetricsSettings":
        if self.wake is not None and (self.source == "gateway" or not self.url):
            raise ValueError("wake needs the url of a Prometheus, and source prometheus or engines")
        return self

    @model_validator(mode="after")
    def _fits_the_source(self) -> "MetricsSettings":
        if self.source == "engines":
            if not self.engines:
                raise ValueError("source 'engines' needs engines, by role")
            if self.preset not in ENGINE_PRESETS:
                *others, last = ENGINE_PRESETS
                raise ValueError(f"source 'engines' needs the preset {', '.join(others)} or {last}")
        if self.source != "prometheus" and (self.labels or self.role_labels or self.offset_s):
            raise ValueError("labels, role_labels and offset_s are for series of a Prometheus")
        for name in (*self.labels, *(name for labels in self.role_labels.values() for name in labels)):
            if LABEL_NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is no name of a label")
        return self


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
