"""One simulation as the command runs it: job in, document (JSON-able data) out. Runs in any process.

Keys and units of the document are listed in docs/reference.md. Values that do not exist are null; all but
`wall_s` depend on the input alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from headway.config import ConfigError, HeadwayConfig
from headway.planning import PlanningError
from headway.planning.reasons import jsonable
from headway.routing.offload import OffloadTrace
from headway.simulation.build import Plan, make_plan, make_scenario, run, warm_up
from headway.simulation.demand import Reach, reach
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import Watchers
from headway.workload import Trace, TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.notes import collect_notes

Progress = Callable[[float, float], None]
TraceSink = Callable[[Sequence[OffloadTrace]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A trace, how to read it, and the settings.

    `label` names it among others, `settings_file` is where the settings came from, for errors.
    """

    trace: str
    config: HeadwayConfig
    options: TraceOptions = field(default_factory=TraceOptions)
    label: str = ""
    settings_file: str | None = None

    def plan(self) -> Plan:
        """The deployment, checked; errors name the settings file, if there is one."""
        with self._located():
            return make_plan(self.config)

    def warmed_plan(self) -> Plan:
        """The deployment, its predictors having seen the warm-up trace."""
        plan = self.plan()
        with self._located():
            warm_up(plan, self.options.rate_scale)
        return plan

    def scenario(self, plan: Plan, trace: Trace) -> Scenario:
        """The deployment when `trace` begins; errors name the settings file, if there is one."""
        with self._located():
            return make_scenario(plan, trace)

    @contextmanager
    def _located(self) -> Iterator[None]:
        try:
            yield
        except (ConfigError, PlanningError) as error:
            raise CliError(f"{self.settings_file}: {error}" if self.settings_file else str(error)) from error


def execute(job: Job, progress: Progress | None = None, traces: TraceSink | None = None) -> dict[str, Any]:
    """Simulate; everything that can be checked before the trace is read is checked first."""
    plan = job.warmed_plan()
    with open_trace(job.trace, job.options) as trace:
        return simulate_plan(plan, trace, job, Watchers(progress=progress, traces=traces))


def simulate_plan(plan: Plan, trace: Trace, job: Job, watchers: Watchers | None = None) -> dict[str, Any]:
    """Simulate on an open trace."""
    scenario = job.scenario(plan, trace)
    known: Reach = reach(trace, scenario.mix, plan.profile, plan.transfer)
    began = perf_counter()
    result = run(plan, scenario, trace, watchers)
    wall_s = perf_counter() - began
    outcome = Outcome(plan=plan, trace=trace, reach=known, result=result, wall_s=wall_s)
    return make_document(outcome, job.trace, job.options)


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
