"""Replicas one by one, from connectors that can tell them apart: how long each took from the decision to
RUNNING.

A connector that cannot has no `snapshot`; then only counts are followed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from actors.connectors.protocol import PoolCounts
from headway.planning import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica. `started_s` is the Unix time at which its process was asked for."""

    role: Role
    replica: str
    phase: Literal["starting", "ready", "draining"]
    started_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The pools at one moment, as counts and replica by replica."""

    pools: Mapping[Role, PoolCounts]
    replicas: tuple[Replica, ...]


@runtime_checkable
class TellsReplicas(Protocol):
    """A connector that knows each replica."""

    async def snapshot(self) -> Snapshot:
        """The pools now."""
