"""`headway check`: is this configuration file valid, and does what it names exist?"""

from typing import Annotated

import typer

ANY_LOAD = "steady:rate_rps=1,duration_s=10"
"""Stands for a trace, so that everything that `simulate` would refuse is refused."""


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("check")(check)


def check(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A configuration file (YAML).")],
) -> None:
    """Validate a configuration file: keys and values, and what `simulate` and `up` would refuse."""
    from headway.config import load_config
    from headway.routing.gpu_profiles import serves
    from headway.workload import open_trace
    from headway_cli.job import Job
    from headway_cli.live_check import check_live
    from headway_cli.notes import tighter_classes, without_forecast, without_offload

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
    for gpu_type, name in settings.routing.gpu_profiles.items():
        print(f"GPU type {gpu_type}: {serves(plan.gpu_profiles[gpu_type])}, from {name}")
    if settings.gpu_types:
        from headway.planning.gpu_types import candidates

        print(f"GPU types of gpu-plan: {', '.join(candidates(settings))}")
