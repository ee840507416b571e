"""The connector to systems outside: proposals to the virtual connector's coordinator.

`set_targets` is `sent` when a decision was issued, `pending` when it waits behind an earlier one, `unchanged`
when the newest decision asks for it already; `detail` has the newest decision's id. The counts of
replicas are what the outside system reported or answered (`actors.virtual_connector.ledger`). Those of a pool
of which that is not known are the engines that its metrics show:

    desired = ready = engines of its role that serve the model      starting = draining = 0

That is enough to plan from, and to watch in a dry run. It is not enough to act upon: metrics show neither
what starts nor what was ordered, so the coordinator refuses targets for what it was never told, and less for
what it was last told long ago. While metrics do not show it either, `state` is Unreachable and the planner
holds.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from actors.connectors.protocol import Action, ConnectorKind, PoolCounts, Ready, Refused, Unreachable
from actors.names import METRIC_COLLECTOR, VIRTUAL_CONNECTOR, CallError, NamedActor
from actors.store import StoreAway
from actors.virtual_connector import ScalingError
from headway.config import HeadwayConfig
from headway.planning import Role
from headway.words import plural

COMPARE_S, COMPARED_WITHIN_S, APART_S = 15.0, 1.0, 60.0


class VirtualConnector:
    """Connector over the actor `VirtualConnectorCoordinator`; `MetricCollector` counts engines."""

    def __init__(
        self,
        config: HeadwayConfig,
        coordinator: NamedActor | None = None,
        collector: NamedActor | None = None,
        clock: Callable[[], float] = time.monotonic,
        application: str = "",
    ) -> None:
        self._coordinator = coordinator or NamedActor(VIRTUAL_CONNECTOR, application=application)
        self._collector = collector or NamedActor(METRIC_COLLECTOR, application=application)
        self._timeout_s = config.connector.timeout_s
        self._carried_out: Mapping[Role, int] | None = None
        self._clock, self._compared_s = clock, -inf
        self._apart: dict[Role, tuple[float, str]] = {}

    @property
    def carried_out(self) -> Mapping[Role, int] | None:
        """The targets of the newest decision, if it was completed as of the last `state`."""
        return self._carried_out

    @property
    def contradictions(self) -> Sequence[str]:
        """Pools of which reports and metrics have told different counts for long, a line each."""
        return [line for since_s, line in self._apart.values() if self._compared_s - since_s >= APART_S]

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Propose these counts."""
        named = {role.value: count for role, count in targets.items()}
        reply = await self._call("propose", named, dict(reasons))
        return Action(status=reply.pop("status"), detail=reply)

    async def state(self) -> Mapping[Role, PoolCounts]:
        """The pools as they were seen last; Unreachable while one is unknown."""
        state = await self._call("state")
        told = {Role(name): PoolCounts(**counts) for name, counts in state["pools"].items()}
        shown = await self._shown(state["unseen"]) if state["unseen"] else {}
        if self._clock() - self._compared_s >= COMPARE_S:
            self._compared_s = self._clock()
            await self._compare({role: counts for role, counts in told.items() if role not in shown})
        decision = state["decision"] or {}
        # What metrics show is no edit: an engine that has gone was not taken back by anybody.
        known = decision.get("status") == "completed" and not shown
        self._carried_out = {Role(k): v for k, v in decision["targets"].items()} if known else None
        return {**told, **shown}

    async def ready(self) -> Ready:
        """Ready if the coordinator answers and knows how many replicas there are."""
        try:
            await self.state()
        except Unreachable as error:
            return Ready(ok=False, reason=str(error))
        return Ready(ok=True)

    async def _compare(self, told: Mapping[Role, PoolCounts]) -> None:
        """Note since when metrics contradict these counts; what they do not show contradicts nothing."""
        try:
            async with asyncio.timeout(COMPARED_WITHIN_S):
                engines = await self._collector.call("engines", timeout_s=COMPARED_WITHIN_S)
        except (CallError, TimeoutError):
            return
        apart = {}
        for role, counts in told.items():
            there = counts.ready + counts.starting + counts.draining
            found = engines.get(role.value, there)
            if not counts.ready <= found <= there:
                since_s, _ = self._apart.get(role, (self._compared_s, ""))
                text = (
                    f"{plural(found, f'{role} engine')} in the metrics, {counts.ready} ready by the reports"
                )
                apart[role] = since_s, text
        self._apart = apart

    async def _shown(self, unseen: Mapping[str, str]) -> Mapping[Role, PoolCounts]:
        """The counts of these pools by their metrics; Unreachable if one of them does not show."""
        try:
            async with asyncio.timeout(self._timeout_s):
                engines = await self._collector.call("engines", timeout_s=self._timeout_s)
        except (CallError, TimeoutError):
            engines = {}
        if missing := {name: why for name, why in unseen.items() if name not in engines}:
            raise Unreachable(_unseen(missing))
        return {
            Role(name): PoolCounts(desired=engines[name], starting=0, ready=engines[name], draining=0)
            for name in unseen
        }

    async def _call(self, method: str, *args: object) -> Any:  # noqa: ANN401
        try:
            return await self._coordinator.call(method, *args, timeout_s=self._timeout_s)
        except (CallError, StoreAway) as error:
            raise Unreachable(str(error)) from error
        except ScalingError as error:
            raise Refused(str(error)) from error


def _unseen(pools: Mapping[str, str]) -> str:
    each = "; ".join(f"{name}: {why}, and metrics show no engine of it" for name, why in pools.items())
    return f"{each} (VirtualConnectorClient.report, or POST /v1/scaling/report)"


VIRTUAL = ConnectorKind(
    make=lambda config, application: VirtualConnector(config, application=application), decision_ids=True
)
