"""Scales deployments of a Ray Serve application: `Prefill`, `Decode` and `Mixed` of Headway's own, or those
of any other by name (`connector.ray_serve`).

Targets are sent in every
call, changed or not. For an application that was started without `external_scaler_enabled` that is switched
on, once, and the call repeated. A deployment that Serve itself autoscales is refused: two would set its
count. Of another's application the model is not asked for: its replicas need not answer that.

Serve's controller is asked directly, by private calls of 4 to 6 ms (`actors.compat_ray` has them):
`get_deployment_details(app, name)` reads, `update_deployment_replicas(DeploymentID, n)` sets. Its errors are
translated here and nowhere else:

    ConnectorError
    ├── Unreachable              no controller, or no answer
    └── Refused                  no such application, deployment or call
        └── ScalingDisabled      the application runs without `external_scaler_enabled`
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from actors import compat_ray
from actors.compat_ray import CONTROLLER, SERVE_NAMESPACE
from actors.connectors.external_scaling import enable_external_scaling
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
from actors.connectors.served import PHASES, ServedDeployment, counts_of, served
from actors.connectors.sleepers import Controller, Sleepers, in_front
from headway.config import HeadwayConfig
from headway.planning import Role
from headway.planning.sleeping import kept_for_sleep

T = TypeVar("T")


class ScalingDisabled(Refused):
    """The application does not let others set its replica counts."""


class ControllerActor:
    """Serve's controller, called directly."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._controller: Any = None

    async def read(self, name: str) -> ServedDeployment:
        """The deployment now."""
        details = await self._call("get_deployment_details", self._application, name)
        if details is None:
            raise Refused(f"{self._application}: is not deployed any more")
        # Ray marks unset fields by values of another type than declared, of which pydantic warns.
        return served(details.model_dump(mode="json", warnings=False))

    async def scale(self, name: str, replicas: int) -> None:
        """Ask for that many replicas."""
        deployment = compat_ray.deployment_id(self._application, name)
        await self._call("update_deployment_replicas", deployment, replicas)

    async def _call(self, method: str, *args: object) -> Any:  # noqa: ANN401 - of the method
        from ray.exceptions import RayError

        # It may ask the GCS, which may be away.
        controller = self._controller or await asyncio.to_thread(self._found)
        if not hasattr(controller, method):
            raise Refused(f"Serve's controller has no {method} in this release of Ray")
        try:
            return await getattr(controller, method).remote(*args)
        except (RayError, TypeError) as error:
            # TypeError: Ray's idea of the method's arguments is of the handle, and was once seen to be wrong.
            raise self._translated(error) from error

    def _found(self) -> Any:  # noqa: ANN401 - an actor handle
        import ray

        if self._controller is None:
            try:
                self._controller = ray.get_actor(CONTROLLER, namespace=SERVE_NAMESPACE)
            except ValueError as error:
                raise Unreachable("Ray Serve does not run in this cluster") from error
        return self._controller

    def _translated(self, error: Exception) -> Exception:
        from ray.exceptions import RayTaskError

        cause = error.cause if isinstance(error, RayTaskError) else None
        if compat_ray.scaling_is_off(cause):
            return ScalingDisabled(f"{self._application}: runs without external_scaler_enabled")
        if compat_ray.is_going(cause):
            return Refused(f"{self._application}: a deployment is just being replaced or removed")
        if isinstance(cause, KeyError):
            return Refused(f"{self._application}: has no deployment {cause.args[0]}")
        if cause is not None:
            return Refused(f"{self._application}: {_first_line(cause)}")
        self._controller = None
        return Unreachable(f"Serve's controller does not answer: {_first_line(error)}")


Allow = Callable[[str], Awaitable[None]]
AskModel = Callable[[str, str], Awaitable[str | None]]


async def model_said(application: str, name: str) -> str | None:
    """The model that a replica of the deployment says it serves (`describe`), None if it says nothing."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        handle = await asyncio.to_thread(serve.get_deployment_handle, name, application)
        said = await handle.describe.remote()
    except RayServeException as error:
        raise Unreachable(f"{name}: {_first_line(error)}") from error
    except RayError as error:
        raise Refused(f"{name}: does not say which model it serves: {_first_line(error)}") from error
    return said.get("model") if isinstance(said, dict) else None


async def allow_scaling(application: str) -> None:
    """Have Serve accept replica counts for a running application, without restarting it."""
    await asyncio.to_thread(enable_external_scaling, application)


class RayServeConnector:
    """Connector over Ray Serve. The last three arguments are for tests."""

    def __init__(
        self,
        config: HeadwayConfig,
        application: str,
        control: Controller | None = None,
        allow: Allow = allow_scaling,
        ask_model: AskModel = model_said,
    ) -> None:
        settings = config.connector.ray_serve
        self._application = application = settings.application or application
        self._names = {role: settings.deployments.get(role.value, name) for role, name in DEPLOYMENTS.items()}
        self._own = not settings.deployments
        self._model = config.model
        self._roles = [role for role in Role if role.value in config.pools]
        self._may_be_empty = [role for role in self._roles if config.pools[role.value].min_replicas == 0]
        self._timeout_s = config.connector.timeout_s
        sleepers = {self._names[role]: config.pools[role.value].sleepers for role in self._roles}
        self._control = in_front(control or ControllerActor(application), sleepers, application)
        self._allow = allow
        self._ask_model = ask_model

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        """Send the counts; `unchanged` when Serve had them as its targets before."""
        if strangers := set(targets) - set(self._roles):
            raise Refused(f"{self._application}: has no pool {', '.join(sorted(strangers))}")
        if isinstance(self._control, Sleepers):
            kept = kept_for_sleep(reasons)
            for role in targets:
                self._control.keep(self._names[role], kept.get(role))
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
                    node=replica.node,
                )
                for role, deployment in found.items()
                for replica in deployment.replicas
            ),
            asleep={role: deployment.asleep for role, deployment in found.items()},
            crowded=any(deployment.crowded for deployment in found.values()),
        )

    async def ready(self) -> Ready:
        """Ready if every pool has a deployment with a running replica, and all serve the configured model.

        A pool that may be empty has none where none is wanted.
        """
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
            and (counts.desired or role not in self._may_be_empty)
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
            await self._control.scale(name, count)
        except ScalingDisabled:
            await self._allow(self._application)
            await self._control.scale(name, count)

    async def _read(self, roles: Sequence[Role]) -> dict[Role, ServedDeployment]:
        found = await asyncio.gather(*(self._control.read(self._names[role]) for role in roles))
        return dict(zip(roles, found, strict=True))

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


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


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
