"""Deployments that share a GPU budget: a YAML file (examples/share.yaml is one), and its simulation.

    gpus:        the budget
    deployments: a list of {name, trace, rate_scale, start_s, duration_s, priority, weight, floor_gpus,
                 ceiling_gpus, lend, part, config, settings}

`trace` and `config` are looked for beside the file, then as they are. `settings` are dotted keys that lie
over `config`.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
from pydantic import Field, field_validator, model_validator

from headway.config import load_config
from headway.config.base import ConfigError, NonNegativeFloat, PositiveFloat, PositiveInt, Settings
from headway.config.models import OPTIONS, read_settings
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.planning.sharing import Standing
from headway.simulation.build import Plan
from headway.simulation.report import SimulationReport, parse_report
from headway.simulation.simulate import Watchers
from headway.workload import Trace, TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job, Progress, execute, make_report
from headway_cli.page.series import gpus_over_time
from headway_studies.sharing_simulation import Tenant, simulate_shared

MOST_GPUS = 100_000


class SharedDeployment(Settings):
    """One deployment. The highest priority comes first; `part` is what it gets of a budget that is split."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    trace: str
    priority: int = 0
    weight: PositiveFloat = 1.0
    floor_gpus: Annotated[int, Field(ge=0, le=MOST_GPUS)] = 0
    ceiling_gpus: PositiveInt | None = None
    lend: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    part: PositiveInt | None = None
    rate_scale: PositiveFloat = 1.0
    start_s: NonNegativeFloat = 0.0
    duration_s: PositiveFloat | None = None
    config: str | None = None
    settings: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _bounds_in_order(self) -> "SharedDeployment":
        if self.ceiling_gpus is not None and self.ceiling_gpus < self.floor_gpus:
            raise ValueError(f"ceiling_gpus {self.ceiling_gpus} is below floor_gpus {self.floor_gpus}")
        return self

    @property
    def standing(self) -> Standing:
        """Its standing among the others."""
        return Standing(
            priority=self.priority,
            weight=self.weight,
            floor_gpus=self.floor_gpus,
            ceiling_gpus=self.ceiling_gpus,
            lend=self.lend,
        )

    def job(self, file: Path, max_gpus: int | None = None) -> Job:
        """Its simulation; alone in `max_gpus` where they are given. The policy is always `headway`.

        `file` is where this was read. ConfigError has one line: file, name, key, fault.
        """
        config = None if self.config is None else _found(self.config, file.parent)
        policy = {"planner.policy": "headway", "planner.max_gpu_budget": max_gpus}
        try:
            made = load_config(config, {**self.settings, **policy})
        except ConfigError as error:
            raise ConfigError(f"{file}: {self.name}: {str(error).removeprefix(f'{OPTIONS}: ')}") from error
        options = TraceOptions(
            start_s=self.start_s,
            duration_s=self.duration_s,
            rate_scale=self.rate_scale,
            seed=made.simulation.seed,
        )
        trace, source = _found(self.trace, file.parent), f"{file}: {self.name}"
        return Job(trace=trace, config=made, options=options, label=self.name, settings_file=source)


class SharedBudget(Settings):
    """The file."""

    gpus: Annotated[PositiveInt, Field(le=MOST_GPUS)]
    deployments: Annotated[list[SharedDeployment], Field(min_length=1, max_length=1000)]

    @field_validator("deployments")
    @classmethod
    def _distinct(cls, deployments: list[SharedDeployment]) -> list[SharedDeployment]:
        names = [one.name for one in deployments]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the name {twice[0]!r} is there twice")
        return deployments

    @model_validator(mode="after")
    def _floors_fit(self) -> "SharedBudget":
        floors = {one.name: one.floor_gpus for one in self.deployments if one.floor_gpus}
        if sum(floors.values()) > self.gpus:
            each = ", ".join(f"{name} {floor}" for name, floor in floors.items())
            raise ValueError(f"{self.gpus} GPUs do not hold the floors of all deployments ({each})")
        return self

    @model_validator(mode="after")
    def _parts_fit(self) -> "SharedBudget":
        stated = [one.part for one in self.deployments if one.part is not None]
        if stated and len(stated) < len(self.deployments):
            raise ValueError("either all deployments have a part or none")
        if sum(stated) > self.gpus:
            raise ValueError(f"the parts are {sum(stated)} GPUs, the budget is {self.gpus}")
        return self

    def parts(self, minimums: Mapping[str, int], used: Mapping[str, float]) -> Mapping[str, int]:
        """Fixed parts of the budget: those of the file, else minimums and the rest as it was `used`."""
        stated = {one.name: one.part for one in self.deployments if one.part is not None}
        return stated or _in_proportion(self.gpus, minimums, used)


def _in_proportion(gpus: int, minimums: Mapping[str, int], used: Mapping[str, float]) -> Mapping[str, int]:
    """Whole parts by largest remainder."""
    spare, total = gpus - sum(minimums.values()), sum(used.values()) or 1.0
    exact = {name: least + spare * used[name] / total for name, least in minimums.items()}
    parts = {name: int(part) for name, part in exact.items()}
    for name in sorted(exact, key=lambda name: parts[name] - exact[name])[: gpus - sum(parts.values())]:
        parts[name] += 1
    return parts


def read_shared(path: Path) -> SharedBudget:
    """The deployments in a file; ConfigError has one line: file, key, fault."""
    return read_settings(path, SharedBudget)


def _found(place: str, beside: Path) -> str:
    return str(beside / place) if (beside / place).is_file() else place


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentUse:
    """One deployment's part in a budget: its report, and the requests that it lost."""

    name: str
    priority: int
    weight: float
    lost: int
    report: SimulationReport


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
class ShareReport:
    """A budget that was shared, and, where it was asked for, the same split in fixed parts."""

    gpus: int
    shared: BudgetUse
    split: BudgetUse | None = None

    def document(self) -> dict[str, Any]:
        """JSON-able data."""
        whole = {"gpus": self.gpus, **self.shared.document()}
        return whole if self.split is None else {**whole, "split": self.split.document()}


def parse_shared(document: Mapping[str, Any]) -> ShareReport:
    """What `ShareReport.document` wrote; ReportError or KeyError for what is missing or wrong."""
    split = document.get("split")
    return ShareReport(
        gpus=document["gpus"], shared=_parse_use(document), split=None if split is None else _parse_use(split)
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


def run_shared(shared: SharedBudget, file: Path, progress: Progress | None = None) -> BudgetUse:
    """Simulate the deployments under one budget; `file` is where it was read."""
    jobs = [one.job(file) for one in shared.deployments]
    plans = [job.warmed_plan() for job in jobs]
    with ExitStack() as opened:
        traces = [opened.enter_context(open_trace(job.trace, job.options)) for job in jobs]
        longest = max(traces, key=lambda trace: trace.duration_s)
        tenants = [
            _tenant(deployment, job, plan, trace, progress if trace is longest else None)
            for deployment, job, plan, trace in zip(shared.deployments, jobs, plans, traces, strict=True)
        ]
        began = perf_counter()
        results = simulate_shared(tenants, shared.gpus)
        wall_s = perf_counter() - began
        return BudgetUse(
            deployments=[
                _use(deployment, make_report(job, plan, trace, results[deployment.name], wall_s))
                for deployment, job, plan, trace in zip(shared.deployments, jobs, plans, traces, strict=True)
            ]
        )


def _tenant(
    deployment: SharedDeployment, job: Job, plan: Plan, trace: Trace, progress: Progress | None
) -> Tenant:
    if not isinstance(plan.policy, HeadwayPolicy):
        raise CliError(f"{deployment.name}: planner.policy: only headway shares a budget")
    return Tenant(
        name=deployment.name,
        scenario=job.scenario(plan, trace),
        trace=trace,
        policy=plan.policy,
        forecaster=plan.asked_forecaster,
        state=plan.first_state(),
        standing=deployment.standing,
        watchers=Watchers(progress=progress),
    )


def run_split(shared: SharedBudget, file: Path, together: BudgetUse) -> BudgetUse:
    """Simulate the same deployments, each alone in its part."""
    jobs = {one.name: one.job(file) for one in shared.deployments}
    reports = {one.name: one.report for one in together.deployments}
    minimums = {
        name: sum(
            pool.min_replicas * report.gpus_per_replica[role]
            for role, pool in jobs[name].config.pools.items()
        )
        for name, report in reports.items()
    }
    parts = shared.parts(minimums, {name: report.gpu_hours for name, report in reports.items()})
    uses = [_use(one, execute(one.job(file, parts[one.name]))) for one in shared.deployments]
    return BudgetUse(deployments=uses, parts=parts)


def _use(deployment: SharedDeployment, report: SimulationReport) -> DeploymentUse:
    attained = report.attainment
    return DeploymentUse(
        name=deployment.name,
        priority=deployment.priority,
        weight=deployment.weight,
        lost=0 if attained is None else round(report.requests * (1.0 - attained)),
        report=report,
    )
