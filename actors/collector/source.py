"""Sources of metrics as the MetricCollector asks them, their one error, and their addresses.

An address is shown without credentials.
"""

from typing import Protocol
from urllib.parse import urlsplit

from actors.collector.measured import Health, Measured
from actors.names import GATEWAY_ADDRESS
from actors.store import Store
from headway.config import HeadwayConfig


class SourceDownError(Exception):
    """The source cannot be read: no answer, too late, an HTTP error, or not what was asked for.

    The text says what and where, without credentials.
    """


class Source(Protocol):
    """Metrics of one deployment. None of these raises for what the other side does."""

    async def collect(self, start_s: float, end_s: float) -> Measured:
        """The interval as measured; `end_s` is now."""

    async def probe(self) -> Health:
        """`ok` if the source answers now, else what is wrong."""

    def status(self) -> dict[str, object]:
        """Address, successes and failures so far, for people."""

    async def close(self) -> None:
        """Let go of connections and threads."""


def gateway_address(config: HeadwayConfig, store: Store) -> str:
    """The configured address, else where our gateway says it listens, else where it is configured to."""
    if config.metrics.url:
        return config.metrics.url
    written = store.get(GATEWAY_ADDRESS)
    if written:
        return written.decode("utf-8", "replace")
    host = config.gateway.host
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{config.gateway.port}"


def metrics_url(address: str) -> str:
    """The address itself if it ends in /metrics, else /metrics under it."""
    bare = address.rstrip("/")
    return bare if bare.endswith("/metrics") else f"{bare}/metrics"


def shown(address: str) -> str:
    """Scheme, host, port and path."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https"):
        return address.rpartition("@")[2]
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
