"""`headway check`: what `simulate` and `up` would refuse of a configuration file."""

from typing import Annotated

from headway.config import CONNECTORS, ENGINES, POLICIES, ConfigError, HeadwayConfig, load_config
from headway.planning import PlanningError
from headway.routing.gpu_profiles import serves
from headway.routing.plugins import PLUGINS
from headway.studies.gpu_mix import candidates
from headway.workload import open_trace
from headway.workload.formats import FORMATS
from headway_cli.errors import CliError
from headway_cli.flags import argument
from headway_cli.job import Job
from headway_cli.notes import tighter_classes, without_forecast, without_offload

ANY_LOAD = "steady:rate_rps=1,duration_s=10"
"""Stands for a trace, so that everything that `simulate` would refuse is refused."""


def check(config: Annotated[str, argument("CONFIG", "A configuration file (YAML).")]) -> None:
    """Validate a configuration file: keys and values, and what `simulate` and `up` would refuse."""
    settings = load_config(config)
    job = Job(trace=ANY_LOAD, config=settings, settings_file=config)
    plan = job.warmed_plan()
    with open_trace(job.trace) as trace:
        job.scenario(plan, trace)
    check_live(settings, config)
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
        print(f"GPU types of gpu-plan: {', '.join(candidates(settings))}")


def check_live(config: HeadwayConfig, path: str | None) -> None:
    """Check what only live operation needs: keys, tokenizer, model, Kubernetes object, planner.

    CliError names file and key.
    """
    from actors.connectors import connector_problems
    from actors.connectors.protocol import Refused
    from actors.planning.context import refuse_simulated_only
    from serve_apps.gateway.app import make_access

    try:
        refuse_simulated_only(config)
        make_access(config.gateway)
        _check_engine(config, path)
        if problems := connector_problems(config):
            raise ConfigError("; ".join(problems))
    except (ConfigError, PlanningError, Refused) as error:
        raise CliError(f"{path}: {error}" if path else str(error)) from error


def _check_engine(config: HeadwayConfig, path: str | None) -> None:
    """Check the engine and its tokenizer; a model is looked for beside the file."""
    from headway.engine.kinds import engine_kind
    from serve_apps.arguments import beside
    from serve_apps.gateway.request import make_prompts

    kind = engine_kind(config)
    found = beside(path) if kind.file_settings else config
    kind.check_here(found)
    with kind.quiet():
        kind.check_accepted(found)
        make_prompts(found)
