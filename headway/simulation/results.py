"""The outcome of a simulation: attainment, latencies, cost, and how the fleet moved.

Counting and the bound on cost are explained in `tally`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from headway.planning.types import Role, Slo
from headway.simulation.fleet import ReplicaSeries
from headway.simulation.report import (
    ClassFigures,
    ClassSlo,
    Interval,
    Minutes,
    PoolSeries,
    PrefixHits,
    Quantiles,
    ReportSlo,
    SimulationReport,
    TraceFigures,
)
from headway.simulation.scenario import RequestClass
from headway.simulation.tally import Outcomes, Tally

NO_TRACE = TraceFigures(name="", rate_scale=1.0, isl_mean_tokens=0.0, osl_mean_tokens=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSetting:
    """The setting of a run, for its report; without one the report is of the run alone."""

    profile: str = ""
    predictor: str | None = None
    trace: TraceFigures = NO_TRACE
    aim: float = 1.0
    adjustment_interval_s: float | None = None
    wall_s: float | None = None
    attainable: float | None = None
    gpus_per_replica: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """The outcome of one run."""

    policy: str
    routing: str
    seed: int
    slo: Slo
    tally: Tally
    gpu_hours: float
    simulated_s: float
    scale_events: Mapping[Role, int]
    direction_reversals: Mapping[Role, int]
    replicas: Mapping[Role, ReplicaSeries]
    intervals: tuple[Interval, ...]
    notes: tuple[str, ...] = ()
    routing_metrics: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    utilisation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def attainment(self) -> float | None:
        """Share of all requests that met all their SLOs; None without requests."""
        return self.tally.attainment

    def report(self, setting: RunSetting | None = None) -> SimulationReport:
        """The report of the run in its setting."""
        tally, setting = self.tally, setting or RunSetting(notes=self.notes)
        bound_hours = tally.fluid.gpu_seconds / 3600.0
        latencies = {name: Quantiles(**latency.summary()) for name, latency in tally.latencies.items()}
        of_class = zip(tally.mix.classes, tally.classes, strict=True)
        classes = {each.name: _class_figures(each, ended, self.simulated_s) for each, ended in of_class}
        return SimulationReport(
            policy=self.policy,
            predictor=setting.predictor,
            routing=self.routing,
            seed=self.seed,
            profile=setting.profile,
            trace=setting.trace,
            slo=ReportSlo(ttft_s=self.slo.ttft_s, itl_s=self.slo.itl_s, attainment=setting.aim),
            adjustment_interval_s=setting.adjustment_interval_s,
            wall_s=setting.wall_s,
            requests=tally.requests,
            completed=tally.completed,
            shed=tally.shed,
            failed=tally.failed,
            retried=tally.retried,
            attainment=self.attainment,
            goodput_rps=tally.met / self.simulated_s if self.simulated_s else 0.0,
            gpu_hours=self.gpu_hours,
            fluid_bound_gpu_hours=bound_hours,
            prefix_hit_rate=tally.cached_tokens / tally.input_tokens if tally.input_tokens else 0.0,
            **latencies,
            scale_events=sum(self.scale_events.values()),
            direction_reversals=sum(self.direction_reversals.values()),
            simulated_s=self.simulated_s,
            replicas={role.value: PoolSeries(**asdict(series)) for role, series in self.replicas.items()},
            notes=setting.notes,
            classes=classes if tally.mix.named else None,
            routing_metrics=self.routing_metrics or None,
            prefix_hits=PrefixHits(**tally.hits()) if self.routing_metrics else None,
            utilisation=self.utilisation if self.routing_metrics else None,
            fluid_bound_ratio=self.gpu_hours / bound_hours if bound_hours else None,
            attainable=setting.attainable,
            gpus_per_replica=setting.gpus_per_replica,
            minutes=Minutes(**tally.minutes.columns()),
            intervals=self.intervals,
        )


def _class_figures(each: RequestClass, outcomes: Outcomes, simulated_s: float) -> ClassFigures:
    latencies = {name: Quantiles(**latency.summary()) for name, latency in outcomes.latencies.items()}
    return ClassFigures(
        slo=ClassSlo(ttft_s=each.slo.ttft_s, tpot_s=each.slo.itl_s),
        critical=each.critical,
        requests=outcomes.requests,
        completed=outcomes.completed,
        shed=outcomes.shed,
        failed=outcomes.failed,
        attainment=outcomes.attainment,
        goodput_rps=outcomes.met / simulated_s if simulated_s else 0.0,
        **latencies,
    )
