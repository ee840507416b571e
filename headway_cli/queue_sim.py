"""`headway queue-sim`: routing and queue policies of document 003 on patterns and consumers."""

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("queue-sim")(queue_sim)


def queue_sim(
    *,
    setup: Annotated[
        str, typer.Option(metavar="NAME", help="ideal-single, ideal-double, multi, or a YAML file.")
    ] = "multi",
    policies: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Separated by commas: random-push, least-load-push, least-load-pull, bin-pack-pull, each "
            "with :simple, :slo or :slo-savable, or without for all three. Else everything.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Independent runs of each policy.")] = 20,
    requests: Annotated[int | None, typer.Option(metavar="N", help="Requests in a run; else 4000.")] = None,
    duration: Annotated[
        float | None, typer.Option(metavar="S", help="Or: the requests that arrive in S seconds.")
    ] = None,
    consumers: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs, where all are of one type; else the set-up's.")
    ] = None,
    rate_scale: Annotated[float, typer.Option(metavar="K", help="Arrival rates times K.")] = 1.0,
    service: Annotated[
        str, typer.Option(metavar="KIND", help="Latencies: deterministic, or exponential with that mean.")
    ] = "deterministic",
    passing: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="When bin-pack-pull may start a request before one that does not fit: never, slack (while "
            "that one can still meet its SLO), always.",
        ),
    ] = "slack",
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results; - is standard output.")
    ] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="Write charts as an HTML page.")] = None,
) -> None:
    """Compare push and pull, simple and SLO-aware queues: waits and SLO violations, over many seeds."""
    from pathlib import Path

    from headway.simulation.queueing import run_experiment
    from headway_cli.output import STDOUT, check_outputs, write_json, write_text
    from headway_cli.page.queue_sim import render
    from headway_cli.progress import bar
    from headway_cli.queue_sim_document import make_document
    from headway_cli.queue_sim_options import Asked, experiment_of
    from headway_cli.queue_sim_tables import print_document
    from headway_cli.tables import console

    asked = Asked(
        setup=setup,
        policies=policies,
        seeds=seeds,
        requests=requests,
        duration_s=duration,
        consumers=consumers,
        rate_scale=rate_scale,
        service=service,
        passing=passing,
    )
    check_outputs({"--json": json, "--plot": plot}, (setup,))
    experiment = experiment_of(asked)
    with bar(f"{seeds} seeds of {len(experiment.policies)} policies") as report:
        document = make_document(experiment, run_experiment(experiment, report))
    if json is not None:
        write_json(json, document)
    if plot is not None:
        write_text(Path(plot), render(document))
    print_document(document, console(to_stderr=json == STDOUT))
