"""A demo's record: replica counts, load and attainment second by second, and the same as a report."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from headway.loadgen import LoadTally
from headway.planning import Role, Slo
from headway.planning.documents import LastDecision, PoolStatus
from headway.planning.policies import predictors_asked
from headway.planning.records import DecisionRecord
from headway.planning.status_text import simulated_text
from headway.simulation.report import (
    Interval,
    IntervalForecast,
    IntervalQuantiles,
    PoolSeries,
    Quantiles,
    ReportSlo,
    SimulationReport,
    TraceFigures,
)
from headway.simulation.results import FluidBound
from headway_cli.demo_plan import DemoPlan

COUNTS = ("desired", "starting", "ready", "draining")
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One look: seconds since the load began, per role its four counts, the clients' figures so far."""

    time_s: float
    pools: Mapping[str, Mapping[str, int]]
    rate_rps: float
    in_flight: int
    attainment: float | None
    failed: int
    decision: LastDecision | None = None


class History:
    """All moments of a demo."""

    def __init__(self) -> None:
        self.moments: list[Moment] = []

    def add(self, moment: Moment) -> None:
        """Remember a look."""
        self.moments.append(moment)

    @property
    def roles(self) -> tuple[str, ...]:
        """The pools there are."""
        return tuple(self.moments[0].pools) if self.moments else ()

    def every(self, seconds: float) -> Iterator[Moment]:
        """The first moment of each period of so many seconds, and the last of all."""
        due_s = float("-inf")
        for place, moment in enumerate(self.moments):
            if moment.time_s >= due_s or place == len(self.moments) - 1:
                yield moment
                due_s = (moment.time_s // seconds + 1) * seconds

    def replica_seconds(self, role: str) -> float:
        """Seconds that the replicas of a role existed, from start to gone, added up."""
        return sum(
            (after.time_s - before.time_s)
            * sum(before.pools[role][name] for name in ("starting", "ready", "draining"))
            for before, after in zip(self.moments, self.moments[1:], strict=False)
        )

    def highest(self, role: str, count: str = "ready") -> int:
        """The most replicas that a role had."""
        return max((moment.pools[role][count] for moment in self.moments), default=0)

    def series(self, role: str) -> PoolSeries:
        """The counts of a role over time, a point where one changed."""
        # The moments of equal counts that follow each other are one group; its first is the change.
        runs = groupby(self.moments, key=lambda moment: moment.pools[role])
        changes = [next(moments) for _, moments in runs]
        columns = {name: [moment.pools[role][name] for moment in changes] for name in COUNTS}
        return PoolSeries(time_s=[max(moment.time_s, 0.0) for moment in changes], **columns)


def read_pools(pools: Mapping[Role, PoolStatus]) -> dict[str, dict[str, int]]:
    """The counts of a status document's pools; an unknown one is 0."""
    return {role.value: {name: getattr(pool, name) or 0 for name in COUNTS} for role, pool in pools.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Everything that a demo leaves: the clients' figures, the fleet's history, every decision.

    `began_at` is the Unix time at which the load began.
    """

    plan: DemoPlan
    tally: LoadTally
    history: History
    decisions: Sequence[DecisionRecord]
    began_at: float


def live_report(result: DemoResult) -> SimulationReport:
    """The run in the form of a simulation's report, for the same page; times count from the load's begin."""
    config, tally, history = result.plan.config, result.tally, result.history
    replicas = {role: history.series(role) for role in history.roles}
    gpu_hours = sum(history.replica_seconds(role) for role in history.roles) / HOUR_S
    bound_hours, summary = _fluid_bound_gpu_hours(result), tally.summary()
    return SimulationReport(
        policy=config.planner.policy,
        predictor=", ".join(predictors_asked(config.planner)) or None,
        routing=config.routing.live_profile,
        seed=result.plan.seed,
        profile=f"{config.engine.profile} at {config.engine.time_scale:g} × its speed",
        trace=TraceFigures(
            name="the demo's load, live on Ray with SIMULATED engines",
            rate_scale=1.0,
            isl_mean_tokens=float(result.plan.input_tokens),
            osl_mean_tokens=float(result.plan.output_tokens),
        ),
        slo=ReportSlo(ttft_s=config.slo.ttft_s, itl_s=config.slo.itl_s, attainment=config.slo.attainment),
        requests=tally.requests,
        completed=tally.completed,
        shed=tally.shed,
        failed=tally.failed,
        attainment=tally.attainment,
        goodput_rps=summary["goodput_rps"],
        gpu_hours=gpu_hours,
        fluid_bound_gpu_hours=bound_hours,
        fluid_bound_ratio=gpu_hours / bound_hours if bound_hours else None,
        ttft_s=Quantiles(**summary["ttft_s"]),
        itl_s=Quantiles(**summary["itl_s"]),
        tpot_s=Quantiles(**summary["tpot_s"]),
        e2e_s=Quantiles(**summary["e2e_s"]),
        scale_events=sum(int(np.count_nonzero(np.diff(pool.desired))) for pool in replicas.values()),
        direction_reversals=sum(_reversals(pool.desired) for pool in replicas.values()),
        simulated_s=history.moments[-1].time_s if history.moments else 0.0,
        attainable=1.0,
        gpus_per_replica=dict.fromkeys(replicas, 1),
        replicas=replicas,
        notes=[
            simulated_text(config.engine.time_scale),
            "live on Ray: latencies are what clients measured",
            f"GPU-seconds: {gpu_text(history)}",
            *tally.notes(),
        ],
        intervals=list(_intervals(result)),
    )


def gpu_text(history: History) -> str:
    """The fleet's cost, beside a fleet that has the crest's replicas all the time (one GPU each)."""
    used = sum(history.replica_seconds(role) for role in history.roles)
    span_s = history.moments[-1].time_s - history.moments[0].time_s if history.moments else 0.0
    fixed = span_s * sum(history.highest(role) for role in history.roles)
    share = (
        f", {100.0 * (used / fixed):.0f} % of the {fixed:,.0f} of the crest's fleet all the time"
        if fixed
        else ""
    )
    return f"{used:,.0f} simulated{share}"


def _fluid_bound_gpu_hours(result: DemoResult) -> float:
    """The work of the requests at the best throughput under the SLO."""
    plan, tally = result.plan, result.tally
    slo = Slo(ttft_s=plan.config.slo.ttft_s, itl_s=plan.config.slo.itl_s)
    bound = FluidBound(plan.profile, slo, shared_iterations=False)
    inputs = np.full(tally.completed, plan.input_tokens)
    outputs = np.full(tally.completed, plan.output_tokens)
    bound.add(inputs, outputs, inputs + outputs / 2.0)
    return bound.gpu_seconds / HOUR_S


def _intervals(result: DemoResult) -> Iterator[Interval]:
    """The decision log without intervals from before the load and those that were not measured."""
    for record in result.decisions:
        start_s, measured = record.interval.start_s - result.began_at, record.measured
        if measured.requests is None or start_s < 0.0:
            continue
        ttft, itl = (
            IntervalQuantiles(mean=each.mean, p50=each.p50, p95=each.p95, p99=each.p99)
            for each in (measured.ttft_s, measured.itl_s)
        )
        forecast = record.forecast
        yield Interval(
            start_s=start_s,
            end_s=record.interval.end_s - result.began_at,
            requests=round(measured.requests),
            ttft_s=ttft,
            itl_s=itl,
            attainment=measured.attainment,
            forecast=IntervalForecast(requests=forecast.requests) if forecast else None,
            targets={role.value: count for role, count in record.targets.items()},
            reasons=record.reasons,
        )


def _reversals(desired: Sequence[float]) -> int:
    """Changes against the direction of the one before."""
    steps = np.diff(desired)
    signs = np.sign(steps[steps != 0])
    return int(np.count_nonzero(np.diff(signs)))
