"""`headway check`: is this configuration file valid, and does what it names exist?"""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("check")(check)


def check(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A configuration file (YAML).")],
) -> None:
    """Validate a configuration file: keys and values, profile, policy and predictor."""
    from headway.config import load_config
    from headway_cli.job import Job

    plan = Job(trace="", config=load_config(config), settings_file=config).plan()
    pools = " and ".join(plan.settings.limits)
    print(f"{config}: ok, {plan.policy.name} policy on {pools} pools, profile {plan.profile_name}")
