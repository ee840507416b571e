"""`headway set`: change SLO, budget or pool limits of a running deployment."""

from typing import Annotated

import typer

from headway_cli.control import UrlOption
from headway_cli.load_options import KEY_VARIABLE, KeyVariable


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("set")(set_)


def set_(
    changes: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE...", help="Such as slo.ttft_ms=250 planner.max_gpu_budget=null."),
    ],
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
) -> None:
    """Change settings of a running planner: SLO, GPU budget, minimum and maximum replicas."""
    from json import dumps

    from headway_cli.control import client
    from headway_cli.settings_text import parse_changes

    print(dumps(client(url, api_key_env).patch("/v1/control/settings", parse_changes(changes)), indent=1))
