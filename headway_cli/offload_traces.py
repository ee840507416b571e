"""`headway offload-traces`: when what happened to the latest requests with an offload decision."""

from typing import Annotated

import typer

from headway_cli.control import UrlOption
from headway_cli.load_options import KEY_VARIABLE, KeyVariable

PATH = "/v1/control/offload-traces"
SHOWN = 20


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("offload-traces")(offload_traces)


def offload_traces(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    limit: Annotated[int, typer.Option(metavar="N", help="The last N requests.", min=1, max=10_000)] = SHOWN,
) -> None:
    """Show where long prompts were computed and when, as JSON lines: document 004's time stamps."""
    from json import dumps

    from headway_cli.control import client

    for trace in client(url, api_key_env).get(f"{PATH}?limit={limit}")["traces"]:
        print(dumps(trace))
