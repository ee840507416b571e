"""The JSON document of one simulation: the result, what went in, and what a reader should know.

Keys and units are listed in docs/reference.md. Values that do not exist are null; all but `wall_s` depend on
the input alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.planning.reasons import jsonable
from headway.simulation.build import Plan
from headway.simulation.demand import Reach
from headway.simulation.results import SimulationResult
from headway.workload import Trace, TraceOptions
from headway_cli.notes import collect_notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished simulation and what it ran on; `wall_s` is the time of the simulation proper."""

    plan: Plan
    trace: Trace
    reach: Reach
    result: SimulationResult
    wall_s: float


def make_document(outcome: Outcome, source: str, options: TraceOptions) -> dict[str, Any]:
    """Everything about one simulation as JSON-able data, without NaN."""
    result, config = outcome.result, outcome.plan.config
    summary = result.summary()
    bound = summary["fluid_bound_gpu_hours"]
    document = {
        "policy": summary.pop("policy"),
        "predictor": config.planner.predictor if outcome.plan.forecasts else None,
        "routing": summary.pop("routing"),
        "seed": summary.pop("seed"),
        "profile": outcome.plan.profile_name,
        "trace": _describe_trace(outcome.trace, source, options),
        "slo": {**summary.pop("slo"), "attainment": config.slo.attainment},
        "adjustment_interval_s": outcome.plan.policy.interval_s,
        "wall_s": outcome.wall_s,
        **summary,
        "fluid_bound_ratio": summary["gpu_hours"] / bound if bound else None,
        "attainable": _attainable(outcome.reach),
        "gpus_per_replica": {
            role.value: pool.gpus_per_replica for role, pool in outcome.plan.settings.limits.items()
        },
        "notes": [
            *collect_notes(outcome.plan, outcome.trace, outcome.reach, result),
            *_shortened(outcome.trace, options),
        ],
        "intervals": list(result.intervals),
    }
    plain: dict[str, Any] = jsonable(document)
    return plain


def _shortened(trace: Trace, options: TraceOptions) -> Iterator[str]:
    if options.duration_s is not None and options.duration_s > trace.duration_s:
        yield (
            f"trace: ends after {trace.duration_s:g} s, "
            f"before the {options.duration_s:g} s that were asked for"
        )


def _describe_trace(trace: Trace, source: str, options: TraceOptions) -> dict[str, Any]:
    stats = trace.stats
    return {
        "name": source_name(source),
        "rate_scale": options.rate_scale,
        "start_s": options.start_s,
        "duration_s": trace.duration_s,
        "requests": trace.request_count,
        "isl_mean_tokens": stats.isl_mean,
        "osl_mean_tokens": stats.osl_mean,
        "reordered_rows": stats.reordered,
        "skipped_rows": stats.skipped_zero_input + stats.skipped_zero_output,
    }


def source_name(source: str) -> str:
    """The file's name without its directories, or the specification of generated load."""
    path = Path(source)
    return (path.name if path.exists() else source).encode(errors="replace").decode()


def _attainable(reach: Reach) -> float | None:
    return reach.attainable / reach.requests if reach.requests else None
