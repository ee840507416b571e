"""The flags that verbs share, and what they make of configuration and trace.

None means "not given": the configuration decides. Values are checked where they belong, not here.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from headway.config import FleetConfig, HeadwayConfig, Role, load_config, load_fleet
from headway.workload import TraceOptions
from headway_cli.errors import CliError
from headway_cli.flags import argument, option, switch

Ttft = Annotated[float | None, option("MS", "Target: time to first token.")]
Itl = Annotated[float | None, option("MS", "Target: time between tokens.")]
Attainment = Annotated[float | None, option("SHARE", "Share of requests that should meet both targets.")]
Start = Annotated[float, option("S", "Leave out the first S seconds.")]
Duration = Annotated[float | None, option("S", "Use S seconds of the trace.")]
TraceFormat = Annotated[
    str | None,
    option(
        "F", "plain, azure, burstgpt, mooncake, dynamo; :s or :ms says the unit. Else detected.", "--format"
    ),
]

PrefillSpeed = Annotated[
    str | None, option("SPEED", "Real speed of prefill over the profile's: 0.7, or 0:1,1800:0.7 over time.")
]
DecodeSpeed = Annotated[str | None, option("SPEED", "The same for decoding.")]

TraceArgument = Annotated[
    str, argument("TRACE", "A trace file, or generated load such as steady:rate_rps=20.")
]

Jobs = Annotated[int | None, option("N", "Processes; else one per core.")]

N = TypeVar("N", int, float)

# Which configuration key each flag sets, as it is.
KEYS: Mapping[str, str] = {
    "profile": "engine.profile",
    "ttft_ms": "slo.ttft_ms",
    "itl_ms": "slo.itl_ms",
    "attainment": "slo.attainment",
    "predictor": "planner.predictor",
    "load_predictor_warmup_trace": "planner.load_predictor_warmup_trace",
    "adjustment_interval": "planner.adjustment_interval_s",
    "max_gpu_budget": "planner.max_gpu_budget",
    "max_step": "planner.max_step",
    "routing": "routing.profile",
    "start_up_delay": "simulation.start_up_delay_s",
    "start_up_cv": "simulation.start_up_delay_cv",
    "chunk_tokens": "engine.chunk_tokens",
    "max_batch": "engine.max_batch_size",
    "prefix_cache_tokens": "engine.prefix_cache_tokens",
    "seed": "simulation.seed",
    "initial": "simulation.initial",
}
STATIC = "planner.static."
SPEED = "a speed as 0.7 or steps as 0:1,1800:0.7"
DECIMAL = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """One simulation's settings as flags; latencies in milliseconds, as people write them."""

    profile: Annotated[
        str | None, option("DIR", "Profile directory, or the name of an embedded profile.")
    ] = None
    config: Annotated[str | None, option("FILE", "Settings (YAML); flags override its keys.")] = None
    ttft_ms: Ttft = None
    itl_ms: Itl = None
    attainment: Attainment = None
    predictor: Annotated[
        str | None, option("NAME", "Load predictor: constant, arima, kalman, prophet, daily, weekly.")
    ] = None
    load_predictor_warmup_trace: Annotated[
        str | None, option("TRACE", "A trace that predictors and the policy see beforehand.")
    ] = None
    no_correction: Annotated[
        bool, switch("--no-correction", "Keep the correction factors of `reference` at 1.")
    ] = False
    adjustment_interval: Annotated[float | None, option("S", "Seconds between two decisions.")] = None
    max_gpu_budget: Annotated[int | None, option("N", "GPUs that all pools together may occupy.")] = None
    max_step: Annotated[int | None, option("N", "Replicas by which one decision may change a pool.")] = None
    max_replicas: Annotated[int | None, option("N", "Replicas that each pool may have.")] = None
    initial: Annotated[
        str | None, option("FLEET", "Fleet at the start: sized, min, or prefill=2,decode=3.")
    ] = None
    aggregated: Annotated[
        bool, switch("--aggregated", "One pool of replicas that do both prefill and decode.")
    ] = False
    routing: Annotated[
        str | None,
        option(
            "NAME",
            "Scheduling profile: random, round_robin, least_load, bin_pack, prefix, default, slo, pull, "
            "pull_bin_pack, or one of the settings.",
        ),
    ] = None
    rate_scale: Annotated[float | None, option("K", "Superpose K shifted copies of the trace; else 1.")] = (
        None
    )
    start: Start = 0.0
    duration: Duration = None
    trace_format: TraceFormat = None
    start_up_delay: Annotated[float | None, option("S", "Mean seconds until a new replica is ready.")] = None
    start_up_cv: Annotated[float | None, option("C", "Coefficient of variation of that delay.")] = None
    chunk_tokens: Annotated[
        int | None, option("N", "Prompt tokens per prefill iteration (chunked batching).")
    ] = None
    max_batch: Annotated[int | None, option("N", "Requests in one decode batch.")] = None
    prefix_cache_tokens: Annotated[int | None, option("N", "Tokens in the prefix cache of each replica.")] = (
        None
    )
    prefill_speed: PrefillSpeed = None
    decode_speed: DecodeSpeed = None
    slow_replicas: Annotated[
        str | None, option("SHARE:SPEED", "A share of the replicas that is slower, as 0.1:0.5.")
    ] = None
    capacity_gpus: Annotated[
        str | None, option("GPUS", "GPUs of the cluster: 40, or 0:40,1800:10 over time; the rest wait.")
    ] = None
    crash: Annotated[list[str] | None, option("ROLE@S", "A replica dies at S seconds; repeatable.")] = None
    seed: Annotated[int | None, option("N", "Seed of everything that is drawn.")] = None


def flagged(options: object, flags: Iterable[str]) -> dict[str, Any]:
    """What these flags set, by the configuration's keys; None where one is not given."""
    return {KEYS[flag]: getattr(options, flag) for flag in flags}


def configuration(options: RunOptions, more: Mapping[str, Any] | None = None) -> HeadwayConfig:
    """The configuration file with the flags, and `more` dotted keys, laid over it."""
    overrides = run_overrides(options)
    named = [key.removeprefix(STATIC) for key in more or {} if key.startswith(STATIC)]
    # A fleet of mixed replicas alone says that there is one pool.
    overrides |= _pools(options, aggregated=options.aggregated or named == [Role.MIXED])
    config = load_config(options.config, {**overrides, **(more or {})})
    _check_fleet(config, named)
    return config


def run_overrides(options: RunOptions) -> dict[str, Any]:
    """What the flags set, by the configuration's keys; not those on pools and on the trace."""
    overrides = flagged(options, KEYS)
    overrides["planner.no_correction"] = True if options.no_correction else None
    at_start = options.initial
    if at_start not in (None, "sized", "min"):
        overrides["simulation.initial"] = fleet("--initial", str(at_start), also="sized, min or ")
    overrides["simulation.crashes"] = [_crash(text) for text in options.crash or ()] or None
    overrides |= speed_overrides(options.prefill_speed, options.decode_speed)
    if options.slow_replicas is not None:
        overrides["simulation.engine.slow_replicas"] = _slow_replicas(options.slow_replicas)
    if options.capacity_gpus is not None:
        example = "GPUs as 40 or steps as 0:40,1800:10"
        gpus = _over_time("--capacity-gpus", options.capacity_gpus, int, example)
        overrides["simulation.capacity_gpus"] = gpus
    return overrides


def fleet_settings(options: RunOptions, file: str, policy: str | None) -> FleetConfig:
    """The deployments in a file, with the flags laid over each."""
    refused = {"config": None, "aggregated": False, "max_replicas": None, "trace_format": None}
    if given := next((flag for flag, unset in refused.items() if getattr(options, flag) != unset), None):
        raise CliError(f"--{given.replace('_', '-')}: does not go with --fleet; its file says it")
    trace = {"start_s": options.start or None, "duration_s": options.duration}
    load = {**trace, "rate_scale": options.rate_scale}
    overrides = {**run_overrides(options), "planner.policy": policy}
    return load_fleet(file, overrides | {f"simulation.load.{key}": value for key, value in load.items()})


def _check_fleet(config: HeadwayConfig, named: Sequence[str]) -> None:
    """A fixed fleet that was spelt out names every pool there is, and no other."""
    pools = set[str](config.pools)
    listed = ", ".join(config.pools)
    if named and (missing := sorted(pools - set(named))):
        raise CliError(f"{STATIC}{missing[0]}: missing, a fixed fleet names all pools ({listed})")
    if strangers := sorted(set(named) - pools):
        raise CliError(f"{STATIC}{strangers[0]}: there is no such pool ({listed})")


def _pools(options: RunOptions, *, aggregated: bool) -> dict[str, Any]:
    """Overrides of the pools; those of the file decide which roles there are, unless `aggregated`."""
    if not aggregated and options.max_replicas is None:
        return {}
    roles = tuple(load_config(options.config).pools)
    overrides: dict[str, Any] = {}
    if aggregated and roles != ("mixed",):
        roles, overrides["pools"] = ("mixed",), {"mixed": {}}
    return overrides | {f"pools.{role}.max_replicas": options.max_replicas for role in roles}


def trace_options(options: RunOptions, seed: int) -> TraceOptions:
    """The reading of the trace; the seed of the configuration thins and generates."""
    return TraceOptions(
        format=options.trace_format,
        start_s=options.start,
        duration_s=options.duration,
        rate_scale=1.0 if options.rate_scale is None else options.rate_scale,
        seed=seed,
    )


def process_count(jobs: int | None) -> int:
    """The number of processes for `--jobs`."""
    if jobs is not None and jobs < 1:
        raise CliError(f"--jobs: must be at least 1, got {jobs}")
    return jobs or os.cpu_count() or 1


def listed(flag: str, text: str) -> tuple[str, ...]:
    """The items between commas; CliError without any, or with one twice."""
    items = tuple(item.strip() for item in text.split(",") if item.strip())
    if not items:
        raise CliError(f"{flag}: nothing given")
    if repeated := next((item for item in items if items.count(item) > 1), None):
        raise CliError(f"{flag}: {repeated} comes twice")
    return items


def fleet(flag: str, text: str, also: str = "") -> dict[str, int]:
    """`prefill=4,decode=8` as a mapping; the roles are checked by the configuration.

    `also` is what else the flag takes, for the error.
    """
    counts: dict[str, int] = {}
    for pair in text.split(","):
        role, _, count = (part.strip() for part in pair.partition("="))
        if not role or not DECIMAL.fullmatch(count):
            raise CliError(f"{flag}: expected {also}ROLE=COUNT such as prefill=4,decode=8, got {pair!r}")
        if role in counts:
            raise CliError(f"{flag}: {role} is given twice")
        counts[role] = int(count)
    return counts


def static_overrides(flag: str, text: str) -> dict[str, Any]:
    """Overrides that make the policy a static fleet."""
    counts = {f"{STATIC}{role}": count for role, count in fleet(flag, text).items()}
    return {"planner.policy": "static", **counts}


def speed_overrides(prefill: str | None, decode: str | None) -> dict[str, Any]:
    """The real speeds of simulated engines, where the flags name any."""
    return {
        f"simulation.engine.{phase}_speed": None
        if text is None
        else _over_time(f"--{phase}-speed", text, float, SPEED)
        for phase, text in (("prefill", prefill), ("decode", decode))
    }


def _over_time(flag: str, text: str, number: Callable[[str], N], example: str) -> N | dict[float, N]:
    """A number, or `0:1,1800:0.7`: numbers by the second from which on they hold. Errors show `example`."""
    try:
        if ":" not in text:
            return number(text)
        steps = [
            (float(at_s), number(value)) for at_s, value in (part.split(":") for part in text.split(","))
        ]
    except ValueError:
        raise CliError(f"{flag}: expected {example}, got {text!r}") from None
    if len({at_s for at_s, _ in steps}) < len(steps):
        raise CliError(f"{flag}: a time is given twice in {text!r}")
    return dict(steps)


def _slow_replicas(text: str) -> dict[str, float]:
    share, _, speed = text.partition(":")
    try:
        return {"share": float(share), "speed": float(speed)}
    except ValueError:
        raise CliError(f"--slow-replicas: expected SHARE:SPEED such as 0.1:0.5, got {text!r}") from None


def _crash(text: str) -> dict[str, Any]:
    role, _, at = (part.strip() for part in text.partition("@"))
    try:
        return {"role": role, "at_s": float(at)}
    except ValueError:
        raise CliError(f"--crash: expected ROLE@SECONDS such as prefill@600, got {text!r}") from None
