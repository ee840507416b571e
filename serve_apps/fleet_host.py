"""The application of a fleet: one gateway and one control plane for deployments that are applications each.

    Gateway, ControlPlane        of the fleet; `user_config` says which deployments there are
    Prefill, Decode | Mixed      of each deployment, in a Serve application of its name

So a deployment is added, changed or removed without a replica of another that restarts. The gateway lets go
of one when its last request has ended.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from actors import names
from actors.connectors.protocol import DEPLOYMENTS
from actors.control_plane import settings_json
from actors.keeping import Keeper
from actors.names import CallError, NamedActor
from headway.config import FleetConfig, HeadwayConfig
from headway.planning import Role
from serve_apps.access import make_access
from serve_apps.builders import gateway_deployment, plane_deployment
from serve_apps.compat_serve import handle_of
from serve_apps.gateway.admission import Quotas
from serve_apps.gateway.many_models import ManyModels
from serve_apps.gateway_host import GatewayReplica
from serve_apps.model_gateway import ModelGateway

ANSWER_WITHIN_S, LOOK_EVERY_S = 2.0, 0.2
Told = Mapping[str, Mapping[str, str]]
"""A `user_config`: below `deployments` by name the settings as JSON."""


def members(fleet: FleetConfig) -> Told:
    """The `user_config` of these deployments."""
    return {"deployments": {name: settings_json(each) for name, each in fleet.deployments.items()}}


def fleet_application(fleet: FleetConfig) -> serve.Application:
    """The gateway and the control plane of a fleet."""
    told = members(fleet)
    gateway = gateway_deployment(FleetGateway, fleet.common, told)
    return gateway.bind(fleet.common, [plane_deployment(FleetControlPlane, told).bind()])


class Changes:
    """Follows a `user_config`: what came, what changed, and what is gone since the last one."""

    def __init__(self) -> None:
        self._known: Mapping[str, str] = {}

    def see(self, told: Told) -> tuple[Mapping[str, HeadwayConfig], Sequence[str]]:
        """The settings of those that are new or changed, and the names of those that are gone or changed."""
        before, now = self._known, told.get("deployments", {})
        self._known = dict(now)
        fresh = {name: text for name, text in now.items() if before.get(name) != text}
        gone = [name for name, text in before.items() if now.get(name) != text]
        return {name: HeadwayConfig.model_validate_json(text) for name, text in fresh.items()}, gone


class FleetControlPlane:
    """Starts the named actors for all deployments, and keeps them."""

    def __init__(self, keeper: Keeper | None = None) -> None:
        self._keeper, self._changes = keeper or Keeper(), Changes()

    async def reconfigure(self, user_config: Told) -> None:
        """Serve these deployments. ControlPlaneError of one that cannot be; the others are."""
        fresh, gone = self._changes.see(user_config)
        for name in gone:
            if name not in fresh:
                await self._keeper.leave(name)
        await self._keeper.serve(fresh)

    async def __del__(self) -> None:
        await self._keeper.close()


@serve.ingress()
class FleetGateway(GatewayReplica):
    """The front door of a fleet. `others` are deployments that only live and die with it."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self, common: HeadwayConfig, others: Sequence[DeploymentHandle[Any]] = ()
    ) -> None:
        super().__init__()
        self._others, self._common, self._changes = others, common, Changes()
        self._access = make_access(common.gateway)
        self._quotas = Quotas(time.monotonic, common.gateway.replicas)
        own_id = serve.get_replica_context().replica_id.unique_id
        self._front = ManyModels(self._access, budget, own_id if common.gateway.replicas > 1 else None)
        self._leaving = set[asyncio.Task[None]]()
        await self._begin(self._front, common.gateway)

    async def reconfigure(self, user_config: Told) -> None:
        """Serve these deployments from now on."""
        fresh, gone = self._changes.see(user_config)
        for name, config in fresh.items():
            handles = await asyncio.to_thread(_handles, name, config)
            made = ModelGateway(config, handles, name, self._access, self._quotas)
            self._join(made, self._common.gateway.replicas, name)
            self._let_go(self._models.get(name))
            self._models[name] = made
        for name in gone:
            if name not in fresh:
                self._models[name].end_held(f"{name} is no longer served here")
                self._let_go(self._models.pop(name))
        ordered = {name: self._models[name] for name in user_config.get("deployments", {})}
        after = {name: each.spillover for name, each in ordered.items() if each.spillover}
        self._front.change({name: each.app for name, each in ordered.items()}, after)

    def _let_go(self, model: ModelGateway | None) -> None:
        if model is not None:
            task = asyncio.create_task(self._ended(model))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _ended(self, model: ModelGateway) -> None:
        model.end_live()
        while model.in_flight:
            await asyncio.sleep(LOOK_EVERY_S)
        await model.close()


def _handles(application: str, config: HeadwayConfig) -> Mapping[str, DeploymentHandle[Any]]:
    """The handles of a deployment's pools, by role, whether its engines are known to Serve already or not.

    Blocks while it asks Serve's controller.
    """
    wanted = {role: DEPLOYMENTS[Role(role)] for role in config.pools}
    return {role: handle_of(name, application) for role, name in wanted.items()}


async def budget() -> Mapping[str, Any]:
    """What the planner says of the common budget, by deployment; nothing while it does not answer."""
    try:
        found: Mapping[str, Any] = await NamedActor(names.PLANNER).call("fleet", timeout_s=ANSWER_WITHIN_S)
    except CallError:
        return {}
    return found
