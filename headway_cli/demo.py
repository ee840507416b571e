"""`headway demo`: the whole system live on this machine, following a load; or a simulated day."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    *,
    output: Annotated[str, typer.Option(metavar="FILE", help="Where the page goes.")] = "out/demo.html",
    duration: Annotated[
        float, typer.Option(metavar="S", help="Seconds of load, live.", min=30.0, max=86400.0)
    ] = 150.0,
    keep: Annotated[bool, typer.Option("--keep", help="Leave it up afterwards, until Ctrl-C.")] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulate a made-up day in seconds, without Ray.")
    ] = False,
) -> None:
    """Run everything on a local Ray with simulated engines, and watch replica counts follow a load."""
    from headway_cli.output import check_outputs

    _make_parent(Path(output))
    check_outputs({"--output": output})
    if simulate:
        from headway_cli.demo_day import simulate_day

        simulate_day(output)
    else:
        from headway_cli.demo_live import run_demo

        run_demo(duration_s=duration, output=Path(output), keep=keep)


def _make_parent(output: Path) -> None:
    """Only the default's own folder is made; a path that the user named must exist."""
    if output.parent == Path("out"):
        output.parent.mkdir(exist_ok=True)
