"""Where actors keep what a restart needs: bytes under string keys, each `put` one atomic step.

The default is Ray's internal KV (0.2 ms a put), which outlives any actor, and the GCS too when that is backed
by Redis.
"""

import pickle
from typing import Protocol

PREFIX = "headway/"
KV_NAMESPACE = b"headway"

UNPICKLING_ERRORS = (
    pickle.UnpicklingError,
    AttributeError,
    ImportError,
    TypeError,
    EOFError,
    ValueError,
    IndexError,
)
"""Errors of `pickle.loads` for bytes of another version, or for none of its own."""


class Store(Protocol):
    """Bytes under keys such as `planner/decisions/17`."""

    def get(self, key: str) -> bytes | None:
        """The value, None if there is none."""

    def put(self, key: str, value: bytes) -> None:
        """Replace the value, whole or not at all."""

    def delete(self, key: str) -> None:
        """Remove the value if there is one."""

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so, sorted."""


class InternalKvStore:
    """Ray's internal KV. Works wherever Ray is initialised: drivers, workers, actors."""

    def get(self, key: str) -> bytes | None:
        """The value, None if there is none."""
        from ray.experimental.internal_kv import _internal_kv_get

        value: bytes | None = _internal_kv_get(PREFIX + key, namespace=KV_NAMESPACE)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Replace the value, whole or not at all."""
        from ray.experimental.internal_kv import _internal_kv_put

        _internal_kv_put(PREFIX + key, value, overwrite=True, namespace=KV_NAMESPACE)

    def delete(self, key: str) -> None:
        """Remove the value if there is one."""
        from ray.experimental.internal_kv import _internal_kv_del

        _internal_kv_del(PREFIX + key, namespace=KV_NAMESPACE)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin so, sorted."""
        from ray.experimental.internal_kv import _internal_kv_list

        found: list[bytes] = _internal_kv_list(PREFIX + prefix, namespace=KV_NAMESPACE)
        return sorted(key.decode().removeprefix(PREFIX) for key in found)
