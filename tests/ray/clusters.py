"""What tests on a real Ray share: waiting with a deadline, replicas as they are counted."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.serve._private.common import DeploymentID

from actors import control_plane
from headway.config import HeadwayConfig
from tests.patience import PATIENCE_S

POLL_S, SELDOM_S = 0.05, 0.5
"""At first, and in the end: what is asked for, the Serve controller has to do beside its work."""
PATIENT = {"health_check_timeout_s": PATIENCE_S}
"""For deployments in a Serve config file: a replica that waits for a core is not replaced."""

COMMAND_S = 420
GPU_TYPE = "L20"
"""What Ray says that the node has."""

GPUS = 2
"""As many as Ray is made to believe in."""


def start(config: HeadwayConfig, application: str) -> str:
    """Start the actors for one application; the token. ControlPlaneError."""
    (token,) = control_plane.start({application: config}).values()
    if isinstance(token, str):
        return token
    raise token


def wait_until(predicate: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    """Poll until it holds; AssertionError when it never did."""
    deadline, pause_s = time.monotonic() + timeout_s, POLL_S
    while not predicate():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {predicate}"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, SELDOM_S)


def controller() -> Any:
    """Serve's controller."""
    return ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")


def application_details(app: str) -> Mapping[str, Any] | None:
    """What the controller says of an application, None if it has none of that name."""
    details = ray.get(controller().get_serve_instance_details.remote(), timeout=30)
    found: Mapping[str, Any] | None = details["applications"].get(app)
    return found


def replicas(app: str, deployment: str) -> list[Mapping[str, Any]]:
    """The running replicas: `replica_id`, `pid`, `actor_name` and so on."""
    details = application_details(app)
    found = details["deployments"].get(deployment) if details else None
    return [one for one in found["replicas"] if one["state"] == "RUNNING"] if found else []


def running_replicas(app: str, deployment: str) -> int:
    """How many replicas run."""
    return len(replicas(app, deployment))


def scale(app: str, deployment: str, count: int) -> None:
    """Ask the controller for that many replicas, as the planner's connector does."""
    key = DeploymentID(name=deployment, app_name=app)
    ray.get(controller().update_deployment_replicas.remote(key, count), timeout=30)


def headway(environment: dict[str, str], *arguments: object) -> "subprocess.CompletedProcess[str]":
    """Our command as users type it, whatever it exits with."""
    command = [sys.executable, "-m", "headway_cli", *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
