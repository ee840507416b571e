"""`headway generate`: generated load as a trace file."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("generate")(generate)


def generate(
    spec: Annotated[
        str, typer.Argument(metavar="SPEC", help="Such as diurnal:rate_rps=20,amplitude=0.6,duration_s=7200.")
    ],
    output: Annotated[str, typer.Option(metavar="FILE", help="The trace; gzip if it ends in .gz.")],
    rate_scale: Annotated[float, typer.Option(metavar="K", help="Superpose K shifted copies.")] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed, where SPEC names none.")] = 0,
) -> None:
    """Write generated load (or any trace, scaled) as a trace file in the plain form."""
    from headway.workload import TraceOptions, open_trace, write_trace
    from headway_cli.output import check_outputs

    check_outputs({"--output": output}, (spec,))
    with open_trace(spec, TraceOptions(rate_scale=rate_scale, seed=seed)) as trace:
        write_trace(trace, Path(output))
        print(f"wrote {output}: {trace.request_count:,} requests in {trace.duration_s:g} s")
