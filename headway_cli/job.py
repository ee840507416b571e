"""One simulation as the command runs it: job in, report out. Several run in parallel processes, each of which
opens the trace once and keeps it for its next job.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from headway.config import ConfigError, HeadwayConfig
from headway.engine.rules import at_start, simulated_profile, simulated_speeds
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
from headway_cli.terminal import bar

ANY_LOAD = "steady:rate_rps=1,duration_s=10"
"""Stands for a trace: to compile what is not in the cache, and to refuse what `simulate` would refuse."""

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
            attainable=known.attainable / known.requests if known.requests and not config.spillover else None,
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


Outcome = TypeVar("Outcome")

TIMES_TOLD, TOLD_EVERY_S = 10, 0.5


def run_all(calls: Sequence[Callable[[], Outcome]], processes: int) -> list[Outcome]:
    """The outcomes of calls that are made in so many processes, in their order; the first error at once."""
    with workers(processes) as pool, bar("comparing") as report:
        return gathered(pool, calls, lambda done: report(done, len(calls)) if report else None)


def gathered(
    pool: ProcessPoolExecutor, calls: Sequence[Callable[[], Outcome]], ended: Callable[[int], None]
) -> list[Outcome]:
    """The same in processes that go on after it; `ended` is called with the number of finished calls."""
    with sheltered():
        futures = [pool.submit(call) for call in calls]
    for done, future in enumerate(as_completed(futures), start=1):
        future.result()
        ended(done)
    return [future.result() for future in futures]


def work(job: Job) -> SimulationReport:
    """One job in a process that does several."""
    return simulate_plan(job.warmed_plan(), opened(job.trace, job.options), job)


@lru_cache(maxsize=1)
def opened(trace: str, options: TraceOptions) -> Trace:
    """The trace, opened once per process."""
    return open_trace(trace, options)


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes, which end with this block, also when it is interrupted."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(max_workers=count, mp_context=context, initializer=_prepare)
    try:
        yield pool
        pool.shutdown()
    except BrokenProcessPool as error:
        raise CliError("a simulation process died (out of memory?)") from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        _end(multiprocessing.active_children())


def _end(processes: Sequence[BaseProcess]) -> None:
    """Tell them to end until they have: one that is told in the middle of a call may take that for the call's
    error, and wait for the next call. Those that do not are killed."""
    for _ in range(TIMES_TOLD):
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(TOLD_EVERY_S)
        processes = [process for process in processes if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()


@contextmanager
def sheltered() -> Iterator[None]:
    """Processes that are started in this block see no interrupt, not even while they still import.

    For this process it waits until the block ends.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare() -> None:
    """An interrupt is the parent's business; being ended still removes the trace's temporary files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End with the parent: one that was killed cannot end its processes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(TOLD_EVERY_S)
