"""`headway attach`: the control plane alone, for a fleet that others started. `headway down` ends it."""

from functools import partial
from typing import Annotated

from headway.config import HeadwayConfig
from headway_cli.control import ControlClient
from headway_cli.deployment import CONTROL_ALONE, Deployed
from headway_cli.errors import CliError
from headway_cli.flags import argument, switch
from headway_cli.live_checks import attach_settings
from headway_cli.up import AddressOption, InsecureOption, start_detached, stay_on_cluster, stay_up


def attach(
    config: Annotated[str, argument("CONFIG", "Settings (YAML): where metrics are, what is scaled.")],
    *,
    address: AddressOption = None,
    insecure: InsecureOption = False,
    detach: Annotated[bool, switch("--detach", "Return when it serves; headway down ends it.")] = False,
) -> None:
    """Plan for a fleet that others started: the control plane alone, on Ray; Ctrl-C ends it."""
    found = attach_settings(config)
    announce = partial(_announce, found)
    if address is None and found.connector.kind == "ray_serve":
        raise CliError(
            f"{config}: connector.kind: ray_serve scales an application of a Ray that runs: give --address"
        )
    if address is not None:
        stay_on_cluster(found, address, announce, stay=not detach, insecure=insecure, form=CONTROL_ALONE)
    elif detach:
        announce(start_detached(config, CONTROL_ALONE))
        print("It runs in the background; headway down ends it.")
    else:
        stay_up(found, announce, CONTROL_ALONE)


def _announce(config: HeadwayConfig, deployed: Deployed) -> None:
    """Print whether it acts, the addresses, and what it waits for before it can plan."""
    print(
        "Watches only (planner.dry_run)"
        if config.planner.dry_run
        else "Sets replica counts (no planner.dry_run)"
    )
    print(f"Live page   {deployed.url}/")
    print(f"Control     {deployed.url}/v1/control/status (headway status --url {deployed.url})")
    print(f"Metrics     {deployed.url}/metrics", flush=True)
    if why_not := deployed.waits_for or _waits_for(deployed.url):
        print(f"Not planning yet; it starts as soon as it can: {why_not}", flush=True)


def _waits_for(url: str) -> str:
    try:
        ControlClient(url=url, unverified=True).get("/ready")
    except CliError as error:
        return str(error)
    return ""
