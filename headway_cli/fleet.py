"""A fleet in virtual time: its deployments under one budget, in fixed parts of it, or each by itself."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from headway.config import FleetConfig, HeadwayConfig
from headway.planning.sharing import Standing
from headway.simulation.deployments import SimulatedDeployment, simulate_fleet
from headway.simulation.report import SimulationReport, parse_report
from headway.simulation.simulate import Watchers
from headway.words import percent, plural
from headway.workload import TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job, Progress, execute, make_report
from headway_cli.options import fleet as parse_parts
from headway_cli.page.series import gpus_over_time

HARDLY_MORE = 1.05

BY_USE = "use"
"""Parts in proportion to the GPU-hours that each used of the common budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentUse:
    """One deployment's part in a budget: its report, and the requests that it lost."""

    name: str
    priority: int
    weight: float
    lost: int
    report: SimulationReport

    @property
    def attained(self) -> float:
        """Of what any fleet attains."""
        return (self.report.attainment or 0.0) / (self.report.attainable or 1.0)

    def keeps(self, other: "DeploymentUse") -> bool:
        """Whether it keeps its promise, or misses it by hardly more than another run did."""
        lost, before = 1.0 - self.attained, 1.0 - other.attained
        return lost <= max(1.0 - self.report.slo.attainment, HARDLY_MORE * before)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """One way to use the budget, and what came of it; `parts` are those of a budget that is split."""

    deployments: Sequence[DeploymentUse]
    parts: Mapping[str, int] | None = None

    @property
    def requests(self) -> int:
        """Requests of all deployments."""
        return sum(one.report.requests for one in self.deployments)

    @property
    def lost(self) -> int:
        """Those that did not meet their SLOs."""
        return sum(one.lost for one in self.deployments)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all deployments."""
        return sum(one.report.gpu_hours for one in self.deployments)

    def most_gpus(self) -> float:
        """The most GPUs that were asked for at once."""
        held = [gpus_over_time(one.report) for one in self.deployments]
        times = np.unique(np.concatenate([time_s for time_s, _ in held]))
        total = sum(counts[np.searchsorted(time_s, times, side="right") - 1] for time_s, counts in held)
        return float(np.max(total))

    def document(self) -> dict[str, Any]:
        """JSON-able data; keys are listed in docs/reference/results.md."""
        rows = [
            {key: getattr(one, key) for key in ("name", "priority", "weight", "lost")} | one.report.document()
            for one in self.deployments
        ]
        sums = {"requests": self.requests, "lost": self.lost, "gpu_hours": self.gpu_hours}
        whole = {**sums, "most_gpus": self.most_gpus(), "deployments": rows}
        return whole if self.parts is None else {"parts": dict(self.parts), **whole}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """A fleet and its common budget, if it has one; where it was asked for, the same split in fixed parts."""

    gpus: int | None
    whole: BudgetUse
    split: BudgetUse | None = None
    least: Sequence[str] = ()
    """Of budgets that were looked for, how they were found; a sentence for each."""

    def document(self) -> dict[str, Any]:
        """JSON-able data."""
        whole = {"gpus": self.gpus, **({"least": list(self.least)} if self.least else {})}
        whole |= self.whole.document()
        return whole if self.split is None else {**whole, "split": self.split.document()}


def parse_fleet(document: Mapping[str, Any]) -> FleetReport:
    """What `FleetReport.document` wrote; ReportError or KeyError for what is missing or wrong."""
    split = document.get("split")
    return FleetReport(
        gpus=document["gpus"],
        whole=_parse_use(document),
        split=None if split is None else _parse_use(split),
        least=document.get("least", ()),
    )


def _parse_use(document: Mapping[str, Any]) -> BudgetUse:
    deployments = [
        DeploymentUse(
            name=row["name"],
            priority=row["priority"],
            weight=row["weight"],
            lost=row["lost"],
            report=parse_report(row),
        )
        for row in document["deployments"]
    ]
    return BudgetUse(deployments=deployments, parts=document.get("parts"))


def fleet_jobs(fleet: FleetConfig, file: Path) -> Mapping[str, Job]:
    """The simulation of each deployment; their traces may lie beside `file`."""
    return {name: _job(name, config, file) for name, config in fleet.deployments.items()}


def _job(name: str, config: HeadwayConfig, file: Path) -> Job:
    load, place = config.simulation.load, f"{file}: deployments.{name}"
    if load.trace is None:
        raise CliError(f"{place}.simulation.load.trace: missing; a simulation needs its requests")
    beside = file.parent / load.trace
    options = TraceOptions(
        start_s=load.start_s,
        duration_s=load.duration_s,
        rate_scale=load.rate_scale,
        seed=config.simulation.seed,
    )
    trace = str(beside) if beside.is_file() else load.trace
    return Job(trace=trace, config=config, options=options, label=name, settings_file=place)


def run_budgets(
    jobs: Mapping[str, Job], budgets: Mapping[str, int | None], progress: Progress | None = None
) -> BudgetUse:
    """Simulate the deployments, those of each GPU type under its budget."""
    uses = dict[str, DeploymentUse]()
    for gpu_type, gpus in budgets.items():
        these = {name: job for name, job in jobs.items() if job.config.fleet.gpu_type == gpu_type}
        uses |= {use.name: use for use in run_fleet(these, gpus, progress).deployments}
    return BudgetUse(deployments=[uses[name] for name in jobs])


def run_least(jobs: Mapping[str, Job], types: Iterable[str], progress: Progress | None = None) -> FleetReport:
    """Simulate the deployments, those of each GPU type under the least budget on which all keep what they do
    without one.
    """
    uses, gpus, said = dict[str, DeploymentUse](), 0, list[str]()
    for gpu_type in types:
        these = {name: job for name, job in jobs.items() if job.config.fleet.gpu_type == gpu_type}
        free = run_fleet(these, None, progress)
        alone = {use.name: use for use in free.deployments}
        reports = {use.name: use.report for use in free.deployments}
        low = sum(_minimum(these[name].config, report) for name, report in reports.items()) - 1
        high, short = int(free.most_gpus()), ""
        found = run_fleet(these, high, progress)
        while high - low > 1:
            tried = run_fleet(these, middle := (low + high) // 2, progress)
            if missed := [use for use in tried.deployments if not use.keeps(alone[use.name])]:
                low, short = middle, ", ".join(f"{use.name} keeps {percent(use.attained)}" for use in missed)
            else:
                high, found = middle, tried
        uses |= {use.name: use for use in found.deployments}
        gpus += high
        of_type = f"{plural(high, f'{gpu_type} GPU'.lstrip())} suffice{'s' if high == 1 else ''}"
        said.append(
            f"{of_type} for what is kept with {free.most_gpus():.0f}, the most that all want at once"
            + (f"; with {low}, {short} of what can be kept" if short else "")
        )
    return FleetReport(gpus=gpus, whole=BudgetUse(deployments=[uses[name] for name in jobs]), least=said)


def run_fleet(jobs: Mapping[str, Job], gpus: int | None, progress: Progress | None = None) -> BudgetUse:
    """Simulate the deployments under one budget, or without one each by itself."""
    plans = {name: job.warmed_plan() for name, job in jobs.items()}
    with ExitStack() as opened:
        traces = {
            name: opened.enter_context(open_trace(job.trace, job.options)) for name, job in jobs.items()
        }
        longest = max(traces.values(), key=lambda trace: trace.duration_s)
        deployments = [
            SimulatedDeployment(
                name=name,
                scenario=job.scenario(plans[name], traces[name]),
                trace=traces[name],
                policy=plans[name].policy,
                forecaster=plans[name].asked_forecaster,
                learner=plans[name].learner(),
                state=plans[name].first_state(),
                standing=Standing(**job.config.share.model_dump()),
                watchers=Watchers(progress=progress if traces[name] is longest else None),
            )
            for name, job in jobs.items()
        ]
        began = perf_counter()
        results = simulate_fleet(deployments, gpus)
        wall_s = perf_counter() - began
        return BudgetUse(
            deployments=[
                _use(job, make_report(job, plans[name], traces[name], results[name], wall_s))
                for name, job in jobs.items()
            ]
        )


def run_split(jobs: Mapping[str, Job], gpus: int, parts: str, together: BudgetUse) -> BudgetUse:
    """Simulate the same deployments, each alone in its part: `chat=9,batch=3`, or by `use` of it."""
    split = _in_proportion(gpus, jobs, together) if parts == BY_USE else _stated(gpus, jobs, parts)
    uses = []
    for name, job in jobs.items():
        planner = job.config.planner.model_copy(update={"max_gpu_budget": split[name]})
        alone = replace(job, config=job.config.model_copy(update={"planner": planner}))
        uses.append(_use(job, execute(alone)))
    return BudgetUse(deployments=uses, parts=split)


def _stated(gpus: int, jobs: Mapping[str, Job], text: str) -> Mapping[str, int]:
    parts = parse_parts("--split", text, also=f"{BY_USE} or ")
    if odd := sorted(parts.keys() ^ jobs.keys()):
        raise CliError(f"--split: should name each deployment once, and {odd[0]} is not in both")
    if sum(parts.values()) > gpus:
        raise CliError(f"--split: the parts are {sum(parts.values())} GPUs, fleet.gpus is {gpus}")
    return parts


def _in_proportion(gpus: int, jobs: Mapping[str, Job], together: BudgetUse) -> Mapping[str, int]:
    """What each needs at least, and the rest as it was used: whole parts by largest remainder."""
    reports = {one.name: one.report for one in together.deployments}
    least = {name: _minimum(job.config, reports[name], 1) for name, job in jobs.items()}
    spare, used = gpus - sum(least.values()), together.gpu_hours or 1.0
    if spare < 0:
        raise CliError(f"--split: {gpus} GPUs are too few for a replica of each pool ({sum(least.values())})")
    exact = {name: spare * report.gpu_hours / used for name, report in reports.items()}
    parts = {name: least[name] + int(part) for name, part in exact.items()}
    by_rest = sorted(exact, key=lambda name: int(exact[name]) - exact[name])
    for name in by_rest[: gpus - sum(parts.values())]:
        parts[name] += 1
    return parts


def _minimum(config: HeadwayConfig, report: SimulationReport, replicas: int = 0) -> int:
    """GPUs of its least replicas, of each pool at least so many."""
    pools = config.pools.items()
    return sum(max(replicas, pool.min_replicas) * report.gpus_per_replica[role] for role, pool in pools)


def _use(job: Job, report: SimulationReport) -> DeploymentUse:
    attained, share = report.attainment, job.config.share
    return DeploymentUse(
        name=job.label,
        priority=share.priority,
        weight=share.weight,
        lost=0 if attained is None else round(report.requests * (1.0 - attained)),
        report=report,
    )
