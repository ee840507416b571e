"""Running a comparison: candidates → jobs → one document with a row for each.

All settings are checked in this process before any other starts, and a tiny simulation compiles what is not
in the cache, so that the processes do not each do it.
"""

from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from headway.config import load_config
from headway.simulation.build import Plan
from headway.workload import open_trace
from headway_cli.job import Job, execute
from headway_cli.options import RunOptions
from headway_cli.policies import AUTO, Candidate, any_fleet, static_candidate
from headway_cli.pool import gather, opened, sheltered, work, workers
from headway_cli.progress import bar
from headway_cli.sweep import Fleet, cheapest, grid, pareto
from headway_cli.wiring import configuration, trace_options

SHARED = ("profile", "trace", "slo", "routing", "seed", "attainable")
LEFT_OUT = ("intervals", "utilisation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What to compare, on what."""

    trace: str
    options: RunOptions
    candidates: tuple[Candidate, ...]
    static_sweep: bool
    jobs: int

    def job(self, candidate: Candidate) -> Job:
        """The simulation of one candidate."""
        config = configuration(self.options, candidate.overrides)
        options = trace_options(self.options, config.simulation.seed)
        return Job(
            trace=self.trace,
            config=config,
            options=options,
            label=candidate.label,
            settings_file=self.options.config,
        )

    def static_plan(self) -> Plan:
        """The deployment, for questions about fixed fleets."""
        return self.job(any_fleet("static")).plan()


def run_comparison(comparison: Comparison) -> dict[str, Any]:
    """All results: `policies`, one document each, and with a sweep `static_pareto`."""
    jobs = _checked(comparison)
    swept = _swept(comparison) if comparison.static_sweep else []
    _compile()
    with workers(comparison.jobs) as pool, bar("comparing") as report:
        total, done = len(jobs) + len(swept), 0

        def finished() -> None:
            nonlocal done
            done += 1
            if report:
                report(done, total)

        with sheltered():
            futures = [_submit(comparison, job, pool) for job in jobs]
            futures += [pool.submit(work, job) for job in swept]
        documents = gather(futures, finished)
    return _combined(documents[: len(jobs)], documents[len(jobs) :])


def _submit(comparison: Comparison, job: Job, pool: ProcessPoolExecutor) -> "Future[dict[str, Any]]":
    return pool.submit(find_static, comparison) if job.label == AUTO else pool.submit(work, job)


def _checked(comparison: Comparison) -> list[Job]:
    jobs = []
    for candidate in comparison.candidates:
        job = comparison.job(candidate)
        job.plan()
        jobs.append(job)
    return jobs


def _swept(comparison: Comparison) -> list[Job]:
    plan = comparison.static_plan()
    options = trace_options(comparison.options, plan.config.simulation.seed)
    with open_trace(comparison.trace, options) as trace:
        fleets = grid(plan, trace)
    return [comparison.job(static_candidate(fleet)) for fleet in fleets]


def find_static(comparison: Comparison) -> dict[str, Any]:
    """The document of the cheapest fixed fleet that meets the target."""
    plan = comparison.static_plan()
    trace = opened(comparison.trace, trace_options(comparison.options, plan.config.simulation.seed))
    tried: dict[tuple[int, ...], dict[str, Any]] = {}

    def attain(fleet: Fleet) -> float:
        document = work(comparison.job(static_candidate(fleet)))
        tried[tuple(fleet.values())] = document
        return float(document["attainment"] or 0.0)

    best = cheapest(plan, trace, attain)
    counts = " ".join(f"{role}={count}" for role, count in best.items())
    document = tried[tuple(best.values())]
    return {**document, "label": f"{AUTO} ({counts})", "fleets_tried": len(tried)}


def _compile() -> None:
    config = load_config(None, {"planner.policy": "static"})
    execute(Job(trace="steady:rate_rps=1,duration_s=10", config=config))


def _combined(documents: list[dict[str, Any]], swept: list[dict[str, Any]]) -> dict[str, Any]:
    shared = {key: documents[0][key] for key in SHARED}
    combined: dict[str, Any] = {**shared, "policies": [_row(document) for document in documents]}
    if swept:
        combined["static_fleets_tried"] = len(swept)
        combined["static_pareto"] = [_row(dict(document)) for document in pareto(swept)]
    return combined


def _row(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in (*SHARED, *LEFT_OUT)}
