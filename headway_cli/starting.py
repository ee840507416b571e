"""How `headway up` starts and how it ends: in the foreground, on another's cluster, in the background.

Whatever ends it (Ctrl-C, SIGTERM of `headway down`, an error), what it started is gone before it exits;
while it cleans up, further interrupts are ignored.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.config import HeadwayConfig
from headway_cli import ownership
from headway_cli.cluster import cluster
from headway_cli.deployment import AlreadyThere, Deployed, delete, deploy
from headway_cli.errors import CliError
from headway_cli.ownership import announce, log_file, owning
from headway_cli.progress import say
from headway_cli.signals import stop_signals, uninterrupted

Announce = Callable[[Deployed], None]
Tell = Callable[[str | None, Path | None], None]

STARTED_WITHIN_S = 420.0
POLL_S = 0.2


def nobody(_url: str | None, _directory: Path | None) -> None:
    """Who hears of nothing."""


def stay_up(config: HeadwayConfig, announce_to_user: Announce) -> None:
    """A local Ray with everything on it, until this process is told to end."""
    with owning(), running(config, announce) as deployed, stop_signals() as told_to_stop:
        announce_to_user(deployed)
        print("Ctrl-C ends it.", flush=True)
        told_to_stop.wait()


@contextmanager
def running(config: HeadwayConfig, tell: Tell = nobody) -> Iterator[Deployed]:
    """Everything on a local Ray, as long as the block lasts. `tell` hears of address and directory."""
    tell(None, None)
    say("starting Ray")
    with cluster(None) as ray_cluster:
        tell(None, ray_cluster.directory)
        deployed = deploy(config, say)
        tell(deployed.url, ray_cluster.directory)
        yield deployed
        say("stopping")


def stay_on_cluster(config: HeadwayConfig, address: str, announce_to_user: Announce, *, stay: bool) -> None:
    """The application on a cluster that is there; it goes when this process does, unless `stay` is False."""
    with cluster(address):
        deployed = _deployed_whole(config)
        announce_to_user(deployed)
        if not stay:
            print(f"It stays on the cluster; headway down --address {address} ends it.")
            return
        try:
            with stop_signals() as told_to_stop:
                print("Ctrl-C ends it.", flush=True)
                told_to_stop.wait()
        finally:
            with uninterrupted():
                delete()


def _deployed_whole(config: HeadwayConfig) -> Deployed:
    """What failed or was interrupted half way does not stay on the other's cluster."""
    try:
        return deploy(config, say)
    except AlreadyThere:
        raise
    except BaseException:
        with uninterrupted():
            delete()
        raise


def start_detached(config: str | None) -> Deployed:
    """`headway up` as a process of its own; returns when it serves, CliError has its last words if not."""
    if ownership.is_up():
        raise CliError(ownership.already_up(ownership.current_or_none()))
    command = [sys.executable, "-m", "headway_cli", "up", *([] if config is None else [config])]
    with log_file().open("wb") as log:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    say(f"starting in the background; {log_file()} has its output")
    deadline = time.monotonic() + STARTED_WITHIN_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise CliError(_last_words())
        owner = ownership.current_or_none()
        if owner is not None and owner.pid == child.pid and owner.url is not None:
            return Deployed(url=owner.url)
        time.sleep(POLL_S)
    child.terminate()
    raise CliError(f"not up after {STARTED_WITHIN_S:g} s; see {log_file()}")


def _last_words() -> str:
    lines = log_file().read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line for line in lines if line.startswith("headway: ")]
    return said[-1].removeprefix("headway: ") if said else f"it ended at once; see {log_file()}"
