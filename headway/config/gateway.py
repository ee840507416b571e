"""Settings of the gateway: where it listens, who is let in (keys, roles, TLS), and the traces of requests."""

from enum import StrEnum
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from headway.config.base import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Settings


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
    port: NonNegativeInt = Field(default=8000, le=65_535)
    """0: any free port; several gateways need one that is named."""
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
    request_timeout_s: PositiveFloat = 600.0
    """Seconds that one request may take; then it ends with status 504."""
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
