"""How `headway down` ends what is up: it asks the process that owns it, and waits until all is gone."""

import os
import signal
import time

from headway_cli import ownership
from headway_cli.cluster import cluster
from headway_cli.deployment import delete
from headway_cli.errors import CliError

GONE_WITHIN_S = 120.0
POLL_S = 0.1


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


def stop_on_cluster(address: str) -> str:
    """Delete the application and the control plane's actors from a cluster; what there is to say."""
    with cluster(address):
        return "deleted the application and its actors" if delete() else "no application headway was there"
