"""`headway down`: end what `headway up` started."""

import typer

from headway_cli.up import AddressOption


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("down")(down)


def down(address: AddressOption = None) -> None:
    """End what `headway up` started; with --address, delete the application from that cluster."""
    from headway_cli.stopping import stop_on_cluster, stop_owner

    print(stop_owner() if address is None else stop_on_cluster(address))
