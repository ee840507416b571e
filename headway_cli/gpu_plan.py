"""`headway gpu-plan`: the cheapest GPU types for a trace, in whole replicas."""

from dataclasses import dataclass
from typing import Annotated

import typer

from headway_cli.flags import spread
from headway_cli.options import Attainment, Duration, Itl, Start, TraceArgument, TraceFormat, Ttft


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlanOptions:
    """What is planned for; None means "not given": the configuration decides."""

    config: Annotated[str, typer.Option(metavar="FILE", help="Settings (YAML) with gpu_types.")]
    interval: Annotated[
        float | None, typer.Option(metavar="S", help="Also a plan for each S seconds of the trace.")
    ] = None
    max_types: Annotated[int | None, typer.Option(metavar="K", help="GPU types in one pool at most.")] = None
    switching: Annotated[
        float,
        typer.Option(metavar="SHARE", help="With --interval: running replicas count as this much cheaper."),
    ] = 0.1
    ttft_ms: Ttft = None
    itl_ms: Itl = None
    attainment: Attainment = None
    max_gpu_budget: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs of all types and pools together.")
    ] = None
    rate_scale: Annotated[float, typer.Option(metavar="K", help="Superpose K shifted copies.")] = 1.0
    start: Start = 0.0
    duration: Duration = None
    trace_format: TraceFormat = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of what is drawn.")] = None


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("gpu-plan")(gpu_plan)


@spread(GpuPlanOptions)
def gpu_plan(
    *,
    options: GpuPlanOptions,
    trace: TraceArgument,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the plan; - is standard output.")
    ] = None,
) -> None:
    """Choose GPU types and counts for a trace: the cheapest whole replicas that keep the SLO."""
    from headway_cli.gpu_plan_job import plan_trace
    from headway_cli.gpu_plan_tables import print_plan
    from headway_cli.output import STDOUT, check_outputs, write_json
    from headway_cli.progress import announce_compilation
    from headway_cli.solver_noise import stdout_of_c_to_stderr
    from headway_cli.tables import console

    check_outputs({"--json": json}, (trace, options.config))
    announce_compilation()
    with stdout_of_c_to_stderr():
        document = plan_trace(trace, options)
    if json is not None:
        write_json(json, document)
    print_plan(document, console(to_stderr=json == STDOUT))
