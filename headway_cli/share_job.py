"""`headway share` as data: the deployments of a file under one budget, and each alone in a part of it."""

from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from headway.planning.hindsight import HeadwayPolicy
from headway.simulation.build import Plan
from headway.simulation.demand import reach
from headway.simulation.sharing import Tenant, simulate_shared
from headway.simulation.simulate import Watchers
from headway.workload import Trace, open_trace
from headway_cli.document import Outcome, make_document
from headway_cli.errors import CliError
from headway_cli.job import Job, Progress, execute
from headway_cli.page.series import gpus_over_time
from headway_cli.share_file import SharedBudget, SharedDeployment

Document = dict[str, Any]


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
