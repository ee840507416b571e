"""A fleet on a Ray cluster: one application of gateway and control plane, and one for each deployment. Of an
attached fleet there is only one application, of the control plane.

The first `up` or `attach` starts all of it. Another one brings what runs to what the file says now:
deployments are added and removed, changed ones get their settings, and engines that have to start anew are
replaced by Serve one by one. Nothing happens to the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from json import dumps
from typing import TYPE_CHECKING, Any

from actors.applications import members_of
from actors.connectors import connector_kind
from actors.connectors.drift import target_of
from actors.connectors.protocol import DEPLOYMENTS
from actors.planning.settings import dump, fixed, value_at
from actors.store import InternalKvStore
from actors.stored import Kind, put, read
from headway.config import ConfigError, FleetConfig, HeadwayConfig
from headway.config.fleet import ONCE, check_fits
from headway.engine.rules import engine_profile
from headway.planning import Role, policy_settings
from headway.planning.deciding import gpus as gpus_of
from headway.planning.deciding import one_each
from headway.words import plural
from headway_cli.deployment import CONTROL_ALONE, Form, Say, delete_one, run, wait_until_running
from headway_cli.errors import CliError
from headway_cli.live_checks import check_live

if TYPE_CHECKING:
    from ray.serve import Application

NOT_OF_ENGINES = ("planner", "metrics", "connector", "share", "fleet", "spillover", "gpu_types")
"""Settings that engines do not go by, beside those that may change while they run."""


def fleet_settings(path: str, application: str, *, attached: bool = False) -> FleetConfig:
    """The settings of a fleet as this application needs them, checked. CliError, ConfigError."""
    from serve_apps.arguments import read_fleet

    fleet = read_fleet(path, application, attached=attached)
    for name, config in fleet.deployments.items():
        if attached and config.spillover is not None:
            raise ConfigError(
                f"{path}: deployments.{name}.spillover: others route to engines that they started"
            )
        if name == application:
            raise ConfigError(f"{path}: deployments.{name}: is the name of the gateway's application, too")
        try:
            own = config.model_copy(update={"gateway": _own(config, fleet.common)})
            check_live(own, None, engines=not attached)
        except CliError as error:
            raise CliError(f"{path}: deployments.{name}: {error}") from error
    _check_minimums(path, fleet)
    if attached:
        _check_targets(path, fleet)
    return fleet


def _check_targets(path: str, fleet: FleetConfig) -> None:
    """ConfigError where two deployments would set the counts of the same replicas."""
    whose = dict[str, str]()
    for name, config in fleet.deployments.items():
        if not connector_kind(config).decision_ids:
            other = whose.setdefault(target_of(config), name)
            if other != name:
                raise ConfigError(
                    f"{path}: deployments.{name}.connector: scales what {other} does; give each its own"
                )


def _check_minimums(path: str, fleet: FleetConfig) -> None:
    """ConfigError where not even the least replicas of all find room in the common budget, or beside those of
    the others what a deployment needs to serve.
    """
    for gpu_type, gpus in fleet.budgets.items():
        pools = {name: policy_settings(each).limits for name, each in fleet.of_budget(gpu_type).items()}
        least = {
            name: sum(each.min_replicas * each.gpus_per_replica for each in own.values())
            for name, own in pools.items()
        }
        check_fits(path, gpu_type, gpus, least, "min_replicas")
        shares = {name: each.share for name, each in fleet.of_budget(gpu_type).items()}
        floors = {name: max(count, shares[name].floor_gpus) for name, count in least.items()}
        check_fits(path, gpu_type, gpus, floors, "floors, or min_replicas where these are more,")
        for name, own in pools.items():
            beside = {**least, name: gpus_of(one_each(own), own)}
            ceiling = shares[name].ceiling_gpus
            if gpus is not None and ceiling is not None and ceiling < beside[name]:
                raise ConfigError(
                    f"{path}: deployments.{name}.share.ceiling_gpus: {ceiling} is below the "
                    f"{plural(beside[name], 'GPU')} for a replica of each pool, or min_replicas"
                )
            check_fits(path, gpu_type, gpus, beside, f"a replica of each pool of {name} beside min_replicas")


def _own(config: HeadwayConfig, common: HeadwayConfig) -> Any:  # noqa: ANN401 - its gateway's settings
    """Its settings of the gateway, with files as the common ones have them."""
    return config.gateway.model_copy(
        update={"keys_file": common.gateway.keys_file, "tls": common.gateway.tls}
    )


def fleet_form(fleet: FleetConfig) -> Form:
    """What `headway up` deploys for a fleet."""
    engines = plural(len(fleet.deployments), "deployment")
    return Form(
        verb="up",
        parts=f"gateway, control plane and the engines of {engines}",
        ingress="Gateway",
        build=lambda _: _front(fleet, attached=False),
        ready_within_s=_longest_s(fleet.deployments.values()),
        members={name: partial(_engines, config) for name, config in fleet.deployments.items()},
        empty={name: _empty(config) for name, config in fleet.deployments.items()},
    )


def attached_form(fleet: FleetConfig) -> Form:
    """What `headway attach` deploys for a fleet."""
    within_s, members = _longest_s(fleet.deployments.values()), dict.fromkeys(fleet.deployments)
    return replace(
        CONTROL_ALONE, build=lambda _: _front(fleet, attached=True), ready_within_s=within_s, members=members
    )


def _longest_s(deployments: Iterable[HeadwayConfig]) -> float:
    """Seconds in which the engines of all should be ready."""
    return max(each.engine.ready_within_s for each in deployments)


def _front(fleet: FleetConfig, *, attached: bool) -> "Application":
    from serve_apps.attached_fleet import attached_application
    from serve_apps.fleet_host import fleet_application

    put(InternalKvStore(), STARTED_WITH, _place(fleet), _once(fleet))
    return attached_application(fleet) if attached else fleet_application(fleet)


STARTED_WITH = Kind("fleet", dict[str, str])


def _place(fleet: FleetConfig) -> str:
    """The key of what the gateway was started with."""
    return f"fleets/{next(iter(fleet.deployments.values())).fleet.application}"


def _once(fleet: FleetConfig) -> dict[str, str]:
    """By dotted key, a checksum of each setting that a gateway has from its start."""
    whole = fleet.common.model_dump(mode="json")
    keys = [key.get_secret_value() for key in fleet.common.gateway.api_keys]
    found = {key: value_at(whole, key) for key in ONCE if key != "fleet"} | {"gateway.api_keys": keys}
    return {key: sha256(dumps(value, sort_keys=True).encode()).hexdigest() for key, value in found.items()}


def _engines(config: HeadwayConfig, counts: Mapping[str, int] | None = None) -> "Application":
    from serve_apps.builders import engines_alone

    return engines_alone(config, counts=counts)


def _empty(config: HeadwayConfig) -> list[str]:
    """The Serve deployments of pools that begin empty: a common budget need not hold a replica of each."""
    shares = config.fleet.gpus is not None and not config.planner.dry_run
    return [
        DEPLOYMENTS[Role(role)] for role, pool in config.pools.items() if shares and pool.min_replicas == 0
    ]


def _fitting(before: HeadwayConfig | None, now: HeadwayConfig, there: Mapping[str, int]) -> Mapping[str, int]:
    """Of the replicas that there are of a deployment whose engines have changed, as many as take no more GPUs
    of its budget, without those that may sleep: new ones are awake.
    """
    if before is None or before.fleet.gpu_type != now.fleet.gpu_type:
        return {}
    had, has = (policy_settings(each, engine_profile(each)).limits for each in (before, now))
    kept = dict[str, int]()
    for role in had.keys() & has.keys():
        awake = max(0, there.get(DEPLOYMENTS[role], 0) - had[role].sleepers)
        gpus = awake * had[role].gpus_per_replica
        kept[DEPLOYMENTS[role]] = min(awake, gpus // has[role].gpus_per_replica)
    return kept


def change(fleet: FleetConfig, application: str, say: Say) -> str:
    """Bring the fleet that this application serves to these settings; what has changed. CliError."""
    from actors.connectors.external_scaling import hand_over, replica_counts
    from actors.connectors.protocol import Refused
    from serve_apps.fleet_host import members

    before, now = members_of(InternalKvStore(), application), fleet.deployments
    started = read(InternalKvStore(), STARTED_WITH, _place(fleet), dict, own=False) or {}
    if other := [key for key, value in _once(fleet).items() if started.get(key, value) != value]:
        raise CliError(f"{', '.join(other)}: the gateway has this from its start; headway down first")
    if not before or _attached(before) != _attached(now):
        raise CliError(f"{application} serves no such fleet; headway down first")
    there = {
        name: replica_counts(name)
        for name, config in now.items()
        if not _attached(now) and (name not in before or _of_engines(before[name]) != _of_engines(config))
    }
    if there:
        say(f"starting the engines of {', '.join(there)}")
        _start_anew(there, before, now)
    # Before they run: on a common budget others have to make room for them first.
    try:
        hand_over(application, members(fleet))
    except Refused as error:
        raise CliError(str(error)) from error
    gone = [name for name in before if name not in now]
    for name in gone:
        say(f"ending {name}")
        delete_one(name)
    # Its own first: until the gateway lists what is new it answers 404 for it, and until the control plane
    # has it another change does not know that it is there.
    wait_until_running((application, *there), _longest_s(now.values()), say)
    changed = [name for name in now if name in before and dump(before[name]) != dump(now[name])]
    parts = {"new": [name for name in now if name not in before], "changed": changed, "gone": gone}
    said = [f"{kind}: {', '.join(names)}" for kind, names in parts.items() if names]
    return f"{'; '.join(said) or 'nothing has changed'}; serves {', '.join(now)}"


def _start_anew(
    there: Mapping[str, Mapping[str, int]],
    before: Mapping[str, HeadwayConfig],
    now: Mapping[str, HeadwayConfig],
) -> None:
    """Have Serve run the engines of these deployments, of which so many replicas are there. CliError."""
    from actors.connectors.external_scaling import let_go
    from actors.connectors.protocol import Unreachable

    counts = {name: _fitting(before.get(name), now[name], running) for name, running in there.items()}
    empty = {name: [one for one in _empty(now[name]) if not counts[name].get(one)] for name in there}
    try:
        for name, deployments in empty.items():
            for one in deployments:
                if there[name].get(one):
                    let_go(name, one)
    except Unreachable as error:
        raise CliError(str(error)) from error
    run({name: _engines(now[name], counts[name]) for name in there}, empty)


def _attached(deployments: Mapping[str, HeadwayConfig]) -> bool:
    """True where others run the engines of these."""
    return any(config.engine.kind == "external" for config in deployments.values())


def _of_engines(config: HeadwayConfig) -> Mapping[str, Any]:
    return {key: value for key, value in fixed(config).items() if key not in NOT_OF_ENGINES}
