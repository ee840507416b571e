"""Headway's application on a Ray cluster that this process is connected to: deploy it, find it, delete it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.applications import members_of
from actors.store import InternalKvStore
from headway.config import HeadwayConfig, load_config
from headway_cli.cluster import APPLICATION
from headway_cli.control import ControlClient
from headway_cli.errors import CliError
from headway_cli.live_checks import check_live

if TYPE_CHECKING:
    from ray.serve import Application
    from ray.serve.schema import ApplicationStatusOverview

PLANS_WITHIN_S = 45.0
POLL_S = 0.25
SAY_EVERY_S = 5.0
"""Between two lines on how far a fleet is."""

Say = Callable[[str], None]


class AlreadyThere(CliError):
    """The application is on the cluster already, started by someone else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A deployed application and where its gateway listens."""

    url: str

    waits_for: str = ""
    """Why it does not plan yet; empty once it does."""

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"{self.url}/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What a verb deploys: its deployment with the HTTP server, and its parts in words.

    It comes up within `ready_within_s`, 0: that of its settings. Without `plans_within_s` it has come up once
    it is ready; with it, it is left to get there after so long.
    `members` are a fleet's deployments, which have come up when they are ready, too: the applications of
    their engines, or None where others run those. Of their Serve deployments those in `empty` begin without
    a replica.
    """

    verb: str
    parts: str
    ingress: str
    build: Callable[[HeadwayConfig], "Application"]
    ready_within_s: float = 0.0
    plans_within_s: float | None = None
    members: Mapping[str, Callable[[], "Application"] | None] = field(default_factory=dict)
    empty: Mapping[str, Sequence[str]] = field(default_factory=dict)


def _whole(config: HeadwayConfig) -> "Application":
    from serve_apps.builders import application

    return application(config)


def _control_alone(config: HeadwayConfig) -> "Application":
    from serve_apps.control_host import control_application

    return control_application(config)


WHOLE = Form(
    verb="up",
    parts="gateway, engines and control plane",
    ingress="Gateway",
    build=_whole,
)
CONTROL_ALONE = Form(
    verb="attach",
    parts="control plane",
    ingress="ControlPlane",
    build=_control_alone,
    plans_within_s=PLANS_WITHIN_S,
)


def settings(path: str | None) -> HeadwayConfig:
    """The configuration as a deployment needs it, checked: files that it names become absolute."""
    from serve_apps.arguments import read_arguments

    mixed = "mixed" in load_config(path).pools
    given = {} if path is None else {"config": path}
    config = read_arguments(given, "aggregated" if mixed else "disaggregated")
    check_live(config, path)
    return config


def deploy(config: HeadwayConfig, say: Say, form: Form = WHOLE, name: str = APPLICATION) -> Deployed:
    """Start the application and wait until it serves; CliError names what did not come up."""
    from ray import serve
    from ray.serve.schema import LoggingConfig

    if exists(name):
        raise AlreadyThere(f"the application {name} is already on this cluster; headway down ends it")
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    serve.start(proxy_location="Disabled", logging_config=quiet)
    say(f"starting {form.parts}")
    within_s = form.ready_within_s or config.engine.ready_within_s
    deadline = time.monotonic() + within_s
    engines = {member: build() for member, build in form.members.items() if build is not None}
    run({**engines, name: form.build(config)}, form.empty)
    wait_until_running((*engines, name), within_s, say)
    addresses = serve.get_deployment_handle(form.ingress, name).addresses.remote().result(timeout_s=60)
    url = str(addresses[0]).replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    deployed = Deployed(url=url)
    say(f"{form.ingress} at {deployed.url}, waiting until it is ready")
    if form.plans_within_s is not None:
        deadline = time.monotonic() + form.plans_within_s
    places = [f"{url}/deployments/{member}" for member in form.members] or [url]
    why_not = next(filter(None, (_waited_until_ready(place, deadline) for place in places)), "")
    if why_not and form.plans_within_s is None:
        raise CliError(f"not ready after {within_s:g} s (engine.ready_within_s): {why_not}")
    return Deployed(url=url, waits_for=why_not)


def run(applications: Mapping[str, "Application"], empty: Mapping[str, Sequence[str]]) -> None:
    """Have Serve run these, by name, and those deployments of theirs begin without a replica. CliError."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    from actors.connectors.external_scaling import begin_empty
    from actors.connectors.protocol import Unreachable

    targets = [
        serve.RunTarget(
            application,
            name=name,
            # Nothing of Serve's proxy: ours have HTTP servers of their own, and stand beside any application.
            route_prefix=None,
            logging_config={"log_level": "WARNING", "enable_access_log": False},
            external_scaler_enabled=True,
        )
        for name, application in applications.items()
    ]
    try:
        serve.run_many(targets, wait_for_applications_running=False)
        begin_empty(empty)
    except Unreachable as error:
        raise CliError(str(error)) from error
    except RayServeException as error:
        # Serve's controller raised it: the error itself is the whole of its traceback.
        said = getattr(error, "cause", error)
        raise CliError(f"Serve refuses the application: {' '.join(str(said).split())}") from error
    except RuntimeError as error:
        why = "; ".join(map(why_not_up, applications))
        raise CliError(f"the application did not start: {error}; {why}") from error


def why_not_up(name: str = APPLICATION, found: "ApplicationStatusOverview | None" = None) -> str:
    """The last words of the deployments that did not start, each in a line; `found` is what Serve says."""
    from ray import serve

    found = found or serve.status().applications.get(name)
    if found is None:
        return "nothing is known of it"
    # What a replica raised is the last line of a traceback.
    said = (part.message.strip().split("\n")[-1] for part in found.deployments.values())
    return "; ".join(dict.fromkeys(filter(None, said))) or found.message


def exists(name: str = APPLICATION) -> bool:
    """True where an application of that name is on the cluster."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        return name in serve.status().applications
    except RayServeException:
        return False


def delete(name: str = APPLICATION) -> bool:
    """Delete the application and, of a fleet, its deployments; whether there was one."""
    from ray import serve

    members = tuple(members_of(InternalKvStore(), name))
    # What its gateway has begun ends whole, and then all engines together.
    there = delete_one(name)
    for member in filter(exists, members):
        serve.delete(member, _blocking=False)
    for member in members:
        delete_one(member)
    return there


def delete_one(name: str) -> bool:
    """Delete one application, and what the actors have of it; whether there was one."""
    from ray import serve

    from actors import control_plane

    there = exists(name)
    if there:
        # Serve's own wait ends after a minute; what has begun may take as long as a request.
        serve.delete(name, _blocking=False)
    while there and exists(name):
        time.sleep(POLL_S)
    try:
        control_plane.stop(application=name)
    except control_plane.ControlPlaneError as error:
        raise CliError(str(error)) from error
    return there


def wait_until_running(applications: Sequence[str], within_s: float, say: Say) -> None:
    """Wait until every deployment of these runs, and report each new reason why one does not. CliError."""
    from ray import serve

    many, said, deadline = len(applications) > 1, "", time.monotonic() + within_s
    every_s = SAY_EVERY_S if many else 0.0
    next_s = time.monotonic() + every_s
    while True:
        found = serve.status().applications
        waiting = [name for name in applications if name not in found or found[name].status != "RUNNING"]
        if not waiting:
            return
        failed = [name for name in waiting if name in found and found[name].status == "DEPLOY_FAILED"]
        name = (failed or waiting)[0]
        reason = why_not_up(name, found.get(name))
        why = f"{name}: {reason or 'starts'}" if many else reason
        if failed:
            raise CliError(f"the application did not start: {why}")
        if time.monotonic() > deadline:
            raise CliError(f"not up after {within_s:g} s (engine.ready_within_s): {why}")
        line = f"{len(applications) - len(waiting)} of {len(applications)} run; {why}" if many else why
        if name in found and line not in ("", said) and time.monotonic() >= next_s:
            say(line)
            said, next_s = line, time.monotonic() + every_s
        time.sleep(POLL_S)


def _waited_until_ready(url: str, deadline: float) -> str:
    """Empty once `/ready` answers 200; its reason when time is up."""
    # The certificate may be for the name that clients use; what is asked and answered is no secret.
    client = ControlClient(url=url, unverified=True)
    while True:
        try:
            client.get("/ready")
        except CliError as error:
            if time.monotonic() > deadline:
                return str(error)
            time.sleep(POLL_S)
        else:
            return ""
