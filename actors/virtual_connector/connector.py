"""The connector to systems outside: proposals to the virtual connector's coordinator.

`set_targets` is `sent` when a decision was issued, `pending` when it waits behind an earlier one, `unchanged`
when the newest decision asks for it already; `detail` has the newest decision's id. The counts of
replicas follow from answers (`actors.virtual_connector.ledger`).
"""

from collections.abc import Mapping
from typing import Any, Protocol

from actors.connectors.protocol import Action, ConnectorKind, PoolCounts, Ready, Refused, Unreachable
from actors.names import VIRTUAL_CONNECTOR, CallError, NamedActor
from actors.virtual_connector import ScalingError
from headway.config import HeadwayConfig
from headway.planning import Role


class Coordinator(Protocol):
    """Something whose methods are called by name, as a named actor is."""

    async def call(self, method: str, *args: object, timeout_s: float) -> Any:  # noqa: ANN401
        """The method's answer; CallError if none came."""


class VirtualConnector:
    """Connector over the actor `VirtualConnectorCoordinator`."""

    def __init__(self, config: HeadwayConfig, coordinator: Coordinator | None = None) -> None:
        self._coordinator = coordinator or NamedActor(VIRTUAL_CONNECTOR)
        self._timeout_s = config.connector.timeout_s

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Propose these counts."""
        named = {role.value: count for role, count in targets.items()}
        reply = await self._call("propose", named, dict(reasons))
        return Action(status=reply.pop("status"), detail=reply)

    async def state(self) -> Mapping[Role, PoolCounts]:
        """The pools, as far as answers tell."""
        state = await self._call("state")
        return {Role(name): PoolCounts(**counts) for name, counts in state["pools"].items()}

    async def ready(self) -> Ready:
        """Ready if the coordinator answers; the outside system is not seen from here."""
        try:
            await self._call("get")
        except Unreachable as error:
            return Ready(ok=False, reason=str(error))
        return Ready(ok=True)

    async def _call(self, method: str, *args: object) -> Any:  # noqa: ANN401
        try:
            return await self._coordinator.call(method, *args, timeout_s=self._timeout_s)
        except CallError as error:
            raise Unreachable(str(error)) from error
        except ScalingError as error:
            raise Refused(str(error)) from error


VIRTUAL = ConnectorKind(make=lambda config, _: VirtualConnector(config), decision_ids=True)
