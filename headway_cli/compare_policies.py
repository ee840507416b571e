"""Comparing policies on one trace: `--policies reference,static:prefill=4:decode=8` gives a row each.

An item is NAME[:KEY=VALUE…]. A key is a role (the fleet of `static`) or a key of `planner` in the
configuration (`reference:predictor=arima`). `static:auto` is the cheapest fixed fleet that meets the SLO.

All settings are checked in this process before any other starts, and a tiny simulation compiles what is not
in the cache, so that the processes do not each do it.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import yaml

from headway.config import load_config
from headway.planning import Role
from headway.simulation.build import Plan
from headway.workload import open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job, execute
from headway_cli.options import RunOptions, configuration, trace_options
from headway_cli.static_fleets import Fleet, cheapest, grid, pareto
from headway_cli.terminal import bar
from headway_cli.workers import gather, opened, sheltered, work, workers

AUTO = "static:auto"

SHARED = ("profile", "trace", "slo", "routing", "seed", "attainable")
LEFT_OUT = ("intervals", "utilisation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One policy to compare: its label, and the configuration keys that make it."""

    label: str
    overrides: dict[str, Any] = field(default_factory=dict)


def parse_policies(text: str) -> tuple[Candidate, ...]:
    """The candidates in their order; CliError for an item that cannot be read or comes twice."""
    candidates = tuple(_candidate(item.strip()) for item in text.split(",") if item.strip())
    if not candidates:
        raise CliError("--policies: no policy given")
    labels = [candidate.label for candidate in candidates]
    if repeated := next((label for label in labels if labels.count(label) > 1), None):
        raise CliError(f"--policies: {repeated} comes twice")
    return candidates


def static_candidate(counts: dict[Role, int]) -> Candidate:
    """A fixed fleet."""
    keys: dict[str, Any] = {f"planner.static.{role}": count for role, count in counts.items()}
    label = ":".join(["static", *(f"{role}={count}" for role, count in counts.items())])
    return Candidate(label=label, overrides={"planner.policy": "static", **keys})


def any_fleet(label: str) -> Candidate:
    """A stand-in for a fixed fleet that is not known yet: its policy goes with any pools."""
    return Candidate(label=label, overrides={"planner.policy": "threshold"})


def _candidate(item: str) -> Candidate:
    if item == AUTO:
        return any_fleet(AUTO)
    name, *pairs = item.split(":")
    keys: dict[str, Any] = {}
    for key, value in _overrides(item, pairs):
        if key in keys:
            raise CliError(f"--policies: {item}: {key} is given twice")
        keys[key] = value
    return Candidate(label=item, overrides={"planner.policy": name, **keys})


def _overrides(item: str, pairs: list[str]) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not key or not equals or not value:
            raise CliError(f"--policies: {item}: expected KEY=VALUE, got {pair!r}")
        name = f"planner.static.{key}" if key in set(Role) else f"planner.{key}"
        yield name, _value(f"--policies: {item}: {key}", value)


def _value(place: str, text: str) -> Any:  # noqa: ANN401 - any setting
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CliError(f"{place}: {text[:40]!r} is not a value in YAML") from error


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
