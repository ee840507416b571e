"""One simulation as the command runs it: job in, document (JSON-able data) out. Runs in any process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from headway.config import ConfigError, HeadwayConfig
from headway.planning import PlanningError
from headway.routing.offload import OffloadTrace
from headway.simulation.build import Plan, make_plan, make_scenario, run, warm_up
from headway.simulation.demand import Reach, reach
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import Watchers
from headway.workload import Trace, TraceOptions, open_trace
from headway_cli.document import Outcome, make_document
from headway_cli.errors import CliError

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
