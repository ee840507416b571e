"""Headway's application on a Ray cluster that this process is connected to: deploy it, find it, delete it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from headway.config import HeadwayConfig, load_config
from headway_cli.check import check_live
from headway_cli.control import ControlClient
from headway_cli.errors import CliError

APPLICATION = "headway"
READY_WITHIN_S = 300.0
POLL_S = 0.25
INGRESS = "Gateway"

Say = Callable[[str], None]


class AlreadyThere(CliError):
    """The cluster has the application already: it is somebody else's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A deployed application and where its gateway listens."""

    url: str

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.url}/v1"


def settings(path: str | None) -> HeadwayConfig:
    """The configuration as a deployment needs it, checked: files that it names become absolute."""
    from serve_apps.arguments import read_arguments

    mixed = "mixed" in load_config(path).pools
    given = {} if path is None else {"config": path}
    config = read_arguments(given, "aggregated" if mixed else "disaggregated")
    check_live(config, path)
    return config


def deploy(config: HeadwayConfig, say: Say) -> Deployed:
    """Start the application and wait until it serves; CliError says what did not come up."""
    from ray import serve
    from ray.serve.schema import LoggingConfig

    from serve_apps.builders import application

    if exists():
        raise AlreadyThere(f"the application {APPLICATION} is already on this cluster; headway down ends it")
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    serve.start(proxy_location="Disabled", logging_config=quiet)
    say("starting gateway, engines and control plane")
    try:
        serve.run(
            application(config),
            name=APPLICATION,
            route_prefix="/",
            logging_config={"log_level": "WARNING", "enable_access_log": False},
            external_scaler_enabled=True,
        )
    except RuntimeError as error:
        raise CliError(f"the application did not start: {error}; {why_not_up()}") from error
    addresses = serve.get_deployment_handle(INGRESS, APPLICATION).addresses.remote().result(timeout_s=60)
    url = str(addresses[0]).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    deployed = Deployed(url=url)
    say(f"gateway at {deployed.url}, waiting until it is ready")
    _wait_until_ready(deployed)
    return deployed


def why_not_up() -> str:
    """The last words of the deployments that did not start, each in a line."""
    from ray import serve

    found = serve.status().applications.get(APPLICATION)
    if found is None:
        return "nothing is known of it"
    # What a replica raised is the last line of a traceback.
    said = (part.message.strip().split("\n")[-1] for part in found.deployments.values())
    return "; ".join(dict.fromkeys(filter(None, said))) or found.message


def exists() -> bool:
    """True where the application is on the cluster."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        return APPLICATION in serve.status().applications
    except RayServeException:
        return False


def delete() -> bool:
    """Delete the application and the actors that serve it; whether there was one."""
    from ray import serve

    from actors import control_plane

    there = exists()
    if there:
        serve.delete(APPLICATION)
    try:
        control_plane.stop(application=APPLICATION)
    except control_plane.ControlPlaneError as error:
        raise CliError(str(error)) from error
    return there


def _wait_until_ready(deployed: Deployed) -> None:
    """Until `/ready` says so; its own words after READY_WITHIN_S."""
    client = ControlClient(url=deployed.url)
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            client.get("/ready")
        except CliError as error:
            if time.monotonic() > deadline:
                raise CliError(f"not ready after {READY_WITHIN_S:g} s: {error}") from error
            time.sleep(POLL_S)
        else:
            return
