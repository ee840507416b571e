"""`headway attach`: the control plane alone, for engines that others started, of one model or of a fleet."""

from functools import partial
from typing import Annotated

from headway.config import FleetConfig, HeadwayConfig, is_fleet
from headway.engine.nearest import guess_text
from headway.engine.rules import engine_profile
from headway_cli.cluster import APPLICATION
from headway_cli.control import ControlClient
from headway_cli.deployment import CONTROL_ALONE, Deployed
from headway_cli.errors import CliError
from headway_cli.flags import argument, switch
from headway_cli.live_checks import attach_settings
from headway_cli.live_fleet import attached_form, fleet_settings
from headway_cli.up import (
    AddressOption,
    InsecureOption,
    NameOption,
    Place,
    Start,
    announce_pages,
    effective,
    start,
)


def attach(
    config: Annotated[str, argument("CONFIG", "Settings (YAML): where metrics are, what is scaled.")],
    *,
    address: AddressOption = None,
    name: NameOption = None,
    insecure: InsecureOption = False,
    detach: Annotated[bool, switch("--detach", "Return when it serves; headway down ends it.")] = False,
) -> None:
    """Plan for a fleet that others started: the control plane alone, on Ray; Ctrl-C ends it."""
    fleet = fleet_settings(config, name or APPLICATION, attached=True) if is_fleet(config) else None
    if fleet is None:
        found, form = attach_settings(config), CONTROL_ALONE
    else:
        found, form = fleet.common, attached_form(fleet)
    each = [found] if fleet is None else list(fleet.deployments.values())
    if address is None and any(one.connector.kind == "ray_serve" for one in each):
        raise CliError(
            f"{config}: connector.kind: ray_serve scales an application of a Ray that runs: give --address"
        )
    told = partial(_announce_control, found, fleet)
    start(Start(found, form, told, fleet, config), Place(address, name, insecure=insecure, detach=detach))


def _announce_control(config: HeadwayConfig, fleet: FleetConfig | None, deployed: Deployed) -> None:
    """Print whether it acts, the addresses, and what it waits for before it can plan."""
    if fleet is None:
        print(_acts(effective(config)))
    for name, each in ({} if fleet is None else fleet.deployments).items():
        print(f"Deployment  {name}: {deployed.url}/deployments/{name}/  {_acts(each)}")
    announce_pages(config, deployed.url)
    print(f"Metrics     {deployed.url}/metrics", flush=True)
    if fleet is None and (guess := guess_text(engine_profile(config).meta)):
        print(f"Profile     {guess} (status: by what the engines say)", flush=True)
    if why_not := deployed.waits_for or _waits_for(deployed.url):
        print(f"Not planning yet; it starts as soon as it can: {why_not}", flush=True)


def _acts(config: HeadwayConfig) -> str:
    return (
        "Watches only (planner.dry_run)"
        if config.planner.dry_run
        else "Sets replica counts (no planner.dry_run)"
    )


def _waits_for(url: str) -> str:
    try:
        ControlClient(url=url, unverified=True).get("/ready")
    except CliError as error:
        return str(error)
    return ""
