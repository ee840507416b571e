"""Who may use the gateway: API keys, compared in constant time; without keys only this machine.

`/health`, `/ready`, `/metrics` and `/metrics/requests` are open: probes, Prometheus and our collector carry
no keys, and what they read holds no content of requests. Everything else needs a key once there is one,
unknown paths included: what is open is listed, not what is protected.
"""

import hmac
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from headway.config import ConfigError, GatewaySettings

VARIABLE = "HEADWAY_API_KEYS"
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/metrics/requests"})

Headers = Iterable[tuple[bytes, bytes]]


class Access:
    """The keys that let a request in; none: everyone."""

    def __init__(self, keys: Sequence[str]) -> None:
        # Digests have one length, so that a comparison does not tell how long a key is.
        self._digests = tuple(sha256(key.encode()).digest() for key in keys)

    def allows(self, headers: Headers) -> bool:
        """Whether `Authorization: Bearer KEY` holds one of the keys; all are compared, whichever fits."""
        if not self._digests:
            return True
        offered = sha256(_bearer(headers)).digest()
        fits = False
        for digest in self._digests:
            fits |= hmac.compare_digest(digest, offered)
        return fits


def _bearer(headers: Headers) -> bytes:
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            return key.strip() if scheme.lower() == b"bearer" else b""
    return b""


def make_access(settings: GatewaySettings, environ: Mapping[str, str] = os.environ) -> Access:
    """Keys of the settings and of HEADWAY_API_KEYS. ConfigError: none, yet open to other machines."""
    configured = [key.get_secret_value() for key in settings.api_keys]
    keys = configured + [key.strip() for key in environ.get(VARIABLE, "").split(",") if key.strip()]
    for key in keys:
        if not key.strip("* "):
            # What a SecretStr prints as: settings were dumped to JSON and read back.
            raise ConfigError("gateway.api_keys: a key is empty or masked (only asterisks)")
    if not keys and not settings.loopback and not settings.allow_anonymous:
        raise ConfigError(
            f"gateway.host: {settings.host} is open to other machines, but there are no API keys; set"
            f" gateway.api_keys or {VARIABLE}, or gateway.allow_anonymous: true"
        )
    return Access(keys)
