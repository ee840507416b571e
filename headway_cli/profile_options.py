"""The flags of `headway profile`. None means "not given": the configuration or the engine decides."""

from dataclasses import dataclass
from typing import Annotated

import typer

from headway_cli.load_options import KEY_VARIABLE, KeyVariable
from headway_cli.options import Itl, Ttft


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """One run of the profiler as flags; latencies in milliseconds, as people write them."""

    engine: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="simulated, vllm, or the address of an OpenAI endpoint."),
    ] = None
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="Points, profiles and page go here; again to go on.")
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Simulated: the profile to play, {tp} stands for TP; vllm: a directory or hub name.",
        ),
    ] = None
    isl: Annotated[float, typer.Option(metavar="TOKENS", help="Input tokens to recommend for.")] = 3000.0
    osl: Annotated[float, typer.Option(metavar="TOKENS", help="Output tokens to recommend for.")] = 150.0
    ttft_ms: Ttft = None
    itl_ms: Itl = None
    tp: Annotated[str, typer.Option(metavar="LIST", help="Tensor-parallel sizes, such as 1,2,4.")] = "1"
    config: Annotated[str | None, typer.Option(metavar="FILE", help="Settings (YAML) of the engine.")] = None
    budget: Annotated[
        float | None, typer.Option(metavar="MIN", help="Begin no point after so many minutes.")
    ] = None
    repeats: Annotated[int, typer.Option(metavar="N", help="Runs of a point that count.")] = 3
    isl_points: Annotated[int, typer.Option(metavar="N", help="Granularity of prefill.")] = 16
    kv_points: Annotated[int, typer.Option(metavar="N", help="Granularity of decode: KV usages.")] = 6
    context_points: Annotated[int, typer.Option(metavar="N", help="Granularity of decode: contexts.")] = 6
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Input plus output of the longest request.")
    ] = None
    max_kv_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens in the KV cache of one engine.")
    ] = None
    max_batch: Annotated[int | None, typer.Option(metavar="N", help="Requests that run at once.")] = None
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that one request may take.")] = 600.0
    api_key_env: KeyVariable = KEY_VARIABLE
