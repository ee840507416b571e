"""Settings of tracing."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from headway.config.base import NonNegativeFloat, Settings

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
