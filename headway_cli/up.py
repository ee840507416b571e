"""`headway up` and `down`: the whole system, or by `attach` the control plane alone for a fleet of others.

Both run on a Ray of their own, or on a cluster that is there, in the foreground or in the background.
Whatever ends one (Ctrl-C, SIGTERM of `headway down`, an error), what it started is gone before it exits;
while it cleans up, further interrupts are ignored.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from actors.hosts import addresses, unreachable_gateway
from actors.planning.settings import KEPT_IN, PLACE, dump, fleet_of, kept_in_file, kept_in_store, value_at
from actors.store import InternalKvStore
from actors.stored import put
from headway.config import ConfigError, FleetConfig, HeadwayConfig, is_fleet, load_config
from headway_cli import ownership
from headway_cli.cluster import APPLICATION, cluster, reload_signals, stop_signals, uninterrupted, wait_for
from headway_cli.deployment import (
    CONTROL_ALONE,
    WHOLE,
    AlreadyThere,
    Deployed,
    Form,
    delete,
    deploy,
    exists,
    settings,
)
from headway_cli.errors import CliError
from headway_cli.flags import argument, option, switch
from headway_cli.live_fleet import change, fleet_form, fleet_settings
from headway_cli.ownership import announce, log_file, owning
from headway_cli.terminal import say

AddressOption = Annotated[
    str | None, option("ADDR", "A Ray cluster that runs already, such as auto.", "--address")
]
InsecureOption = Annotated[
    bool, switch("--insecure", "Join a Ray that asks for no token, though others can reach it.")
]

NameOption = Annotated[
    str | None, option("NAME", "Of the application on that cluster, one a model; default: headway.", "--name")
]

Announce = Callable[[Deployed], None]
Progress = Callable[[str | None, Path | None], None]
"""Takes the URL and Ray's directory as soon as they are known."""
ONLY_THERE = "--name is for an application on a cluster that runs: give --address"
FAILED = "headway: "
"""Before what is wrong with a file that was read again."""
STARTING_RAY_S = 120.0
"""Beside the time that engines have to start."""
POLL_S = 0.2
GONE_WITHIN_S = 120.0


def up(
    config: Annotated[str | None, argument("[CONFIG]", "Settings (YAML); default: the defaults.")] = None,
    *,
    address: AddressOption = None,
    name: NameOption = None,
    insecure: InsecureOption = False,
    detach: Annotated[bool, switch("--detach", "Return when it serves; headway down ends it.")] = False,
) -> None:
    """Start gateway, engines and control plane on Ray, and print the addresses; Ctrl-C ends it."""
    fleet = fleet_settings(config, name or APPLICATION) if config and is_fleet(config) else None
    found, form = (settings(config), WHOLE) if fleet is None else (fleet.common, fleet_form(fleet))
    told = partial(_announce, found, form)
    start(Start(found, form, told, fleet, config), Place(address, name, insecure=insecure, detach=detach))


@dataclass(frozen=True, slots=True)
class Start:
    """What a verb starts: settings, and those of a fleet, of a file."""

    settings: HeadwayConfig
    form: Form
    announce: Announce
    fleet: FleetConfig | None
    file: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a verb starts its application, and whether it stays with it; as the flags say."""

    address: str | None
    name: str | None
    insecure: bool
    detach: bool


def start(what: Start, place: Place) -> None:
    """Start it, or bring a fleet that runs there to these settings."""
    if place.address is None and place.name is not None:
        raise CliError(ONLY_THERE)
    fleet, told, form = what.fleet, what.announce, what.form
    if place.address is not None:
        name, insecure, stay = place.name or APPLICATION, place.insecure, not place.detach
        if fleet is None or not _changed(fleet, place.address, name, insecure=insecure):
            stay_on_cluster(what.settings, place.address, told, name, stay=stay, insecure=insecure, form=form)
    elif fleet is not None and (owner := ownership.current_or_none()) is not None:
        _tell(owner, str(what.file))
    elif place.detach:
        told(start_detached(what.file, form))
        print("It runs in the background; headway down ends it.")
    else:
        stay_up(what.settings, told, form, what.file)


def _changed(fleet: FleetConfig, address: str, name: str, *, insecure: bool) -> bool:
    """Bring a fleet that runs on a cluster to these settings; False where none does."""
    with cluster(address, insecure=insecure):
        if not exists(name):
            return False
        print(change(fleet, name, say))
        return True


def _tell(owner: ownership.Owner, config: str) -> None:
    """Have the process that is up read its file again. CliError where that is another file."""
    if owner.config != str(Path(config).absolute()):
        raise CliError(f"{ownership.already_up(owner)}; it runs {owner.config or 'without a file'}")
    os.kill(owner.pid, signal.SIGUSR1)
    say(f"process {owner.pid} reads {config} again")
    while (now := ownership.current_or_none()) is not None and now.reloads == owner.reloads:
        time.sleep(POLL_S)
    if now is None:
        raise CliError(f"process {owner.pid} has ended meanwhile; {log_file()} has its output")
    if now.said.startswith(FAILED):
        raise CliError(now.said.removeprefix(FAILED))
    print(now.said)


def _announce(config: HeadwayConfig, form: Form, deployed: Deployed) -> None:
    """Print the addresses, and what was changed by `headway set` before."""
    if not form.members:
        effective(config)
    for member in form.members:
        print(f"Deployment  {member}: {deployed.url}/deployments/{member}/")
    print(f"OpenAI API  {deployed.openai_url}")
    announce_pages(config, deployed.url)


def announce_pages(config: HeadwayConfig, url: str) -> None:
    """Print where the pages are, and that the port of the settings is another's."""
    print(f"Live page   {url}/")
    print(f"Control     {url}/v1/control/status (headway status --url {url})", flush=True)
    if (wished := config.gateway.port) not in (0, port := urlsplit(url).port):
        print(f"Port        {wished} (gateway.port) is taken, so it listens on {port}", flush=True)


def down(address: AddressOption = None, name: NameOption = None) -> None:
    """End what `headway up` or `attach` started; with --address, delete the application there."""
    if address is None and name is not None:
        raise CliError(ONLY_THERE)
    print(stop_owner() if address is None else stop_on_cluster(address, name or APPLICATION))


def effective(config: HeadwayConfig) -> HeadwayConfig:
    """The settings with what was changed before and is still in force, which is printed."""
    import ray

    if ray.is_initialized():
        kept = kept_in_store(InternalKvStore(), config, own=False)
    else:
        kept = kept_in_file(kept_settings(config), config)
    found, changes, authors = kept or (config, {}, {})
    for key, value in changes.items():
        by, before = authors[key].by, dumps(value_at(dump(config), key))
        if dumps(value) != before:
            set_ = f"headway set{by and f' by {by}'}; headway set {key}={before} goes back to the file"
            print(f"Kept        {key} {dumps(value)} ({set_})")
    return found


def kept_settings(config: HeadwayConfig) -> Path:
    """The file that keeps what `headway set` changes, of this fleet."""
    return ownership.state_directory() / f"settings-{fleet_of(config)}.json"


def stay_up(
    config: HeadwayConfig, announce_to_user: Announce, form: Form = WHOLE, file: str | None = None
) -> None:
    """A local Ray with everything on it, until this process is to end; a fleet's `file` is read again on
    SIGUSR1.
    """

    def began(url: str | None, directory: Path | None) -> None:
        announce(url, directory, file)
        # Of a fleet it is not kept: there is one such file.
        if directory is not None and url is None and not form.members:
            put(InternalKvStore(), PLACE, KEPT_IN, str(kept_settings(config)))

    with (
        owning(),
        reload_signals() as again,
        running(config, began, form) as deployed,
        stop_signals() as stopped,
    ):
        announce_to_user(deployed)
        print("Ctrl-C ends it.", flush=True)
        while wait_for(stopped, again):
            if form.members and file is not None:
                _read_again(file, attached=form.verb == CONTROL_ALONE.verb)


def _read_again(file: str, *, attached: bool) -> None:
    """Bring the fleet to what its file says now; what is wrong with that is said, and changes nothing."""
    try:
        fleet = fleet_settings(file, APPLICATION, attached=attached)
        said = change(fleet, APPLICATION, partial(print, flush=True))
    except (ConfigError, CliError) as error:
        said = f"{FAILED}{error}"
    except Exception as error:  # noqa: BLE001 - whatever Ray raises, what runs goes on
        said = f"{FAILED}{type(error).__name__}: {error}"
    print(said, flush=True)
    ownership.reloaded(said)


@contextmanager
def running(
    config: HeadwayConfig, progress: Progress = lambda _url, _directory: None, form: Form = WHOLE
) -> Iterator[Deployed]:
    """Everything on a local Ray, as long as the block lasts. `progress` takes what is known so far."""
    progress(None, None)
    say("starting Ray")
    with cluster(None) as ray_cluster:
        progress(None, ray_cluster.directory)
        deployed = deploy(config, say, form)
        progress(deployed.url, ray_cluster.directory)
        yield deployed
        say("stopping")


def stay_on_cluster(
    config: HeadwayConfig,
    address: str,
    announce_to_user: Announce,
    name: str = APPLICATION,
    *,
    stay: bool,
    insecure: bool,
    form: Form = WHOLE,
) -> None:
    """The application on a cluster that is there; it goes when this process does, unless `stay` is False."""
    with cluster(address, insecure=insecure):
        if refusal := unreachable_gateway(config, addresses()):
            raise CliError(refusal)
        deployed = _deployed_whole(config, form, name)
        announce_to_user(deployed)
        if not stay:
            named = "" if name == APPLICATION else f" --name {name}"
            print(f"It stays on the cluster; headway down --address {address}{named} ends it.")
            return
        try:
            with stop_signals() as stopped:
                print("Ctrl-C ends it.", flush=True)
                wait_for(stopped)
        finally:
            with uninterrupted():
                delete(name)


def _deployed_whole(config: HeadwayConfig, form: Form, name: str) -> Deployed:
    """Deploy; what fails or is interrupted half way does not stay on the other's cluster."""
    try:
        return deploy(config, say, form, name)
    except AlreadyThere:
        raise
    except BaseException:
        with uninterrupted():
            delete(name)
        raise


def start_detached(config: str | None, form: Form = WHOLE) -> Deployed:
    """The verb as a process of its own; returns when it serves, CliError has its last words if not."""
    if ownership.is_up():
        raise CliError(ownership.already_up(ownership.current_or_none()))
    command = [sys.executable, "-m", "headway_cli", form.verb, *([] if config is None else [config])]
    with log_file().open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    say(f"starting in the background; {log_file()} has its output")
    within_s = (form.ready_within_s or load_config(config).engine.ready_within_s) + STARTING_RAY_S
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if child.poll() is not None:
            lines = log_file().read_text(encoding="utf-8", errors="replace").split("\n")
            said = [line for line in lines if line.startswith("headway: ")] or [
                f"it ended at once; see {log_file()}"
            ]
            raise CliError(said[-1].removeprefix("headway: "))
        owner = ownership.current_or_none()
        if owner is not None and owner.pid == child.pid and owner.url is not None:
            return Deployed(url=owner.url)
        time.sleep(POLL_S)
    child.terminate()
    raise CliError(f"not up after {within_s:g} s; see {log_file()}")


def stop_owner() -> str:
    """End the process that holds the lock; what there is to say. CliError if it does not end."""
    owner = ownership.current()
    if owner is None:
        return "nothing is up"
    os.kill(owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + GONE_WITHIN_S
    while ownership.is_up() or ownership.start_time(owner.pid) == owner.started:
        if time.monotonic() > deadline:
            raise CliError(f"process {owner.pid} has not ended within {GONE_WITHIN_S:g} s")
        time.sleep(POLL_S)
    return f"ended (process {owner.pid})"


def stop_on_cluster(address: str, name: str) -> str:
    """Delete the application from a cluster, and what actors have of it; what there is to say."""
    with cluster(address):
        return (
            "deleted the application and its actors" if delete(name) else f"no application {name} was there"
        )
