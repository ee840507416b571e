"""`headway share`: several deployments under one GPU budget, from a YAML file (examples/share.yaml is one).

    gpus:        the budget
    deployments: a list of {name, trace, rate_scale, start_s, duration_s, priority, weight, part,
                 config, settings}

`trace` and `config` are looked for beside the file, then as they are. `settings` are dotted keys that lie
over `config`.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import Field, ValidationError, field_validator, model_validator

from headway.config import load_config
from headway.config.base import NonNegativeFloat, PositiveFloat, PositiveInt, Settings
from headway.config.errors import ConfigError
from headway.config.faults import describe
from headway.config.loading import OPTIONS
from headway.config.reading import read_yaml
from headway.planning.hindsight.policy import HeadwayPolicy
from headway.simulation.build import Plan
from headway.simulation.demand import reach
from headway.simulation.sharing import Tenant, simulate_shared
from headway.simulation.simulate import Watchers
from headway.workload import Trace, TraceOptions, open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job, Outcome, Progress, execute, make_document
from headway_cli.output import STDOUT, check_outputs, write_json, write_text
from headway_cli.page.series import gpus_over_time
from headway_cli.studies.share_view import print_shared, render
from headway_cli.tables import console
from headway_cli.terminal import announce_compilation, bar

MOST_GPUS = 100_000
Document = dict[str, Any]


def share(
    *,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The deployments and their budget (YAML).")],
    split: Annotated[
        bool,
        typer.Option("--split", help="Also run each alone in a fixed part of the budget, for comparison."),
    ] = False,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the results; - is standard output.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write one self-contained HTML page.")
    ] = None,
) -> None:
    """Simulate deployments that share a GPU budget by priority: attainment, cost, who held what."""
    check_outputs({"--json": json, "--report": report}, (file,))
    path = Path(file)
    shared = read_shared(path)
    announce_compilation()
    with bar("simulating") as progress:
        document = run_shared(shared, path, progress)
        if split:
            document["split"] = run_split(shared, path, document)
    if report is not None:
        write_text(Path(report), render(document))
    if json is not None:
        write_json(json, document)
    print_shared(document, console(to_stderr=json == STDOUT))


class SharedDeployment(Settings):
    """One deployment. The highest priority comes first; `part` is what it gets of a budget that is split."""

    name: Annotated[str, Field(min_length=1, max_length=60)]
    trace: str
    priority: int = 0
    weight: PositiveFloat = 1.0
    part: PositiveInt | None = None
    rate_scale: PositiveFloat = 1.0
    start_s: NonNegativeFloat = 0.0
    duration_s: PositiveFloat | None = None
    config: str | None = None
    settings: Mapping[str, Any] = Field(default_factory=dict)

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
    try:
        return SharedBudget.model_validate(read_yaml(path))
    except ValidationError as error:
        key, fault = describe(error, SharedBudget.model_json_schema())
        raise ConfigError(f"{path}: {key}: {fault}" if key else f"{path}: {fault}") from error


def _found(place: str, beside: Path) -> str:
    return str(beside / place) if (beside / place).is_file() else place


def run_shared(shared: SharedBudget, file: Path, progress: Progress | None = None) -> Document:
    """The document of the shared budget; `file` is where it was read. Keys: docs/reference.md."""
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
        documents = []
        for tenant, job, plan, trace in zip(tenants, jobs, plans, traces, strict=True):
            known = reach(trace, tenant.scenario.mix, plan.profile, plan.transfer)
            outcome = Outcome(plan=plan, trace=trace, reach=known, result=results[tenant.name], wall_s=wall_s)
            documents.append(make_document(outcome, job.trace, job.options))
    return {"gpus": shared.gpus, **_together(shared, documents)}


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
        priority=deployment.priority,
        weight=deployment.weight,
        watchers=Watchers(progress=progress),
    )


def run_split(shared: SharedBudget, file: Path, together: Document) -> Document:
    """The same deployments, each alone in its part, as a document like that of `run_shared`."""
    jobs = {one.name: one.job(file) for one in shared.deployments}
    rows = {row["name"]: row for row in together["deployments"]}
    minimums = {
        name: sum(
            gpus * jobs[name].config.pools[role].min_replicas
            for role, gpus in row["gpus_per_replica"].items()
        )
        for name, row in rows.items()
    }
    parts = shared.parts(minimums, {name: row["gpu_hours"] for name, row in rows.items()})
    documents = [execute(one.job(file, parts[one.name])) for one in shared.deployments]
    return {"parts": dict(parts), **_together(shared, documents)}


def _together(shared: SharedBudget, documents: list[Document]) -> Document:
    rows = [_row(one, document) for one, document in zip(shared.deployments, documents, strict=True)]
    held = [gpus_over_time(row) for row in rows]
    times = np.unique(np.concatenate([time_s for time_s, _ in held]))
    total = sum(counts[np.searchsorted(time_s, times, side="right") - 1] for time_s, counts in held)
    return {
        "requests": sum(row["requests"] for row in rows),
        "lost": sum(row["lost"] for row in rows),
        "gpu_hours": sum(row["gpu_hours"] for row in rows),
        "most_gpus": float(np.max(total)),
        "deployments": rows,
    }


def _row(deployment: SharedDeployment, document: Document) -> Document:
    attainment = document["attainment"]
    return {
        "name": deployment.name,
        "priority": deployment.priority,
        "weight": deployment.weight,
        "lost": 0 if attainment is None else round(document["requests"] * (1.0 - attainment)),
        **document,
    }
