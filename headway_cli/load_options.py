"""The flags of `load`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headway.workload import TraceOptions

KEY_VARIABLE = "HEADWAY_API_KEY"
"""The environment variable that holds the key, unless --api-key-env names another."""

KeyVariable = Annotated[
    str, typer.Option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """One replay's settings as flags; latencies in milliseconds, as people write them."""

    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model; default: the first that the server lists.")
    ] = None
    api_key_env: KeyVariable = KEY_VARIABLE
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Settings (YAML) that hold the targets.")
    ] = None
    ttft_ms: Annotated[float | None, typer.Option(metavar="MS", help="Target: time to first token.")] = None
    itl_ms: Annotated[float | None, typer.Option(metavar="MS", help="Target: time per output token.")] = None
    time_scale: Annotated[float, typer.Option(metavar="K", help="Play trace time K times as fast.")] = 1.0
    rate_scale: Annotated[
        float, typer.Option(metavar="K", help="Superpose K shifted copies of the trace.")
    ] = 1.0
    start: Annotated[float, typer.Option(metavar="S", help="Leave out the first S seconds.")] = 0.0
    duration: Annotated[float | None, typer.Option(metavar="S", help="Use S seconds of the trace.")] = None
    trace_format: Annotated[
        str | None,
        typer.Option("--format", metavar="F", help="plain, azure, burstgpt or mooncake; else detected."),
    ] = None
    prompt: Annotated[
        str, typer.Option(metavar="FORM", help="tokens: arrays of token ids; text: words, about as many.")
    ] = "tokens"
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Ask for the whole output length (servers that know it).")
    ] = False
    max_in_flight: Annotated[
        int, typer.Option(metavar="N", help="Beyond N requests at once, count as failed instead of sending.")
    ] = 4096
    timeout: Annotated[float, typer.Option(metavar="S", help="Seconds that one request may take.")] = 600.0
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of prompts and of generated load.")] = 0

    def trace_options(self) -> "TraceOptions":
        """How to read the trace."""
        from headway.workload import TraceOptions

        return TraceOptions(
            format=self.trace_format,
            start_s=self.start,
            duration_s=self.duration,
            rate_scale=self.rate_scale,
            seed=self.seed,
        )
