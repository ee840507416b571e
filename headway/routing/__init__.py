"""Routing: request + replicas → placement. Pure functions and one state machine without I/O.

The router itself is loaded when it is asked for: engines and gateways need the types alone, and start faster
without compiled code and numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headway.routing.types import (
    NO_SLO,
    NOTHING,
    OutputProgress,
    Placement,
    ReplicaId,
    ReplicaLoad,
    ReplicaState,
    ReplicaUpdate,
    RequestFault,
    RequestSlo,
    RouteClass,
    RouteRequest,
    RoutingError,
    RoutingOutcome,
    Running,
    Shed,
    ShedReason,
    SloRequired,
)

if TYPE_CHECKING:
    from headway.routing.factory import make_router
    from headway.routing.fleet.records import Sample
    from headway.routing.router import Router

__all__ = [
    "NOTHING",
    "NO_SLO",
    "OutputProgress",
    "Placement",
    "ReplicaId",
    "ReplicaLoad",
    "ReplicaState",
    "ReplicaUpdate",
    "RequestFault",
    "RequestSlo",
    "RouteClass",
    "RouteRequest",
    "Router",
    "RoutingError",
    "RoutingOutcome",
    "Running",
    "Sample",
    "Shed",
    "ShedReason",
    "SloRequired",
    "make_router",
]

_HEAVY = {"Router": "router", "Sample": "fleet.records", "make_router": "factory"}
"""What is loaded on demand, and the module that has it."""


def __getattr__(name: str) -> object:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HEAVY[name]}"), name)
