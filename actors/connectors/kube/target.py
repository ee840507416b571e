"""What the connector needs to know of an object that it scales. Manifests in, counts and patches out."""

from collections.abc import Mapping
from typing import Any, Protocol

from actors.connectors.protocol import PoolCounts
from headway.planning import Role

Manifest = Mapping[str, Any]
"""An object as the API server returns it: parsed JSON."""


class Target(Protocol):
    """How one kind of object holds replica counts."""

    def counts(self, manifest: Manifest) -> Mapping[Role, PoolCounts]:
        """The pools as spec and status tell them; Refused where the structure is wrong."""

    def patch(self, manifest: Manifest, targets: Mapping[Role, int]) -> dict[str, Any] | None:
        """The `spec` of a merge patch that sets these counts; None if they are set. Refused as above."""

    def problems(self, manifest: Manifest) -> list[str]:
        """Why the object is not ready to be scaled, each with what and where; empty if it is."""


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: manifests omit what is empty, or hold null."""
    return value if isinstance(value, Mapping) else {}


def condition(manifest: Manifest, kind: str) -> Mapping[str, Any] | None:
    """The condition of this type in the object's status."""
    conditions = mapping(manifest.get("status")).get("conditions")
    for item in conditions if isinstance(conditions, list) else []:
        if mapping(item).get("type") == kind:
            return mapping(item)
    return None
