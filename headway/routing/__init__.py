"""Routing: request + replicas → placement. Pure functions and one state machine without I/O."""

from headway.routing.errors import RoutingError, SloRequired
from headway.routing.learning import Sample
from headway.routing.making import make_router
from headway.routing.router import Router
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
    Running,
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
    "Router",
    "RoutingError",
    "Running",
    "Sample",
    "Shed",
    "ShedReason",
    "SloRequired",
    "make_router",
]
