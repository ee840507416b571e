"""Has Ray Serve accept replica counts from outside for an application that runs.

Serve takes them only for applications with `external_scaler_enabled`. `serve.run` and Serve config files can
set it; `serve run MODULE:app` cannot. For an application deployed that way the same deployments are handed to
the controller once more, byte for byte and with the flag: the versions are the same, so no replica restarts.
An application from a config file belongs to the file, which would win again at the next apply: that one is
refused, with the line to write into it.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from actors import compat_ray
from actors.compat_ray import CONTROLLER, SERVE_NAMESPACE
from actors.connectors.protocol import ConnectorError, Refused, Unreachable

DEPLOYED = {"RUNNING", "UNHEALTHY"}
"""States of an application whose deployments can be handed over again."""
TIMEOUT_S, POLL_S = 10.0, 0.05

logger = logging.getLogger(__name__)


def enable_external_scaling(application: str) -> bool:
    """Have Serve accept replica counts; False while the application is not deployed. Safe to repeat.

    Blocks for the time of two or three calls. Refused: the application comes from a config file without the
    flag. Unreachable: Serve's controller does not answer.
    """
    from ray.exceptions import GetTimeoutError, RayError
    from ray.serve.exceptions import RayServeException

    try:
        controller = _controller()
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


def hand_over(application: str, user_config: Mapping[str, Any]) -> None:
    """Give the deployments of an application that have a `user_config` another one, without a restart.

    Refused: the application comes from a config file, which would win again. Blocks as the above.
    """
    controller = _controller()
    found = _details(controller)["applications"][application]
    if found["source"] == "declarative":
        raise Refused(f"application {application!r} comes from a Serve config file: change it there")
    _deploy_again(controller, application, found["deployments"], user_config)


def replica_counts(application: str) -> Mapping[str, int]:
    """Replicas that Serve is to run, by deployment; none of an application that is not there. Blocks."""
    found = _details(_controller())["applications"].get(application, {"deployments": {}})
    return {name: each["target_num_replicas"] for name, each in found["deployments"].items()}


def begin_empty(empty: Mapping[str, Sequence[str]]) -> None:
    """Have these deployments, by application, begin with no replica. Serve has just taken them, and starts
    one of each at least; those that were there had none before. Blocks until Serve knows them; Unreachable.
    """
    waiting = {(application, name) for application, names in empty.items() for name in names}
    deadline = time.monotonic() + TIMEOUT_S
    while waiting and time.monotonic() < deadline:
        served = _details(_controller())["applications"]
        for application, name in sorted(waiting):
            found = served.get(application, {"deployments": {}})["deployments"].get(name)
            # What was there has none to run until Serve carries out what it was given.
            if found is not None and found["target_num_replicas"]:
                let_go(application, name)
                waiting.discard((application, name))
        time.sleep(POLL_S)
    known = {application: replica_counts(application) for application, _ in waiting}
    if missing := [place for place in sorted(waiting) if place[1] not in known[place[0]]]:
        raise Unreachable(f"Serve's controller does not deploy {' of '.join(reversed(missing[0]))}")


def let_go(application: str, deployment: str) -> None:
    """Have Serve run no replica of it. Blocks; Unreachable."""
    import ray
    from ray.exceptions import RayError

    asked = compat_ray.deployment_id(application, deployment), 0
    try:
        ray.get(_controller().update_deployment_replicas.remote(*asked), timeout=TIMEOUT_S)
    except RayError as error:
        raise Unreachable(f"Serve's controller: {' '.join(str(error).split())}") from error


def _controller() -> Any:  # noqa: ANN401 - a handle
    import ray

    return ray.get_actor(CONTROLLER, namespace=SERVE_NAMESPACE)


def _details(controller: Any) -> Any:  # noqa: ANN401 - the document of ServeInstanceDetails
    import ray

    return ray.get(controller.get_serve_instance_details.remote(), timeout=TIMEOUT_S)


def _deploy_again(
    controller: Any,  # noqa: ANN401 - a handle
    application: str,
    deployments: Mapping[str, Any],
    user_config: Mapping[str, Any] | None = None,
) -> None:
    import ray

    infos = ray.get(controller.list_deployments_internal.remote(), timeout=TIMEOUT_S)
    arguments = [
        compat_ray.deployed_again(key.name, info, deployments[key.name]["target_num_replicas"], user_config)
        for key, (info, _) in infos.items()
        if key.app_name == application
    ]
    call = controller.deploy_applications.remote(
        {application: arguments}, {application: compat_ray.scaling_turned_on()}
    )
    ray.get(call, timeout=TIMEOUT_S)
