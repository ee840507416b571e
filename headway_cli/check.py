"""`headway check`: what `simulate` and `up` would refuse of a configuration file.

With `--attach` also one look at the source and the target of a control plane alone, without Ray.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import yaml

from headway.config import (
    CONNECTORS,
    ENGINES,
    POLICIES,
    ConfigError,
    HeadwayConfig,
    SloSettings,
    is_fleet,
    load_config,
    resolve_profile,
)
from headway.engine.nearest import Told, guess_text
from headway.engine.rules import engine_profile
from headway.planning import PoolLimits, Role, policy_settings
from headway.planning.policies import policy_kind
from headway.routing.decide.plugins import PLUGINS
from headway.routing.factory import make_pipelines
from headway.routing.fleet.gpu_profiles import serves
from headway.simulation.build import Plan, make_plan
from headway.words import milliseconds, shown
from headway.workload import open_trace
from headway.workload.formats import FORMATS
from headway.workload.known_files import known_file
from headway_cli.cluster import APPLICATION
from headway_cli.errors import CliError, CliErrors, is_wrong_input
from headway_cli.flags import argument, option, switch
from headway_cli.job import ANY_LOAD, Job
from headway_cli.live_checks import attach_settings, live_checks
from headway_cli.notes import tighter_classes, warm_up_notes, without_forecast, without_offload
from interp import Profile, load_profile


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
        elif (kind := known_file(Path(config))) is not None:
            raise CliError(f"{config}: taken for {kind.name}, not for a configuration")
        elif is_fleet(config) and not attach:
            _check_fleet(config)
        elif attach:
            _look_at_all(config) if is_fleet(config) else look(attach_settings(config), config)
        else:
            _check(load_config(config), config, config)
    except ConfigError as error:
        raise CliErrors(error.faults or [str(error)]) from error


def _check_fleet(config: str) -> None:
    """The same of each deployment."""
    from headway_cli.live_fleet import fleet_settings

    fleet = fleet_settings(config, APPLICATION)
    for name, settings in fleet.deployments.items():
        _check(settings, f"{config}: deployments.{name}", None)


def _look_at_all(config: str) -> None:
    """One look at the source and the target of each deployment. CliErrors with those that cannot be used."""
    from headway_cli.live_fleet import fleet_settings

    faults = []
    for name, settings in fleet_settings(config, APPLICATION, attached=True).deployments.items():
        try:
            look(settings, f"{config}: deployments.{name}")
        except CliError as error:
            faults.append(str(error))
    if faults:
        raise CliErrors(faults)


def _check(settings: HeadwayConfig, config: str, file: str | None) -> None:
    """Print what the settings come to; CliErrors with all that is wrong in them. `config` names them."""
    plan = _plan(settings, config, file)
    pools = " and ".join(plan.settings.limits)
    print(f"{config}: ok, {plan.policy.name} policy on {pools} pools, profile {plan.profile_name}")
    for note in (
        *(f"profile: {doubt}" for doubt in plan.profile.doubts),
        *warm_up_notes(plan),
        *without_offload(plan),
        *without_forecast(plan),
        *tighter_classes(plan),
    ):
        print(f"note: {note}")
    for point in (POLICIES, PLUGINS, ENGINES, CONNECTORS, FORMATS):
        for line in point.ignored():
            print(f"note: {line}")
    for gpu_type, name in settings.routing.gpu_profiles.items():
        print(f"GPU type {gpu_type}: {serves(plan.gpu_profiles[gpu_type])}, from {name}")


def _plan(settings: HeadwayConfig, config: str, file: str | None) -> Plan:
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
        *live_checks(settings, file),
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
    limits = make_plan(settings).settings.widest
    found = findings(settings, look_at(settings, address), limits, gateway_placed=placed)
    for one in found:
        print(f"{'ok' if one.ok else 'FAULT'}: {one.text}")
    if faults := sum(not one.ok for one in found):
        raise CliError(f"{path}: {faults} {'fault' if faults == 1 else 'faults'} on the cluster at {address}")


def _settings_of(path: str) -> tuple[HeadwayConfig, bool]:
    """The settings of a configuration file, or those that a Serve config file gives to our application.

    And whether a resource in the file places the gateway on a host.
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


if TYPE_CHECKING:
    from actors.collector.interval import Measured

LOOK_BACK_S = 60.0
"""What a Prometheus still knows."""
LOOK_S = 3.0
"""What others are watched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A look at the source or the target: can it be used, in words, its traffic, its replicas by role."""

    ok: bool
    text: str
    measured: "Measured | None" = None
    replicas: Mapping[str, int] = field(default_factory=dict)
    series: Sequence[str] = ()
    """What of the preset is there, quantity by quantity."""
    told: Told = field(default_factory=Told)


def look(config: HeadwayConfig, path: str) -> None:
    """Print what source and target answer; CliError if one of them cannot be used now."""
    pools = " and ".join(config.pools)
    named = config.engine.profile or "estimated"
    print(f"{path}: ok, {config.planner.policy} policy on {pools} pools, profile {named}")
    source, target = asyncio.run(_source(config)), asyncio.run(_target(config))
    asked = {"source": source, "target": target}
    if config.metrics.wake is not None:
        asked["wake"] = asyncio.run(_wake(config))
    for what, found in asked.items():
        print(f"{what}: {found.text}")
        for line in found.series:
            print(f"  {line}")
    profile = engine_profile(config, source.told)
    if guess := guess_text(profile.meta):
        print(f"profile: {guess}; headway profile --fleet measures yours")
    limits = policy_settings(config, profile).widest
    for line in (
        *_too_many({**source.replicas, **target.replicas}, limits, config.planner.max_gpu_budget),
        *_too_slow(config.slo, profile, source.measured),
    ):
        print(f"note: {line}")
    if "wake" in asked and target.replicas and not any(target.replicas.values()):
        # While no engine runs it stands for the source.
        del asked["source"]
    if missing := [what for what, found in asked.items() if not found.ok]:
        raise CliError(f"{path}: {' and '.join(missing)} cannot be used now")


def _too_many(
    replicas: Mapping[str, int], limits: Mapping[Role, PoolLimits], budget: int | None
) -> Iterator[str]:
    """Limits that the fleet exceeds now."""
    gpus = 0
    for role, pool in limits.items():
        count, most = replicas.get(role, 0), pool.max_replicas
        gpus += count * pool.gpus_per_replica
        if count > most:
            yield (
                f"{count} {role} replicas are running and pools.{role}.max_replicas is {most}: "
                f"the first decision that acts stops {count - most}"
            )
    if budget is not None and gpus > budget:
        yield (
            f"the running replicas use {gpus} GPUs and planner.max_gpu_budget is {budget}: "
            "the first decision that acts stops some"
        )


def _too_slow(slo: SloSettings, profile: Profile, measured: "Measured | None") -> Iterator[str]:
    """Targets that are unreachable, even when idle, by the profile."""
    if measured is None or isnan(measured.isl_tokens):
        return
    isl = measured.isl_tokens
    for key, target_ms, idle_s, engines_s in (
        ("ttft_ms", slo.ttft_ms, float(profile.prefill.ttft_s(isl)), measured.ttft_s.mean),
        ("itl_ms", slo.itl_ms, float(profile.decode.itl_s(0.0, isl)), measured.itl_s.mean),
    ):
        if idle_s * 1e3 > target_ms:
            seen = "" if isnan(engines_s) else f", and these engines take {milliseconds(engines_s)}"
            yield (
                f"slo.{key} {target_ms:g}: unreachable, even when idle: by the profile a prompt of "
                f"{shown(isl)} tokens takes {milliseconds(idle_s)} ms{seen}"
            )


class _KeepsNothing:
    """A store for one look: nothing comes after it that could need what was seen."""

    def get(self, key: str) -> bytes | None:
        """Nothing."""
        return None

    def put(self, key: str, value: bytes) -> None:
        """Forget it."""

    def delete(self, key: str) -> None:
        """Nothing is there."""

    def keys(self, prefix: str = "") -> list[str]:
        """None."""
        return []


async def _source(config: HeadwayConfig) -> Found:
    """Whether metrics of the model can be read, and what the last minute was like."""
    from actors.metric_collector import MetricCollector

    collector = MetricCollector(config.model_dump_json(), store=_KeepsNothing())
    try:
        ok, reason = await collector.ready()
        status, series, told = await collector.status(), await collector.inventory(), await collector.told()
        where = f"{config.metrics.source} {status['url']}, preset {config.metrics.preset}"
        if not ok:
            return Found(ok=False, text=f"{where}: {reason}", series=series)
        span_s = LOOK_BACK_S if config.metrics.source == "prometheus" else LOOK_S
        if span_s == LOOK_S:
            await collector.collect(span_s)
            await asyncio.sleep(span_s)
        found = await collector.collect(span_s)
        roles = await collector.engines()
        status = await collector.status()
    finally:
        await collector.close()
    counted = ", ".join(f"{count} {role}" for role, count in roles.items())
    more = f"; engines: {counted}" * bool(counted) + f"; not read: {status.get('unread')}" * bool(
        status.get("unread")
    )
    if isnan(found.requests):
        text = f"{where}: has {config.model}; the last {span_s:g} s: {found.health.detail}{more}"
        return Found(ok=True, text=text, replicas=roles, series=series, told=told)
    isl, osl = (None if isnan(mean) else mean for mean in (found.isl_tokens, found.osl_tokens))
    health = ": ".join(filter(None, (found.health.status, found.health.detail)))
    seen = f"{found.requests:.0f} requests in the last {span_s:g} s, ISL {shown(isl)}, OSL {shown(osl)}"
    text = f"{where}: {config.model}: {seen}; data {health}{more}"
    return Found(ok=True, text=text, measured=found, replicas=roles, series=series, told=told)


async def _wake(config: HeadwayConfig) -> Found:
    """Whether the query for requests that wait for a sleeping model can be asked, and what it says."""
    from actors.collector.exposition import SourceDownError
    from actors.collector.wake_query import WakeQuery

    query = WakeQuery(config.metrics, config.model)
    try:
        waiting = await query.waiting()
    except SourceDownError as error:
        return Found(ok=False, text=str(error))
    finally:
        await query.close()
    if waiting is None:
        return Found(ok=True, text="nothing is found, which counts as no request: is the query right?")
    return Found(ok=True, text=f"{waiting:g} requests wait")


async def _target(config: HeadwayConfig) -> Found:
    """Whether the target can be read, and its counts."""
    from actors.connectors import connector_kind, make_connector
    from actors.connectors.protocol import ConnectorError

    kind = config.connector.kind
    if connector_kind(config).decision_ids:
        text = f"{kind}: an outside system fetches decisions at /v1/scaling and answers them"
        return Found(ok=True, text=text)
    if kind == "ray_serve":
        served = config.connector.ray_serve.application
        text = f"{kind}: application {served} is seen from its Ray only: headway attach --address"
        return Found(ok=True, text=text)
    connector = make_connector(config, "headway")
    try:
        ready, pools = await connector.ready(), await connector.state()
    except ConnectorError as error:
        return Found(ok=False, text=f"{kind}: {error}")
    counts = ", ".join(f"{role} {pool.ready} of {pool.desired} ready" for role, pool in pools.items())
    return Found(
        ok=ready.ok,
        text=f"{kind}: {ready.reason + '; ' if ready.reason else ''}{counts}",
        replicas={role.value: pool.desired for role, pool in pools.items()},
    )
