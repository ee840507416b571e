"""Scales deployments of a Ray Serve application: `Prefill`, `Decode` and `Mixed` of Headway's own, or those
of any other by name (`connector.ray_serve`).

    Serve's state of a replica                                  counted as
    STARTING                                                    starting
    RUNNING, UPDATING, RECOVERING, PENDING_MIGRATION            ready: its constructor has returned, it serves
    STOPPING, STOPPED                                           draining

A restarted Serve controller calls replicas RECOVERING that never stopped serving. Targets are sent in every
call, changed or not. For an application that was started without `external_scaler_enabled` that is switched
on, once, and the call repeated. A deployment that Serve itself autoscales is refused: two would set its
count. Of another's application the model is not asked for: its replicas need not answer that. If Serve's
controller has lost its private call, the documented REST API stands in, where an address of the dashboard is
known (RAY_DASHBOARD_ADDRESS).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from actors.connectors.protocol import (
    DEPLOYMENTS,
    Action,
    ConnectorKind,
    PoolCounts,
    PoolsSnapshot,
    Ready,
    Refused,
    Replica,
    Unreachable,
)
from actors.connectors.serve_control import (
    CallMissing,
    ScalingDisabled,
    ServeControl,
    ServedDeployment,
    enable_external_scaling,
    make_controls,
    model_said,
)
from headway.config import HeadwayConfig
from headway.planning import Role

T = TypeVar("T")
Phase = Literal["starting", "ready", "draining"]

PHASES: Mapping[str, Phase] = {
    "STARTING": "starting",
    "RUNNING": "ready",
    "UPDATING": "ready",
    "RECOVERING": "ready",
    "PENDING_MIGRATION": "ready",
    "STOPPING": "draining",
    "STOPPED": "draining",
}

Allow = Callable[[str], Awaitable[None]]
AskModel = Callable[[str, str], Awaitable[str | None]]


async def allow_scaling(application: str) -> None:
    """Have Serve accept replica counts for a running application, without restarting it."""
    await asyncio.to_thread(enable_external_scaling, application)


class RayServeConnector:
    """Connector over Ray Serve. The last three arguments are for tests."""

    def __init__(
        self,
        config: HeadwayConfig,
        application: str,
        controls: Sequence[ServeControl] = (),
        allow: Allow = allow_scaling,
        ask_model: AskModel = model_said,
    ) -> None:
        settings = config.connector.ray_serve
        self._application = application = settings.application or application
        self._names = {role: settings.deployments.get(role.value, name) for role, name in DEPLOYMENTS.items()}
        self._own = not settings.deployments
        self._model = config.model
        self._roles = [role for role in Role if role.value in config.pools]
        self._timeout_s = config.connector.timeout_s
        self._controls = tuple(controls) or make_controls(application)
        self._allow = allow
        self._ask_model = ask_model

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Send the counts; `unchanged` when Serve had them as its targets before."""
        del reasons  # they stay in the planner's log
        if strangers := set(targets) - set(self._roles):
            raise Refused(f"{self._application}: has no pool {', '.join(sorted(strangers))}")
        return await self._within(self._send(targets))

    async def state(self) -> Mapping[Role, PoolCounts]:
        """The pools now."""
        return (await self.snapshot()).pools

    async def snapshot(self) -> PoolsSnapshot:
        """The pools now, replica by replica."""
        found = await self._within(self._read(self._roles))
        return PoolsSnapshot(
            pools={role: counts_of(deployment) for role, deployment in found.items()},
            replicas=tuple(
                Replica(
                    role=role,
                    replica=replica.replica,
                    phase=PHASES.get(replica.state, "draining"),
                    started_s=replica.started_s,
                )
                for role, deployment in found.items()
                for replica in deployment.replicas
            ),
        )

    async def ready(self) -> Ready:
        """Ready if every pool has a deployment with a running replica, and all serve the configured model."""
        try:
            found = await self._within(self._read(self._roles))
            models = await self._within(self._models(found))
        except (Refused, Unreachable) as error:
            return Ready(ok=False, reason=str(error))
        missing = [
            f"{self._names[role]} has no running replica ({counts.starting} starting)"
            f"{deployment.message and ': ' + deployment.message}"
            for role, deployment in found.items()
            if not (counts := counts_of(deployment)).ready
        ]
        others = [
            f"{self._names[role]} serves {model or 'an unnamed model'}, the settings say {self._model}"
            for role, model in models.items()
            if model != self._model
        ]
        autoscaled = [line for role, one in found.items() if (line := self._autoscaled(role, one))]
        reason = "; ".join(autoscaled or missing or others)
        return Ready(ok=not reason, reason=reason)

    async def _send(self, targets: Mapping[Role, int]) -> Action:
        before = await self._read(list(targets))
        if lines := [line for role, one in before.items() if (line := self._autoscaled(role, one))]:
            raise Refused("; ".join(lines))
        for role, count in targets.items():
            await self._scale(self._names[role], count)
        earlier = {role.value: deployment.target for role, deployment in before.items()}
        wanted = {role.value: count for role, count in targets.items()}
        status: Literal["unchanged", "sent"] = "unchanged" if earlier == wanted else "sent"
        return Action(status=status, detail={"before": earlier})

    def _autoscaled(self, role: Role, deployment: ServedDeployment) -> str:
        """Why Serve would set the count too; empty if it does not."""
        if not deployment.autoscaling:
            return ""
        return (
            f"{self._application}: Serve autoscales {self._names[role]} ({deployment.autoscaling}): deploy "
            "it with num_replicas and without autoscaling_config to let Headway scale it"
        )

    async def _scale(self, name: str, count: int) -> None:
        try:
            await self._first(lambda control: control.scale(name, count))
        except ScalingDisabled:
            await self._allow(self._application)
            await self._first(lambda control: control.scale(name, count))

    async def _read(self, roles: Sequence[Role]) -> dict[Role, ServedDeployment]:
        found = await asyncio.gather(*(self._read_one(self._names[role]) for role in roles))
        return dict(zip(roles, found, strict=True))

    async def _read_one(self, name: str) -> ServedDeployment:
        return await self._first(lambda control: control.read(name))

    async def _first(self, ask: Callable[[ServeControl], Awaitable[T]]) -> T:
        """The answer of the first way to Serve that has the call."""
        missing: CallMissing | None = None
        for control in self._controls:
            try:
                return await ask(control)
            except CallMissing as error:
                missing = error
        raise missing or Refused("no way to Ray Serve")

    async def _within(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError as error:
            raise Unreachable(
                f"{self._application}: Ray Serve did not answer within {self._timeout_s:g} s"
            ) from error

    async def _models(self, found: Mapping[Role, ServedDeployment]) -> dict[Role, str | None]:
        """The model of each running deployment of ours: by its user config, else by one of its replicas."""
        if not self._own:
            return {}
        running = [role for role, deployment in found.items() if counts_of(deployment).ready]
        return {
            role: found[role].model or await self._ask_model(self._application, self._names[role])
            for role in running
        }


def counts_of(deployment: ServedDeployment) -> PoolCounts:
    """One deployment in a pool's four counts."""
    phases = [PHASES.get(replica.state, "draining") for replica in deployment.replicas]
    return PoolCounts(
        desired=deployment.target,
        starting=phases.count("starting"),
        ready=phases.count("ready"),
        draining=phases.count("draining"),
    )


def _problems(config: HeadwayConfig) -> list[str]:
    """Gaps in the names of deployments, a line each."""
    settings, at = config.connector.ray_serve, "connector.ray_serve.deployments"
    if not settings.deployments:
        return [f"{at}: needed for the application {settings.application!r}"] * bool(settings.application)
    strangers = [role for role in settings.deployments if role not in config.pools]
    missing = [role for role in config.pools if role not in settings.deployments]
    names = list(settings.deployments.values())
    return [
        *(f"{at}.{role}: there is no pool {role}" for role in strangers),
        *(f"{at}.{role}: needed, the deployment of this pool" for role in missing),
        *([f"{at}: {names[0]!r} is named for two pools"] if len(set(names)) < len(names) else []),
    ]


RAY_SERVE = ConnectorKind(make=RayServeConnector, problems=_problems)
