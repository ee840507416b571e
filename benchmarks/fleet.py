"""A generated fleet of many models, few of them busy: what sleep, zero and a common budget are worth.

    python -m benchmarks fleet [--quick] [--workers N]

30 models for a day (`headway generate fleet:models=30,hours=24`), or with --quick 10 for 6 hours. Rare models
may have no replica, and one engine that sleeps and wakes in 3 s. Each is planned alone, without a budget, and
beside it stand

    static        the least fleet, at least one replica, that keeps 99 % of the whole load, by replay; nobody
                  knows it beforehand
    from zero     the same planner where none sleeps
    never zero    where a rare model keeps one replica
    clairvoyant   for each ten minutes the least fleet that keeps 99 % of them, by replay; it is there in
                  time, and its starts are paid for
    bound         every GPU always at its best throughput, in fractions

Attained is of what an idle replica keeps. A request is cold if there was no ready replica when it came, and
until there was one it had waited for longer than its TTFT target: first if none was even starting. Reversals
are changes of direction an hour.

Then all plan under one budget, 70 % of the most GPUs that they asked for at once. Beside what the lower
priority loses stands what the exact division of the GPUs that the higher one leaves loses, minute by minute,
if it knows what comes and moves GPUs in no time.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from multiprocessing import Pool
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from benchmarks.mismatch import GOAL, least_fleet
from benchmarks.policies.recording import Recording, read
from headway.config import load_fleet
from headway.planning import Role
from headway.planning.replay import ReplayEngine, Requests, mixed_losses
from headway.planning.sharing import spend
from headway.simulation.build import Plan
from headway.simulation.report import SimulationReport
from headway.workload.fleet import parse_fleet_spec
from headway_cli.fleet import BudgetUse, DeploymentUse
from headway_cli.fleet_runs import fleet_jobs, run_fleet
from headway_cli.job import Job

SPEC, QUICK = "fleet:models=30,hours=24", "fleet:models=10,hours=6,rate_rps=6"
MINUTE_S, WINDOW_S, HOUR_S = 60.0, 600.0, 3600.0
SHORT_OF = 0.7
"""The budget over the crest."""


class Run(NamedTuple):
    """One run of a model; `first` and `starting` are its cold requests."""

    use: DeploymentUse
    first: int
    starting: int

    @property
    def attained(self) -> float:
        return self.use.attained

    @property
    def gpu_hours(self) -> float:
        return self.use.report.gpu_hours

    @property
    def kept(self) -> bool:
        return self.attained >= GOAL


class Model(NamedTuple):
    """One model alone: GPU-hours of the fleets beside it, and its runs. A busy one has but one run."""

    name: str
    rare: bool
    static: float
    clairvoyant: float
    asleep: Run
    zero: Run
    never: Run


def main(data: Path | None, *, quick: bool = False, workers: int | None = None) -> int:
    """Print the tables."""
    del data
    spec = QUICK if quick else SPEC
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        file.write_text(yaml.safe_dump(parse_fleet_spec(spec, 0).settings()))
        jobs = fleet_jobs(load_fleet(file), file)
    print(f"`{spec}`\n\n{HEAD}\n" + "|---" * HEAD.count(" | ") + "|---|")
    models = list[Model]()
    with Pool(workers) as pool:
        for each in pool.imap(_alone, jobs.values()):
            models.append(each)
            print(_row(each), flush=True)
    print(_totals(models))
    uses = [each.asleep.use for each in models]
    budget = round(SHORT_OF * BudgetUse(deployments=uses).most_gpus())
    print(_contention(jobs, uses, budget, run_fleet(jobs, budget)))
    return 0


def _alone(job: Job) -> Model:
    plan, requests = job.plan(), read(job.trace, job.options)
    rare, asleep = _is_rare(job), _run(job, requests)
    return Model(
        name=job.label,
        rare=rare,
        static=_gpu_hours(plan, requests, requests.duration_s),
        clairvoyant=_clairvoyant(plan, requests),
        asleep=asleep,
        zero=_run(_of(job, sleepers=0), requests) if rare else asleep,
        never=_run(_of(job, sleepers=0, min_replicas=1), requests) if rare else asleep,
    )


def _is_rare(job: Job) -> bool:
    return job.config.pools["mixed"].min_replicas == 0


def _of(job: Job, **bounds: int) -> Job:
    """The same with other bounds of the pool."""
    pool = job.config.pools["mixed"].model_copy(update=bounds)
    return replace(job, config=job.config.model_copy(update={"pools": {"mixed": pool}}))


def _run(job: Job, requests: Recording) -> Run:
    (use,) = run_fleet({job.label: job}, None).deployments
    return Run(use, *_cold(use.report, requests.arrival_s))


def _cold(report: SimulationReport, arrival_s: NDArray[np.float64]) -> tuple[int, int]:
    """Requests that came while nothing was ready and waited too long for it: asleep, and starting."""
    series = report.replicas["mixed"]
    times, ready, desired = (np.array(each) for each in (series.time_s, series.ready, series.desired))
    place = np.searchsorted(times, arrival_s, side="right") - 1
    # From each change on: when a replica is ready.
    ready_s = np.where(ready > 0, times, np.inf)[::-1]
    next_s = np.minimum.accumulate(ready_s)[::-1]
    cold = (ready[place] == 0) & (next_s[place] - arrival_s > report.slo.ttft_s)
    first = cold & (desired[np.searchsorted(times, arrival_s, side="left") - 1] == 0)
    return int(first.sum()), int((cold & ~first).sum())


def _gpu_hours(plan: Plan, requests: Recording, span_s: float) -> float:
    return _replicas(plan, requests) * plan.settings.limits[Role.MIXED].gpus_per_replica * span_s / HOUR_S


def _replicas(plan: Plan, requests: Recording) -> int:
    engine = ReplayEngine.of(plan.profile, plan.settings.slo, plan.engine)
    return least_fleet(plan, requests, engine)[Role.MIXED] if len(requests.arrival_s) else 0


def _clairvoyant(plan: Plan, requests: Recording) -> float:
    """GPU-hours."""
    edges = np.searchsorted(requests.arrival_s, np.arange(0.0, requests.duration_s + WINDOW_S, WINDOW_S))
    arrival_s, inputs, outputs = requests.arrival_s, requests.input_tokens, requests.output_tokens
    rows = [slice(low, high) for low, high in pairwise(edges)]
    parts = [Recording(arrival_s[part], inputs[part], outputs[part], WINDOW_S) for part in rows]
    counts = np.array([_replicas(plan, part) for part in parts])
    started = np.maximum(np.diff(counts), 0).sum()
    delay_s = plan.config.simulation.start_up_delay_s
    gpus = plan.settings.limits[Role.MIXED].gpus_per_replica
    return float(counts.sum() * WINDOW_S + started * delay_s) * gpus / HOUR_S


def _reversals(report: SimulationReport) -> float:
    return report.direction_reversals / (report.simulated_s / HOUR_S)


HEAD = (
    "| model | profile | requests | attained | GPU-hours | from zero (attained; cold: first, others) "
    "| never zero (attained) | static | clairvoyant | bound | reversals/h |"
)


def _row(each: Model) -> str:
    report, zero, never = each.asleep.use.report, "–", "–"
    if each.rare:
        cold = f"{each.zero.first}, {each.zero.starting}"
        zero = f"{each.zero.gpu_hours:.1f} ({each.zero.attained:.2%}; {cold})"
        never = f"{each.never.gpu_hours:.1f} ({each.never.attained:.2%})"
    return (
        f"| {each.name}{' (rare)' if each.rare else ''} | {report.profile} | {report.requests:,} "
        f"| {each.asleep.attained:.2%} | {each.asleep.gpu_hours:.1f} | {zero} "
        f"| {never} | {each.static:.1f} | {each.clairvoyant:.1f} | {report.fluid_bound_gpu_hours:.2f} "
        f"| {_reversals(report):.1f} |"
    )


def _totals(models: Sequence[Model]) -> str:
    """Sums over the fleet, and how many models keep the goal."""
    static, never = sum(each.static for each in models), sum(each.never.gpu_hours for each in models)
    bound = sum(each.asleep.use.report.fluid_bound_gpu_hours for each in models)
    rows = {
        "headway": [each.asleep for each in models],
        "from zero": [each.zero for each in models],
        "never zero": [each.never for each in models],
    }
    head = "planned | GPU-hours | × static | × never zero | models ≥ 99 % | lost, cold of these | reversals/h"
    lines = [f"\n| {head} |\n" + "|---" * 7 + "|"]
    for name, runs in rows.items():
        hours, kept = sum(run.gpu_hours for run in runs), sum(run.kept for run in runs)
        cold, lost = sum(run.first + run.starting for run in runs), sum(run.use.lost for run in runs)
        turns = max(_reversals(run.use.report) for run in runs)
        lines.append(
            f"| {name} | {hours:.0f} | {hours / static:.3f} | {hours / never:.3f} | {kept} of {len(runs)} "
            f"| {lost:,}, {cold:,} | {turns:.1f} |"
        )
    clairvoyant = sum(each.clairvoyant for each in models)
    lines += [
        f"| {name} | {hours:.0f} | {hours / static:.3f} | {hours / never:.3f} | | | |"
        for name, hours in (("static", static), ("clairvoyant", clairvoyant), ("bound", bound))
    ]
    return "\n".join(lines)


def _exact_division(jobs: Mapping[str, Job], shared: BudgetUse, budget: int) -> int:
    """Requests of the lowest priority that are lost by it."""
    lowest = min(use.priority for use in shared.deployments)
    report = shared.deployments[0].report
    edges = np.arange(0.0, report.simulated_s + MINUTE_S, MINUTE_S)
    left = np.full(len(edges) - 1, budget)
    for use in shared.deployments:
        if use.priority > lowest:
            left -= _most_held(use.report, edges)
    totals = [np.zeros(max(0, int(gpus)) + 1) for gpus in left]
    for use in shared.deployments:
        if use.priority == lowest:
            plan, requests = jobs[use.name].plan(), read(jobs[use.name].trace, jobs[use.name].options)
            engine = ReplayEngine.of(plan.profile, plan.settings.slo, plan.engine)
            gpus = plan.settings.limits[Role.MIXED].gpus_per_replica
            columns = (requests.arrival_s, requests.input_tokens, requests.output_tokens)
            cuts = np.searchsorted(requests.arrival_s, edges)
            for minute in np.flatnonzero(np.diff(cuts)):
                part = slice(cuts[minute], cuts[minute + 1])
                came = Requests(*(column[part].astype(np.float64) for column in columns))
                lost = mixed_losses(engine, came, 0, 1).lost.astype(np.float64)
                totals[minute], _ = spend(totals[minute], lost, gpus)
    return round(sum(each[-1] for each in totals))


def _most_held(report: SimulationReport, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """The most GPUs that a deployment asked for in each part."""
    series = report.replicas["mixed"]
    desired, times = np.array(series.desired), np.array(series.time_s)
    first = np.maximum(np.searchsorted(times, edges, side="right") - 1, 0)
    most = [desired[low : high + 1].max() for low, high in pairwise(first.tolist())]
    return np.array(most) * report.gpus_per_replica["mixed"]


def _contention(
    jobs: Mapping[str, Job], alone: Sequence[DeploymentUse], budget: int, shared: BudgetUse
) -> str:
    """By priority: requests lost alone and on the budget, and the least that a model attained."""
    head = "priority | requests | lost alone | lost | least attained | ≥ 99 % (alone) | GPU-hours (alone)"
    lines = [f"\n{budget} GPUs for all, {shared.most_gpus():.0f} asked for at once"]
    lines.append(f"\n| {head} | reversals/h |\n" + "|---" * 8 + "|")
    for priority in sorted({use.priority for use in alone}, reverse=True):
        before, after = (
            [use for use in uses if use.priority == priority] for uses in (alone, shared.deployments)
        )
        kept = [sum(use.attained >= GOAL for use in uses) for uses in (after, before)]
        hours = [sum(use.report.gpu_hours for use in uses) for uses in (after, before)]
        lines.append(
            f"| {priority} | {sum(use.report.requests for use in after):,} "
            f"| {sum(use.lost for use in before):,} | {sum(use.lost for use in after):,} "
            f"| {min(use.attained for use in after):.2%} | {kept[0]} ({kept[1]}) of {len(after)} "
            f"| {hours[0]:.0f} ({hours[1]:.0f}) | {max(_reversals(use.report) for use in after):.1f} |"
        )
    lines.append(
        f"\nlost of the lowest priority by an exact division: {_exact_division(jobs, shared, budget):,}"
    )
    return "\n".join(lines)
