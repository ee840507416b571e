"""`headway status`: the pools, SLO attainment, the last decision and why, and how the parts are."""

from typing import TYPE_CHECKING, Annotated

import typer

from headway_cli.control import UrlOption
from headway_cli.load_options import KEY_VARIABLE, KeyVariable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headway_cli.control import ControlClient

PATH = "/v1/control/status"
PERIOD_S = 1.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("status")(status)


def status(
    *,
    url: UrlOption = None,
    api_key_env: KeyVariable = KEY_VARIABLE,
    json: Annotated[bool, typer.Option("--json", help="Print the document as the server sends it.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it once a second until Ctrl-C.")] = False,
) -> None:
    """Show a running deployment: pools, SLO attainment, the last decision and why."""
    from json import dumps

    from headway_cli.control import client
    from headway_cli.status_view import status_view
    from headway_cli.tables import console

    server = client(url, api_key_env)
    document = server.get(PATH)
    if json:
        print(dumps(document, indent=1))
    elif watch:
        _watch(server)
    else:
        console().print(status_view(document, server.url))


def _watch(server: "ControlClient") -> None:
    from time import sleep

    from rich.live import Live

    from headway_cli.tables import console

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(_read(server), refresh=True)
            sleep(PERIOD_S)


def _read(server: "ControlClient") -> "RenderableType":
    """The view, or the fault: a server that restarts is watched on."""
    from rich.text import Text

    from headway_cli.errors import CliError
    from headway_cli.status_view import status_view

    try:
        return status_view(server.get(PATH), server.url)
    except CliError as error:
        return Text(str(error), style="bold red")
