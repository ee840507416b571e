"""Routing: request + replicas → placement. Pure functions and one state machine without I/O."""

from headway.routing.errors import RoutingError, SloRequired
from headway.routing.types import (
    NO_SLO,
    NOTHING,
    Outcome,
    Placement,
    Progress,
    ReplicaId,
    ReplicaLoad,
    ReplicaState,
    ReplicaUpdate,
    RequestSlo,
    RouteClass,
    RouteRequest,
    Shed,
    ShedReason,
)

__all__ = [
    "NOTHING",
    "NO_SLO",
    "Outcome",
    "Placement",
    "Progress",
    "ReplicaId",
    "ReplicaLoad",
    "ReplicaState",
    "ReplicaUpdate",
    "RequestSlo",
    "RouteClass",
    "RouteRequest",
    "RoutingError",
    "Shed",
    "ShedReason",
    "SloRequired",
]
