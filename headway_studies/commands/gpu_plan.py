"""`headway gpu-plan`: the cheapest GPU types for a trace, in whole replicas.

The document holds the cheapest mix, what else it could be, and the mix of each interval. Costs are per hour,
in the unit of the prices. The same input gives the same bytes.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Annotated, Any

import numpy as np

from headway.config import HeadwayConfig, load_config
from headway.planning import PolicySettings, policy_settings
from headway.planning.hindsight.choice import loss_budget
from headway.planning.replay import Requests
from headway.workload import TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.flags import option, spread
from headway_cli.notes import say_notes
from headway_cli.options import Attainment, Duration, Itl, Start, TraceArgument, TraceFormat, Ttft, flagged
from headway_cli.output import JsonFile, ReportFile, check_outputs, deliver
from headway_cli.terminal import announce_compilation
from headway_studies.commands.gpu_plan_view import print_plan, render
from headway_studies.gpu_mix.mix import InfeasibleError, Mix, MixRules, Supply, cheapest, rounded_up, supplies
from headway_studies.gpu_mix.needs import GpuCandidate, PoolNeed, RequestLoad, candidates, pool_needs

OUT, ERR = 1, 2
"""File descriptors."""
RUN_UP_S = 300.0
"""Seconds before an interval that are replayed too, so that fleets are busy when it begins."""
MOST_INTERVALS = 100_000
LIVE = "live, a pool's replicas are of one type: the planner scales one count per pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlanOptions:
    """The flags of the plan; None means "not given": the configuration decides."""

    config: Annotated[str, option("FILE", "Settings (YAML) with gpu_types.")]
    interval: Annotated[float | None, option("S", "Also a plan for each S seconds of the trace.")] = None
    max_types: Annotated[int | None, option("K", "GPU types in one pool at most.")] = None
    switching: Annotated[
        float, option("SHARE", "With --interval: running replicas count as this much cheaper.")
    ] = 0.1
    ttft_ms: Ttft = None
    itl_ms: Itl = None
    attainment: Attainment = None
    max_gpu_budget: Annotated[int | None, option("N", "GPUs of all types and pools together.")] = None
    rate_scale: Annotated[float, option("K", "Superpose K shifted copies.")] = 1.0
    start: Start = 0.0
    duration: Duration = None
    trace_format: TraceFormat = None
    seed: Annotated[int | None, option("N", "Seed of what is drawn.")] = None


@spread(GpuPlanOptions)
def gpu_plan(
    *,
    options: GpuPlanOptions,
    trace: TraceArgument,
    json: JsonFile = None,
    report: ReportFile = None,
) -> None:
    """Choose GPU types and counts for a trace: the cheapest whole replicas that keep the SLO."""
    check_outputs({"--json": json, "--report": report}, (trace, options.config))
    announce_compilation()
    with stdout_of_c_to_stderr():
        document = plan_trace(trace, options)
    print_plan(document, deliver(json, report, lambda: document, lambda: render(document)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlanInputs:
    """The configuration and what was made of it."""

    settings: PolicySettings
    candidates: Mapping[str, GpuCandidate]
    supply: Mapping[str, Supply]
    rules: MixRules

    def needs(
        self, requests: Requests, begin_s: float = -inf, since_s: float = -inf
    ) -> tuple[Mapping[str, PoolNeed], int]:
        """The pools' needs for what comes from `begin_s` on, and how many requests no type can keep."""
        judged_from = int(np.searchsorted(requests.arrival_s, begin_s))
        budget = loss_budget(self.settings)
        load = RequestLoad(requests=requests, judged_from=judged_from, since_s=since_s, loss_budget=budget)
        found = pool_needs(self.candidates, load, self.settings.limits)
        return found.pools, found.hopeless


def plan_trace(place: str, options: GpuPlanOptions) -> dict[str, Any]:
    """The plan as JSON-able data. CliError where none is possible, or a flag has no meaning."""
    config = _configuration(options)
    inputs = _inputs(config, options)
    reading = TraceOptions(
        format=options.trace_format,
        start_s=options.start,
        duration_s=options.duration,
        rate_scale=options.rate_scale,
        seed=config.simulation.seed,
    )
    with open_trace(place, reading) as trace:
        say_notes(trace)
        if options.interval is not None and trace.duration_s > MOST_INTERVALS * options.interval:
            raise CliError(f"--interval: the trace has more than {MOST_INTERVALS:,} of them")
        parts = [(chunk.arrival_s, chunk.input_tokens, chunk.output_tokens) for chunk in trace.chunks()]
        columns = (np.concatenate([np.zeros(0), *column]) for column in zip(*parts, strict=True))
        requests = Requests(*columns)
        needs, hopeless = inputs.needs(requests)
        if hopeless == trace.request_count:
            raise CliError("slo: no GPU type keeps it for any request, even on an idle engine")
        document = {
            "trace": {
                "name": trace.name,
                "requests": trace.request_count,
                "duration_s": trace.duration_s,
                "rate_scale": options.rate_scale,
            },
            "slo": {
                "ttft_s": config.slo.ttft_s,
                "itl_s": config.slo.itl_s,
                "loss_budget": loss_budget(inputs.settings),
            },
            "gpu_types": {name: each.model_dump() for name, each in config.gpu_types.items()},
            "hopeless": hopeless,
            "needs": {pool: _need(need) for pool, need in needs.items()},
            "plan": _row(cheapest(needs, inputs.supply, inputs.rules), needs),
            "alternatives": _alternatives(needs, inputs),
            "notes": [LIVE],
        }
        if options.interval is not None:
            document["intervals"] = list(_intervals(requests, trace.duration_s, options.interval, inputs))
    return document


def _configuration(options: GpuPlanOptions) -> HeadwayConfig:
    flags = ("ttft_ms", "itl_ms", "attainment", "max_gpu_budget", "seed")
    config = load_config(options.config, flagged(options, flags))
    if not config.gpu_types:
        raise CliError(f"{options.config}: gpu_types: there are none to choose among")
    if options.interval is not None and not (isfinite(options.interval) and options.interval > 0):
        raise CliError(f"--interval: must be above 0 and finite, got {options.interval:g}")
    return config


def _inputs(config: HeadwayConfig, options: GpuPlanOptions) -> GpuPlanInputs:
    settings = policy_settings(config)
    rules = MixRules(
        max_types=options.max_types, max_gpus=settings.max_gpu_budget, switching=options.switching
    )
    return GpuPlanInputs(
        settings=settings, candidates=candidates(config), supply=supplies(config), rules=rules
    )


def _need(need: PoolNeed) -> dict[str, Any]:
    return {
        "gpus_per_replica": dict(need.gpus_per_replica),
        "may_be_late": need.may_miss,
        "shares": [
            {"requests": share.requests, "replicas_alone": dict(share.replicas), "late": sorted(share.late)}
            for share in need.shares
        ],
    }


def _row(mix: Mix, needs: Mapping[str, PoolNeed]) -> dict[str, Any]:
    return {
        "replicas": {pool: dict(counts) for pool, counts in mix.replicas.items()},
        "gpus": dict(mix.gpus(needs)),
        "cost_per_hour": mix.cost_per_hour,
    }


def _alternatives(needs: Mapping[str, PoolNeed], inputs: GpuPlanInputs) -> list[dict[str, Any]]:
    """Fractions rounded up, and each type alone: what they cost, or why they do not do."""
    rows = []
    rounded = rounded_up(needs, inputs.supply, inputs.rules)
    beyond = [
        name
        for name, gpus in rounded.gpus(needs).items()
        if (stock := inputs.supply[name].max_gpus) is not None and gpus > stock
    ]
    problem = f"more GPUs than there are: {', '.join(beyond)}" if beyond else None
    rows.append({"name": "rounded fractions", **_row(rounded, needs), "problem": problem})
    for name in inputs.supply:
        alone = {pool: need.only(name) for pool, need in needs.items()}
        try:
            mix = cheapest(alone, inputs.supply, inputs.rules)
        except InfeasibleError as error:
            nothing = {"replicas": None, "gpus": None, "cost_per_hour": None}
            rows.append({"name": f"only {name}", **nothing, "problem": str(error)})
        else:
            rows.append({"name": f"only {name}", **_row(mix, needs), "problem": None})
    return rows


def _intervals(
    requests: Requests, duration_s: float, interval_s: float, inputs: GpuPlanInputs
) -> Iterator[dict[str, Any]]:
    """The plan of each interval, in which what ran before is worth keeping."""
    rules = inputs.rules
    count = max(1, int(np.ceil(duration_s / interval_s)))
    longest_s = float(requests.output_tokens.max(initial=0.0)) * inputs.settings.slo.itl_s
    for number in range(count):
        begin_s = number * interval_s
        # The last arrival may be at the very end of the trace.
        end_s = begin_s + interval_s if number + 1 < count else np.inf
        since_s = begin_s - RUN_UP_S
        oldest, first, end = np.searchsorted(requests.arrival_s, [since_s - longest_s, begin_s, end_s])
        part = requests.where(slice(oldest, end))
        needs, hopeless = inputs.needs(part, begin_s, since_s)
        try:
            mix = cheapest(needs, inputs.supply, rules)
        except InfeasibleError as error:
            raise CliError(f"from {begin_s:g} s on: {error}") from error
        rules = replace(rules, running=mix.replicas)
        yield {"start_s": begin_s, "requests": int(end - first), "hopeless": hopeless, **_row(mix, needs)}


@contextmanager
def stdout_of_c_to_stderr() -> Iterator[None]:
    """Send what compiled code writes to standard output in this block to standard error.

    HiGHS prints a line about itself now and then, with all its messages turned off.
    """
    sys.stdout.flush()
    kept = os.dup(OUT)
    os.dup2(ERR, OUT)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, OUT)
        os.close(kept)
