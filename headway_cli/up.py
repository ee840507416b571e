"""`headway up`: the whole system on a Ray of its own, or on a cluster that is there."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headway_cli.deployment import Deployed

AddressOption = Annotated[
    str | None,
    typer.Option("--address", metavar="ADDR", help="A Ray cluster that runs already, such as auto."),
]


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("up")(up)


def up(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="Settings (YAML); default: the defaults.")
    ] = None,
    *,
    address: AddressOption = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it serves; headway down ends it.")
    ] = False,
) -> None:
    """Start gateway, engines and control plane on Ray, and print the addresses; Ctrl-C ends it."""
    from headway_cli.deployment import settings
    from headway_cli.starting import start_detached, stay_on_cluster, stay_up

    found = settings(config)
    if address is not None:
        stay_on_cluster(found, address, _announce, stay=not detach)
    elif detach:
        _announce(start_detached(config))
        print("It runs in the background; headway down ends it.")
    else:
        stay_up(found, _announce)


def _announce(deployed: "Deployed") -> None:
    """Where to go."""
    print(f"OpenAI API  {deployed.openai_url}")
    print(f"Control     {deployed.url}/v1/control/status (headway status --url {deployed.url})", flush=True)
