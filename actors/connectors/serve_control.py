"""Reads and sets Ray Serve's replica counts: by its controller actor, or by the dashboard's REST API, which
is the documented way but needs the dashboard, and its token.

    read    controller actor    `get_deployment_details(app, name)`                  private, 4 to 6 ms
            REST                `GET /api/serve/applications/`
    set     controller actor    `update_deployment_replicas(DeploymentID, n)`        private, 4 to 6 ms
            REST                `POST /api/v1/applications/A/deployments/D/scale`

Both speak of a deployment as `ServedDeployment`. Errors, translated here and nowhere else:

    ConnectorError
    ├── Unreachable     no controller, no answer, dashboard down or busy
    └── Refused         no such application or deployment; ScalingDisabled; token or right missing
        ├── ScalingDisabled    the application runs without `external_scaler_enabled`
        └── CallMissing        this Ray has no such private call: REST is the way

Serve takes counts from outside only for applications with `external_scaler_enabled`. `serve.run` and Serve
config files can set it; `serve run MODULE:app` cannot. For an application deployed that way the same
deployments are handed to the controller once more, byte for byte and with the flag: the versions are the
same, so no replica restarts. An application from a config file belongs to the file, which would win again
at the next apply: that one is refused, with the line to write into it.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from actors import compat_ray
from actors.compat_ray import CONTROLLER, SERVE_NAMESPACE
from actors.connectors.protocol import ConnectorError, Refused, Unreachable

DASHBOARD_VARIABLE, TOKEN_VARIABLE = "RAY_DASHBOARD_ADDRESS", "RAY_AUTH_TOKEN"
DEPLOYED = {"RUNNING", "UNHEALTHY"}
"""States of an application whose deployments can be handed over again."""
TIMEOUT_S = 10.0

logger = logging.getLogger(__name__)


class ScalingDisabled(Refused):
    """The application does not let others set its replica counts."""


class CallMissing(Refused):
    """Ray Serve's controller has no such method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReplica:
    """One replica: its id, Serve's word for its state, and when its actor was started (Unix seconds)."""

    replica: str
    state: str
    started_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedDeployment:
    """One deployment. `model` is what its user config names, None where it names none.

    `autoscaling` is Serve's own, as text; empty where there is none. `message` is Serve's word on it.
    """

    target: int
    replicas: tuple[ServedReplica, ...]
    model: str | None = None
    autoscaling: str = ""
    message: str = ""


class ServeControl(Protocol):
    """One way to Serve."""

    async def read(self, name: str) -> ServedDeployment:
        """The deployment now."""

    async def scale(self, name: str, replicas: int) -> None:
        """Ask for that many replicas."""


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
            raise CallMissing(f"Serve's controller has no {method}")
        try:
            return await getattr(controller, method).remote(*args)
        except RayError as error:
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
        if isinstance(cause, KeyError):
            return Refused(f"{self._application}: has no deployment {cause.args[0]}")
        if cause is not None:
            return Refused(f"{self._application}: {_first_line(cause)}")
        self._controller = None
        return Unreachable(f"Serve's controller does not answer: {_first_line(error)}")


class RestApi:
    """The dashboard's REST API at `url`, with the token of RAY_AUTH_TOKEN if there is one."""

    def __init__(self, application: str, url: str) -> None:
        self._application = application
        self._url = url.rstrip("/")

    async def read(self, name: str) -> ServedDeployment:
        """The deployment now."""
        document = await self._ask("GET", "/api/serve/applications/")
        applications = document.get("applications", {})
        deployments = applications.get(self._application, {}).get("deployments", {})
        if name not in deployments:
            raise Refused(f"{self._application}: has no deployment {name}")
        return served(deployments[name])

    async def scale(self, name: str, replicas: int) -> None:
        """Ask for that many replicas."""
        path = f"/api/v1/applications/{self._application}/deployments/{name}/scale"
        await self._ask("POST", path, {"target_num_replicas": replicas})

    async def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        import aiohttp

        token = os.environ.get(TOKEN_VARIABLE)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.request(method, self._url + path, json=body) as response,
            ):
                text = await response.text()
                if response.status != 200:
                    said = f"{self._url}: status {response.status}: {' '.join(text.split())[:200]}"
                    if response.status == 412 and "external_scaler_enabled" in text:
                        raise ScalingDisabled(said)
                    raise Unreachable(said) if response.status >= 500 else Refused(said)
                answer: dict[str, Any] = await response.json(content_type=None)
                return answer
        except (aiohttp.ClientError, ValueError) as error:
            raise Unreachable(f"{self._url}: {_first_line(error)}") from error


def make_controls(application: str, dashboard_url: str | None = None) -> tuple[ServeControl, ...]:
    """The ways to Serve, the preferred one first; REST where a dashboard's address is known."""
    url = dashboard_url or os.environ.get(DASHBOARD_VARIABLE)
    direct = ControllerActor(application)
    return (direct, RestApi(application, url)) if url else (direct,)


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


def served(details: dict[str, Any]) -> ServedDeployment:
    """A deployment from Serve's own description of it."""
    config = details.get("deployment_config") or {}
    user_config, autoscaling = config.get("user_config"), config.get("autoscaling_config")
    model = user_config.get("model") if isinstance(user_config, dict) else None
    return ServedDeployment(
        target=int(details["target_num_replicas"]),
        replicas=tuple(
            ServedReplica(
                replica=replica["replica_id"],
                state=str(replica["state"]),
                started_s=float(replica["start_time_s"]),
            )
            for replica in details["replicas"]
        ),
        model=model if isinstance(model, str) else None,
        autoscaling=_range(autoscaling) if isinstance(autoscaling, dict) else "",
        message=_last_line(details.get("message") or ""),
    )


def _range(autoscaling: dict[str, Any]) -> str:
    return f"{autoscaling.get('min_replicas')} to {autoscaling.get('max_replicas')} replicas"


def _last_line(message: str) -> str:
    """Of a replica that failed it is what was raised, beneath a traceback."""
    return next((line.strip()[:200] for line in reversed(message.splitlines()) if line.strip()), "")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def enable_external_scaling(application: str) -> bool:
    """Have Serve accept replica counts; False while the application is not deployed. Safe to repeat.

    Blocks for the time of two or three calls. Refused: the application comes from a config file without the
    flag. Unreachable: Serve's controller does not answer.
    """
    import ray
    from ray.exceptions import GetTimeoutError, RayError
    from ray.serve.exceptions import RayServeException

    try:
        controller = ray.get_actor(CONTROLLER, namespace=SERVE_NAMESPACE)
        found = _details(controller)["applications"].get(application)
        if found is None:
            return False
        if found["external_scaler_enabled"]:
            return True
        if found["source"] == "declarative":
            raise Refused(
                f"application {application!r} cannot be scaled: write 'external_scaler_enabled: true' into "
                "its entry in the Serve config file and apply that again"
            )
        if found["status"] not in DEPLOYED:
            return False
        _deploy_again(controller, application, found["deployments"])
    except (RayError, RayServeException, GetTimeoutError, ValueError) as error:
        raise Unreachable(f"Serve's controller: {' '.join(str(error).split())}") from error
    logger.info("application %r: external scaling is on", application)
    return True


async def keep_external_scaling(application: str, interval_s: float = 5.0) -> None:
    """Turn it on as soon as the application is deployed, and again when a new deployment turned it off."""
    said = ""
    while True:
        try:
            await asyncio.to_thread(enable_external_scaling, application)
        except ConnectorError as error:
            if str(error) != said:
                said = str(error)
                logger.warning("%s", said)
        await asyncio.sleep(interval_s)


def _details(controller: Any) -> Any:  # noqa: ANN401 - the document of ServeInstanceDetails
    import ray

    return ray.get(controller.get_serve_instance_details.remote(), timeout=TIMEOUT_S)


def _deploy_again(controller: Any, application: str, deployments: Mapping[str, Any]) -> None:  # noqa: ANN401
    import ray

    infos = ray.get(controller.list_deployments_internal.remote(), timeout=TIMEOUT_S)
    arguments = [
        compat_ray.deployed_again(key.name, info, deployments[key.name]["target_num_replicas"])
        for key, (info, _) in infos.items()
        if key.app_name == application
    ]
    call = controller.deploy_applications.remote(
        {application: arguments}, {application: compat_ray.scaling_turned_on()}
    )
    ray.get(call, timeout=TIMEOUT_S)
