"""`headway check`: what `simulate` and `up` would refuse of a configuration file."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import yaml

from headway.config import (
    CONNECTORS,
    ENGINES,
    POLICIES,
    ConfigError,
    HeadwayConfig,
    load_config,
    resolve_profile,
)
from headway.planning.policies import policy_kind
from headway.routing.decide.plugins import PLUGINS
from headway.routing.factory import make_pipelines
from headway.routing.fleet.gpu_profiles import serves
from headway.simulation.build import Plan, make_plan
from headway.workload import open_trace
from headway.workload.formats import FORMATS
from headway_cli.errors import CliError, CliErrors, is_wrong_input
from headway_cli.flags import argument, option, switch
from headway_cli.fleet import look
from headway_cli.job import Job
from headway_cli.live_checks import attach_settings, live_checks
from headway_cli.notes import tighter_classes, without_forecast, without_offload
from interp import load_profile

ANY_LOAD = "steady:rate_rps=1,duration_s=10"
"""Stands for a trace, so that everything that `simulate` would refuse is refused."""


def check(
    config: Annotated[str, argument("CONFIG", "A configuration file (YAML).")],
    *,
    cluster: Annotated[
        str | None,
        option("ADDR", "A Ray cluster: does the configuration, or a Serve config file, fit it?", "--cluster"),
    ] = None,
    attach: Annotated[
        bool, switch("--attach", "For `headway attach`: also ask the source and the target, a line each.")
    ] = False,
) -> None:
    """Validate a configuration file: keys and values, and what `simulate` and `up` would refuse."""
    try:
        if cluster is not None:
            check_cluster(config, cluster)
        elif attach:
            look(attach_settings(config), config)
        else:
            _check(load_config(config), config)
    except ConfigError as error:
        raise CliErrors(error.faults or [str(error)]) from error


def _check(settings: HeadwayConfig, config: str) -> None:
    """Print what the settings come to; CliErrors with all that is wrong in them."""
    plan = _plan(settings, config)
    pools = " and ".join(plan.settings.limits)
    print(f"{config}: ok, {plan.policy.name} policy on {pools} pools, profile {plan.profile_name}")
    for note in (*without_offload(plan), *without_forecast(plan), *tighter_classes(plan)):
        print(f"note: {note}")
    for point in (POLICIES, PLUGINS, ENGINES, CONNECTORS, FORMATS):
        for line in point.ignored():
            print(f"note: {line}")
    for gpu_type, name in settings.routing.gpu_profiles.items():
        print(f"GPU type {gpu_type}: {serves(plan.gpu_profiles[gpu_type])}, from {name}")
    if settings.gpu_types:
        print(f"GPU types of gpu-plan: {', '.join(settings.gpu_types)}")


def _plan(settings: HeadwayConfig, config: str) -> Plan:
    """The plan that `simulate` would begin with; CliErrors has what it, `up` and a gateway would refuse."""
    from serve_apps.arguments import refuse_fleets_of_others

    job = Job(trace=ANY_LOAD, config=settings, settings_file=config)
    plans: list[Plan] = []

    def simulated() -> None:
        plan = job.warmed_plan()
        with open_trace(job.trace) as trace:
            job.scenario(plan, trace)
        plans.append(plan)

    steps = (
        lambda: refuse_fleets_of_others(settings),
        # What the plan begins with, each by itself: it ends at the first fault.
        lambda: resolve_profile(settings.engine.profile),
        lambda: policy_kind(settings.planner.policy),
        lambda: make_pipelines(settings.routing),
        simulated,
        *(_profile_of(name, kind.profile) for name, kind in settings.gpu_types.items()),
        *live_checks(settings, config),
    )
    problems: dict[str, None] = {}
    for step in steps:
        try:
            step()
        except Exception as error:
            if not is_wrong_input(error):
                raise
            problems[f"{config}: {str(error).removeprefix(f'{config}: ')}"] = None
    if problems:
        raise CliErrors(list(problems))
    return plans[0]


def _profile_of(gpu_type: str, profile: str) -> Callable[[], object]:
    return lambda: load_profile(resolve_profile(profile, key=f"gpu_types.{gpu_type}.profile"))


def check_cluster(path: str, address: str) -> None:
    """Print what of a configuration fits the cluster; CliError where something does not."""
    from headway_cli.cluster_check import findings
    from headway_cli.cluster_facts import look as look_at

    settings, placed = _settings_of(path)
    limits = make_plan(settings).settings.limits
    found = findings(settings, look_at(settings, address), limits, gateway_placed=placed)
    for one in found:
        print(f"{'ok' if one.ok else 'FAULT'}: {one.text}")
    if faults := sum(not one.ok for one in found):
        raise CliError(f"{path}: {faults} {'fault' if faults == 1 else 'faults'} on the cluster at {address}")


def _settings_of(path: str) -> tuple[HeadwayConfig, bool]:
    """The settings of a configuration file, or those that a Serve config file gives to our application.

    And whether the file says by a resource on which host the gateway runs.
    """
    from serve_apps.arguments import Topology, read_arguments

    try:
        tree = yaml.safe_load(Path(path).read_bytes())
    except (OSError, yaml.YAMLError):
        tree = None
    applications = tree.get("applications") if isinstance(tree, dict) else None
    if applications is None:
        return load_config(path), False
    for application in applications:
        builder = str(application.get("import_path", ""))
        if builder.startswith("serve_apps."):
            topology: Topology = "aggregated" if builder.startswith("serve_apps.agg") else "disaggregated"
            options = [
                item.get("ray_actor_options") or {}
                for item in application.get("deployments") or []
                if item.get("name") == "Gateway"
            ]
            placed = any(each.get("resources") for each in options)
            return read_arguments(application.get("args") or {}, topology), placed
    raise CliError(f"{path}: no application of it has an import_path in serve_apps")
