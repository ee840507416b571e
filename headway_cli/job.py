"""One simulation as the command runs it: job in, report out. Runs in any process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from headway.config import ConfigError, HeadwayConfig
from headway.engine.speeds import at_start, simulated_profile, simulated_speeds
from headway.planning import PlanningError
from headway.planning.policies import predictors_asked
from headway.routing.offload import OffloadTrace
from headway.simulation.build import Plan, make_plan, make_scenario, run, warm_up
from headway.simulation.demand import reach
from headway.simulation.report import SimulationReport, TraceFigures
from headway.simulation.results import RunSetting, SimulationResult
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
            return warm_up(plan, self.options.rate_scale)

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


def execute(job: Job, progress: Progress | None = None, traces: TraceSink | None = None) -> SimulationReport:
    """Simulate; everything that can be checked before the trace is read is checked first."""
    plan = job.warmed_plan()
    with open_trace(job.trace, job.options) as trace:
        return simulate_plan(plan, trace, job, Watchers(progress=progress, traces=traces))


def simulate_plan(plan: Plan, trace: Trace, job: Job, watchers: Watchers | None = None) -> SimulationReport:
    """Simulate on an open trace."""
    scenario = job.scenario(plan, trace)
    began = perf_counter()
    result = run(plan, scenario, trace, watchers)
    return make_report(job, plan, trace, result, perf_counter() - began)


def make_report(
    job: Job, plan: Plan, trace: Trace, result: SimulationResult, wall_s: float
) -> SimulationReport:
    """The report of a finished simulation; `wall_s` is the time of the simulation proper."""
    config, limits = plan.config, plan.settings.limits
    engines = at_start(simulated_profile(config), simulated_speeds(config))
    known = reach(trace, result.tally.mix, replace(plan.idle, profile=engines))
    return result.report(
        RunSetting(
            profile=plan.profile_name,
            predictor=", ".join(predictors_asked(config.planner)) or None,
            trace=trace_figures(trace, job.trace, job.options),
            aim=config.slo.attainment,
            adjustment_interval_s=plan.policy.interval_s,
            wall_s=wall_s,
            attainable=known.attainable / known.requests if known.requests else None,
            gpus_per_replica={role.value: each.gpus_per_replica for role, each in limits.items()},
            notes=[*collect_notes(plan, trace, known, result), *_shortened(trace, job.options)],
        )
    )


def _shortened(trace: Trace, options: TraceOptions) -> Iterator[str]:
    if options.duration_s is not None and options.duration_s > trace.duration_s:
        yield (
            f"trace: ends after {trace.duration_s:g} s, "
            f"before the {options.duration_s:g} s that were asked for"
        )


def trace_figures(trace: Trace, source: str, options: TraceOptions) -> TraceFigures:
    """The trace as it was read, under the file's name without directories, or the specification of load."""
    path, stats = Path(source), trace.stats
    return TraceFigures(
        name=(path.name if path.exists() else source).encode(errors="replace").decode(),
        rate_scale=options.rate_scale,
        start_s=options.start_s,
        duration_s=trace.duration_s,
        requests=trace.request_count,
        isl_mean_tokens=stats.isl_mean,
        osl_mean_tokens=stats.osl_mean,
        reordered_rows=stats.reordered,
        skipped_rows=stats.skipped_zero_input + stats.skipped_zero_output,
    )
