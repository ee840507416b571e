"""The virtual connector: decisions with ids that a system outside Ray Serve carries out and answers.

    start_coordinator(config_json)             # once; the planner's `VirtualConnector` proposes to it
    client = VirtualConnectorClient()          # in any Ray driver
    decision = client.wait(timeout_s=60)
    client.complete(decision)                           # or client.fail(decision, "no such nodes")
    client.report({"decode": {"ready": 8}})             # now and then: the replicas there are

`start_client` starts the same client as the actor `VirtualConnectorClient`, for Ray Client; over HTTP it is
`serve_apps.control_api`. The rules for a decision stand in `ledger`.
"""

from typing import Any

from actors.hosting import hosting
from actors.names import VIRTUAL_CONNECTOR, VIRTUAL_CONNECTOR_CLIENT, start_actor
from actors.store import Store
from actors.virtual_connector.client import (
    AsyncVirtualConnectorClient,
    VirtualConnectorClient,
    VirtualConnectorClientActor,
)
from actors.virtual_connector.coordinator import VirtualConnectorCoordinator
from actors.virtual_connector.ledger import (
    BadProposal,
    BadReport,
    CoordinatorUnreachable,
    ScalingDecision,
    ScalingError,
    TooManyWaiters,
    UnknownDecision,
)

MOST_CALLS = 10_000
"""Calls in one actor at once, more than may wait there."""

__all__ = [
    "AsyncVirtualConnectorClient",
    "BadProposal",
    "BadReport",
    "CoordinatorUnreachable",
    "ScalingDecision",
    "ScalingError",
    "TooManyWaiters",
    "UnknownDecision",
    "VirtualConnectorClient",
    "VirtualConnectorClientActor",
    "VirtualConnectorCoordinator",
    "start_client",
    "start_coordinator",
]


def start_coordinator(config_json: str, application: str = "headway") -> Any:  # noqa: ANN401 - an actor handle
    """The coordinator's handle; started if it does not run yet."""
    kind = hosting(VirtualConnectorCoordinator, _coordinator)
    return start_actor(kind, VIRTUAL_CONNECTOR, {application: config_json}, max_concurrency=MOST_CALLS)


def _coordinator(config_json: str, _: str, store: Store) -> VirtualConnectorCoordinator:
    return VirtualConnectorCoordinator(config_json, store)


def start_client() -> Any:  # noqa: ANN401 - an actor handle
    """The handle of the named client; started if it does not run yet."""
    return start_actor(VirtualConnectorClientActor, VIRTUAL_CONNECTOR_CLIENT, max_concurrency=MOST_CALLS)
