"""Flags → configuration overrides and trace options. Values are checked where they belong, not here."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from headway.config import HeadwayConfig, load_config
from headway.workload import TraceOptions
from headway_cli.errors import CliError
from headway_cli.options import RunOptions

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
    "routing": "routing.profile",
    "start_up_delay": "simulation.start_up_delay_s",
    "start_up_cv": "simulation.start_up_delay_cv",
    "chunk_tokens": "engine.chunk_tokens",
    "max_batch": "engine.max_batch_size",
    "prefix_cache_tokens": "engine.prefix_cache_tokens",
    "prefill_throughput": "routing.offload.prefill_throughput",
    "seed": "simulation.seed",
}
STATIC = "planner.static."
DECIMAL = re.compile("[0-9]{1,9}")


def configuration(options: RunOptions, more: Mapping[str, Any] | None = None) -> HeadwayConfig:
    """The configuration file with the flags, and `more` dotted keys, laid over it."""
    overrides = {key: getattr(options, flag) for flag, key in KEYS.items()}
    overrides["planner.no_correction"] = True if options.no_correction else None
    overrides["simulation.initial"] = _initial(options.initial)
    overrides["simulation.crashes"] = [_crash(text) for text in options.crash or ()] or None
    overrides |= _pools(options)
    config = load_config(options.config, {**overrides, **(more or {})})
    if options.prefill_throughput is not None and config.routing.offload.mode == "never":
        raise CliError("--prefill-throughput: routing.offload.mode is never, so it would change nothing")
    _check_fleet(config, [key.removeprefix(STATIC) for key in more or {} if key.startswith(STATIC)])
    return config


def _check_fleet(config: HeadwayConfig, named: Sequence[str]) -> None:
    """A fixed fleet that was spelt out names every pool there is, and no other."""
    pools = set[str](config.pools)
    listed = ", ".join(config.pools)
    if named and (missing := sorted(pools - set(named))):
        raise CliError(f"{STATIC}{missing[0]}: missing, a fixed fleet names all pools ({listed})")
    if strangers := sorted(set(named) - pools):
        raise CliError(f"{STATIC}{strangers[0]}: there is no such pool ({listed})")


def _pools(options: RunOptions) -> dict[str, Any]:
    """Overrides of the pools; those of the file decide which roles there are, unless --aggregated does."""
    if not options.aggregated and options.max_replicas is None:
        return {}
    roles = tuple(load_config(options.config).pools)
    overrides: dict[str, Any] = {}
    if options.aggregated and roles != ("mixed",):
        roles, overrides["pools"] = ("mixed",), {"mixed": {}}
    return overrides | {f"pools.{role}.max_replicas": options.max_replicas for role in roles}


def trace_options(options: RunOptions, seed: int) -> TraceOptions:
    """How to read the trace; the seed of the configuration thins and generates."""
    return TraceOptions(
        format=options.trace_format,
        start_s=options.start,
        duration_s=options.duration,
        rate_scale=1.0 if options.rate_scale is None else options.rate_scale,
        seed=seed,
    )


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


def _initial(text: str | None) -> str | dict[str, int] | None:
    if text is None or text in ("sized", "min"):
        return text
    return fleet("--initial", text, also="sized, min or ")


def _crash(text: str) -> dict[str, Any]:
    role, _, at = (part.strip() for part in text.partition("@"))
    try:
        return {"role": role, "at_s": float(at)}
    except ValueError:
        raise CliError(f"--crash: expected ROLE@SECONDS such as prefill@600, got {text!r}") from None
