"""Comparing policies on one trace: `--policies reference,static:prefill=4:decode=8` gives a row each.

An item is NAME[:KEY=VALUE…]. A key is a role (the fleet of `static`) or a key of `planner` in the
configuration (`reference:predictor=arima`). `static:auto` is the cheapest fixed fleet that meets the SLO.

All settings are checked in this process before any other starts, and a tiny simulation compiles what is not
in the cache, so that the processes do not each do it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import yaml

from headway.config import load_config
from headway.planning import Role
from headway.simulation.build import Plan
from headway.simulation.report import SimulationReport
from headway.workload import open_trace
from headway_cli.compare_document import AUTO, PolicyComparison
from headway_cli.errors import CliError
from headway_cli.job import Job, execute
from headway_cli.options import RunOptions, configuration, trace_options
from headway_cli.static_fleets import Fleet, cheapest, grid, pareto
from headway_cli.workers import opened, run_all, work

ANY_LOAD = "steady:rate_rps=1,duration_s=10"

Labelled = tuple[str, SimulationReport, int | None]
"""A row: label, report, and for `static:auto` how many fleets were tried."""


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
        try:
            setting = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise CliError(f"--policies: {item}: {key}: {value[:40]!r} is not a value in YAML") from error
        yield f"planner.static.{key}" if key in set(Role) else f"planner.{key}", setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The candidates, the trace, and the options that they share."""

    trace: str
    options: RunOptions
    candidates: tuple[Candidate, ...]
    static_sweep: bool
    jobs: int

    def job(self, candidate: Candidate) -> Job:
        """The simulation of one candidate."""
        config = configuration(self.options, candidate.overrides)
        options = trace_options(self.options, config.simulation.seed)
        file = self.options.config
        return Job(
            trace=self.trace, config=config, options=options, label=candidate.label, settings_file=file
        )

    def static_plan(self) -> Plan:
        """The deployment, for questions about fixed fleets."""
        return self.job(any_fleet("static")).plan()


def compare_policies(comparison: Comparison) -> PolicyComparison:
    """Simulate all candidates, and the grid of fixed fleets if it was asked for."""
    jobs = [comparison.job(candidate) for candidate in comparison.candidates]
    for job in jobs:
        job.plan()
    swept = _swept(comparison) if comparison.static_sweep else []
    # Compiles what is not in the cache yet, before several processes would.
    execute(Job(trace=ANY_LOAD, config=load_config(None, {"planner.policy": "static"})))
    calls = [partial(find_static, comparison) if job.label == AUTO else partial(_run, job) for job in jobs]
    found = run_all([*calls, *(partial(_run, job) for job in swept)], comparison.jobs)
    policies = found[: len(jobs)]
    config = configuration(comparison.options)
    return PolicyComparison(
        policies={label: report for label, report, _ in policies},
        fixed=pareto({label: report for label, report, _ in found[len(jobs) :]}),
        fixed_tried=len(swept),
        fleets_tried={label: tried for label, _, tried in policies if tried is not None},
        price_per_gpu_hour=config.price_per_gpu_hour(),
        currency=config.planner.advice.currency,
    )


def _run(job: Job) -> Labelled:
    return job.label, work(job), None


def _swept(comparison: Comparison) -> list[Job]:
    plan = comparison.static_plan()
    options = trace_options(comparison.options, plan.config.simulation.seed)
    with open_trace(comparison.trace, options) as trace:
        fleets = grid(plan, trace)
    return [comparison.job(static_candidate(fleet)) for fleet in fleets]


def find_static(comparison: Comparison) -> Labelled:
    """The report of the cheapest fixed fleet that meets the target, and how many fleets were tried."""
    plan = comparison.static_plan()
    trace = opened(comparison.trace, trace_options(comparison.options, plan.config.simulation.seed))
    tried: dict[tuple[int, ...], SimulationReport] = {}

    def attain(fleet: Fleet) -> float:
        report = tried[tuple(fleet.values())] = work(comparison.job(static_candidate(fleet)))
        return report.attainment or 0.0

    best = cheapest(plan, trace, attain)
    counts = " ".join(f"{role}={count}" for role, count in best.items())
    return f"{AUTO} ({counts})", tried[tuple(best.values())], len(tried)
