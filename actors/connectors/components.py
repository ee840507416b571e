"""Scaling by hand, and waiting for it: `set_component_replicas`, `add_component`, `remove_component`, over
any connector. The names are those of Dynamo's `PlannerConnector`.

    components = Components(make_connector(config, "headway"))
    await components.add_component("decode", blocking=True, timeout_s=600)

With `blocking` a call returns when every pool that it names has its target ready and nothing starting; what
drains is not waited for. Not within `timeout_s`: NotReached, with the counts that were seen last; the targets
stay asked for. While the other side does not answer, the wait goes on.

A planner that runs sets its own targets again at its next decision: these calls are for fleets without one,
for its dry run, and for tests.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from actors.connectors.protocol import Action, Connector, ConnectorError, PoolCounts, Refused, Unreachable
from headway.planning import Role

TIMEOUT_S = 1800.0
POLL_S = 0.25
LEAST = 1
"""Replicas that a pool keeps: none would serve nobody, and live pools have no way back."""


class NotReached(ConnectorError):
    """The pools did not have their targets within the time given."""


class Components:
    """Pools of a connector by the names of their roles."""

    def __init__(self, connector: Connector, poll_s: float = POLL_S) -> None:
        self._connector = connector
        self._poll_s = poll_s

    async def set_component_replicas(
        self,
        targets: Mapping[str, int],
        *,
        blocking: bool = False,
        timeout_s: float = TIMEOUT_S,
        reasons: Mapping[str, Any] | None = None,
    ) -> Action:
        """Ask for these counts. Refused, Unreachable; NotReached with `blocking`."""
        wanted = {_role(name): count for name, count in targets.items()}
        action = await self._connector.set_targets(wanted, reasons or {"summary": "set by hand"})
        if blocking:
            await self.wait_until_reached(wanted, timeout_s)
        return action

    async def add_component(
        self, component_name: str, *, blocking: bool = False, timeout_s: float = TIMEOUT_S
    ) -> Action:
        """One replica more than is desired now."""
        desired = await self._desired(component_name)
        return await self.set_component_replicas(
            {component_name: desired + 1}, blocking=blocking, timeout_s=timeout_s
        )

    async def remove_component(
        self, component_name: str, *, blocking: bool = False, timeout_s: float = TIMEOUT_S
    ) -> Action:
        """One replica less than is desired now; Refused where that would leave none."""
        desired = await self._desired(component_name)
        if desired <= LEAST:
            raise Refused(f"{component_name}: {desired} desired, and {LEAST} is the least")
        return await self.set_component_replicas(
            {component_name: desired - 1}, blocking=blocking, timeout_s=timeout_s
        )

    async def wait_until_reached(
        self, targets: Mapping[Role, int], timeout_s: float = TIMEOUT_S
    ) -> Mapping[Role, PoolCounts]:
        """Until each of these pools has its target ready; their counts then. NotReached."""
        seen = "nothing was seen"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        counts = await self._connector.state()
                    except Unreachable as error:
                        seen = str(error)
                    else:
                        if all(_reached(counts.get(role), count) for role, count in targets.items()):
                            return counts
                        seen = ", ".join(
                            _said(role, counts.get(role), count) for role, count in targets.items()
                        )
                    await asyncio.sleep(self._poll_s)
        except TimeoutError as error:
            raise NotReached(f"not within {timeout_s:g} s: {seen}") from error

    async def validate_deployment(self) -> None:
        """Refused where the pools are not there, not whole, or serve another model; with the reason."""
        ready = await self._connector.ready()
        if not ready.ok:
            raise Refused(ready.reason)

    async def wait_for_deployment_ready(self, timeout_s: float = TIMEOUT_S) -> None:
        """Until `validate_deployment` passes. NotReached, with the last reason."""
        reason = "no answer"
        try:
            async with asyncio.timeout(timeout_s):
                while not (ready := await self._connector.ready()).ok:
                    reason = ready.reason
                    await asyncio.sleep(self._poll_s)
        except TimeoutError as error:
            raise NotReached(f"not within {timeout_s:g} s: {reason}") from error

    async def _desired(self, name: str) -> int:
        role, counts = _role(name), await self._connector.state()
        if role not in counts:
            raise Refused(f"no pool {name}; there are {', '.join(counts)}")
        return counts[role].desired


def _role(name: str) -> Role:
    try:
        return Role(name)
    except ValueError:
        raise Refused(f"no pool {name!r}; pools are {', '.join(Role)}") from None


def _reached(counts: PoolCounts | None, target: int) -> bool:
    return counts is not None and counts.desired == target and counts.ready == target and counts.starting == 0


def _said(role: Role, counts: PoolCounts | None, target: int) -> str:
    if counts is None:
        return f"{role} has no pool"
    return f"{role} {counts.ready} of {target} ready ({counts.desired} desired, {counts.starting} starting)"
