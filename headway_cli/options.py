"""The flags that `simulate` and `compare` share. None means "not given": the configuration decides."""

from dataclasses import dataclass
from typing import Annotated

import typer

from headway_cli.flags import spread

__all__ = ["RunOptions", "TraceArgument", "spread"]

Ttft = Annotated[float | None, typer.Option(metavar="MS", help="Target: time to first token.")]
Itl = Annotated[float | None, typer.Option(metavar="MS", help="Target: time between tokens.")]
Attainment = Annotated[
    float | None, typer.Option(metavar="SHARE", help="Share of requests that should meet both targets.")
]
Start = Annotated[float, typer.Option(metavar="S", help="Leave out the first S seconds.")]
Duration = Annotated[float | None, typer.Option(metavar="S", help="Use S seconds of the trace.")]
TraceFormat = Annotated[
    str | None,
    typer.Option("--format", metavar="F", help="plain, azure, burstgpt or mooncake; else detected."),
]

TraceArgument = Annotated[
    str, typer.Argument(metavar="TRACE", help="A trace file, or generated load such as steady:rate_rps=20.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One simulation's settings as flags; latencies in milliseconds, as people write them."""

    profile: Annotated[
        str | None, typer.Option(metavar="DIR", help="Profile directory, or the name of an embedded profile.")
    ] = None
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings (YAML); flags override its keys.")
    ] = None
    ttft_ms: Ttft = None
    itl_ms: Itl = None
    attainment: Attainment = None
    predictor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Load predictor: constant, arima, kalman, prophet.")
    ] = None
    load_predictor_warmup_trace: Annotated[
        str | None, typer.Option(metavar="TRACE", help="A trace that the predictors see beforehand.")
    ] = None
    no_correction: Annotated[
        bool, typer.Option("--no-correction", help="Keep the correction factors of `reference` at 1.")
    ] = False
    adjustment_interval: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds between two decisions.")
    ] = None
    max_gpu_budget: Annotated[
        int | None, typer.Option(metavar="N", help="GPUs that all pools together may occupy.")
    ] = None
    max_replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Replicas that each pool may have.")
    ] = None
    initial: Annotated[
        str | None,
        typer.Option(metavar="FLEET", help="Fleet at the start: sized, min, or prefill=2,decode=3."),
    ] = None
    aggregated: Annotated[
        bool, typer.Option("--aggregated", help="One pool of replicas that do both prefill and decode.")
    ] = False
    routing: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Scheduling profile: random, round_robin, least_load, bin_pack, prefix, default, slo, pull, "
            "pull_bin_pack, or one of the settings.",
        ),
    ] = None
    rate_scale: Annotated[
        float | None, typer.Option(metavar="K", help="Superpose K shifted copies of the trace; else 1.")
    ] = None
    start: Start = 0.0
    duration: Duration = None
    trace_format: TraceFormat = None
    start_up_delay: Annotated[
        float | None, typer.Option(metavar="S", help="Mean seconds until a new replica is ready.")
    ] = None
    start_up_cv: Annotated[
        float | None, typer.Option(metavar="C", help="Coefficient of variation of that delay.")
    ] = None
    chunk_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Prompt tokens per prefill iteration (chunked batching).")
    ] = None
    max_batch: Annotated[int | None, typer.Option(metavar="N", help="Requests in one decode batch.")] = None
    prefix_cache_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens in the prefix cache of each replica.")
    ] = None
    prefill_throughput: Annotated[
        float | None,
        typer.Option(metavar="R", help="With routing.offload: prompt tokens per second in its estimate."),
    ] = None
    crash: Annotated[
        list[str] | None, typer.Option(metavar="ROLE@S", help="A replica dies at S seconds; repeatable.")
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of everything that is drawn.")] = None
