"""Where the metrics are, and how an address is shown: without credentials."""

from urllib.parse import urlsplit

from actors.store import Store
from headway.config import HeadwayConfig

GATEWAY_ADDRESS = "gateway/address"
"""Key in the store under which the gateway's host writes `http://host:port`."""


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
