"""Comparing routings: one fixed fleet, several loads, several seeds; every routing sees the same requests.

runs      routings × loads × seeds; the seed thins and superposes the trace, draws classes and ties
rows      one for each load and routing: means over the seeds and their standard deviations
ahead     for each load and each other routing: the last routing's goodput minus the other's, seed by
          seed, with a 95 % confidence interval (Student's t) of the mean
goodput   requests that met their SLOs, per second of the trace: the same seconds for all. A simulation's
          own `goodput_rps` also counts the seconds until its last request has ended, of which a routing
          that sheds has fewer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from headway.simulation.build import Plan, initial_fleet
from headway.simulation.offered_load import demand_gpu_s, offered_load
from headway.workload import open_trace
from headway_cli.errors import CliError
from headway_cli.job import Job
from headway_cli.options import RunOptions, configuration, static_overrides, trace_options
from headway_cli.terminal import bar
from headway_cli.workers import gather, sheltered, work, workers

Document = Mapping[str, Any]

WITHOUT_MEANING: Mapping[str, str] = {
    "rate_scale": "the load is that of --loads",
    "routing": "--routings lists them",
    "initial": "the fleet is that of --fleet from the start",
    **dict.fromkeys(
        ("predictor", "load_predictor_warmup_trace", "no_correction", "adjustment_interval"),
        "for a fixed fleet nothing is planned",
    ),
}
"""Options of a simulation that routings on a fixed fleet leave nothing to decide, and why."""

FIGURES = ("attainment", "goodput_rps", "shed_share", "ttft_p90_s", "tpot_p90_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingComparison:
    """What to compare: `loads` as shares of the fleet's fluid capacity (1 is 100 %), `seeds` runs each."""

    trace: str
    options: RunOptions
    fleet: str
    routings: tuple[str, ...]
    loads: tuple[float, ...]
    seeds: int
    jobs: int

    def job(self, routing: str, rate_scale: float, seed: int) -> Job:
        """One simulation."""
        options = replace(self.options, rate_scale=rate_scale, seed=seed)
        return Job(
            trace=self.trace,
            config=configuration(options, self._fixed(routing)),
            options=trace_options(options, seed),
            label=routing,
            settings_file=self.options.config,
        )

    @property
    def first_seed(self) -> int:
        """The seed of the flags, else of the settings; the others follow it."""
        return configuration(self.options, self._fixed(self.routings[0])).simulation.seed

    def _fixed(self, routing: str) -> dict[str, Any]:
        """What the settings do not decide; `sized` is, under a static policy, its fleet from the start."""
        fleet = static_overrides("--fleet", self.fleet)
        return {**fleet, "simulation.initial": "sized", "routing.profile": routing}


def check_options(options: RunOptions) -> None:
    """CliError for an option that would change nothing."""
    for name, why in WITHOUT_MEANING.items():
        value = getattr(options, name)
        if value is not None and value is not False:
            raise CliError(f"--{name.replace('_', '-')}: does not go with --routings: {why}")


def parse_names(text: str) -> tuple[str, ...]:
    """`random,slo` → names; CliError for none, or one that comes twice."""
    names = tuple(item.strip() for item in text.split(",") if item.strip())
    if not names:
        raise CliError("--routings: no routing given")
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise CliError(f"--routings: {repeated} comes twice")
    return names


def parse_loads(text: str) -> tuple[float, ...]:
    """`70,90,110` in percent → shares."""
    try:
        loads = tuple(float(item) / 100.0 for item in text.split(",") if item.strip())
    except ValueError:
        raise CliError(f"--loads: expected percentages such as 70,90,110, got {text!r}") from None
    if not loads or not all(0.0 < load <= 100.0 for load in loads):
        raise CliError(f"--loads: expected percentages above 0 and up to 10000, got {text!r}")
    if repeated := next((load for load in loads if loads.count(load) > 1), None):
        raise CliError(f"--loads: {100.0 * repeated:g} comes twice")
    return loads


def compare_routings(comparison: RoutingComparison) -> dict[str, Any]:
    """The document: `rows`, `ahead`, and what they were measured on."""
    plans = [comparison.job(routing, 1.0, comparison.first_seed).plan() for routing in comparison.routings]
    scales = _rate_scales(comparison, plans[0])
    seeds = range(comparison.first_seed, comparison.first_seed + comparison.seeds)
    keys = [
        (load, routing, seed)
        for load in comparison.loads
        for seed in seeds
        for routing in comparison.routings
    ]
    jobs = [comparison.job(routing, scales[load], seed) for load, routing, seed in keys]
    documents = dict(zip(keys, _run(jobs, comparison.jobs), strict=True))
    return _combined(comparison, scales, documents)


def _rate_scales(comparison: RoutingComparison, plan: Plan) -> dict[float, float]:
    """The rate scale that gives each load."""
    options = trace_options(replace(comparison.options, rate_scale=1.0), comparison.first_seed)
    with open_trace(comparison.trace, options) as trace:
        shared = plan.engine.chunk_tokens > 0
        demand = demand_gpu_s(trace, plan.profile, plan.settings.slo, shared_iterations=shared)
        fleet = initial_fleet(plan, trace)
        if trace.duration_s <= 0.0:
            raise CliError(f"{comparison.trace}: all requests arrive at once, which is no load to scale")
        unscaled = offered_load(demand, fleet, plan.settings.limits, trace.duration_s)
    if unscaled <= 0.0:
        raise CliError(f"{comparison.trace}: no load to scale")
    return {load: load / unscaled for load in comparison.loads}


def _run(jobs: Sequence[Job], processes: int) -> list[Document]:
    with workers(processes) as pool, bar("comparing") as report:
        done = 0

        def finished() -> None:
            nonlocal done
            done += 1
            if report:
                report(done, len(jobs))

        with sheltered():
            futures = [pool.submit(work, job) for job in jobs]
        return gather(futures, finished)


def _combined(
    comparison: RoutingComparison,
    scales: Mapping[float, float],
    documents: Mapping[tuple[float, str, int], Document],
) -> dict[str, Any]:
    def of(load: float, routing: str) -> list[Document]:
        return [document for key, document in documents.items() if key[:2] == (load, routing)]

    first = documents[comparison.loads[0], comparison.routings[0], comparison.first_seed]
    ours, others = comparison.routings[-1], comparison.routings[:-1]
    return {
        "trace": {**first["trace"], "rate_scale": None, "requests": None},
        "profile": first["profile"],
        "slo": first["slo"],
        "fleet": comparison.fleet,
        "seeds": comparison.seeds,
        "rows": [
            {"load": load, "rate_scale": scales[load], "routing": routing, **_row(of(load, routing))}
            for load in comparison.loads
            for routing in comparison.routings
        ],
        "ahead": [
            {"load": load, "routing": ours, "of": other, **_ahead(of(load, ours), of(load, other))}
            for load in comparison.loads
            for other in others
        ],
        "notes": first["notes"],
    }


def _row(documents: Sequence[Document]) -> dict[str, Any]:
    figures = [_figures(document) for document in documents]
    return {
        "requests": fmean(document["requests"] for document in documents),
        **{name: _spread([row[name] for row in figures]) for name in FIGURES},
        "classes": {
            name: {
                "attainment": _spread([document["classes"][name]["attainment"] for document in documents]),
                "shed_share": _spread([_share(document["classes"][name], "shed") for document in documents]),
            }
            for name in documents[0].get("classes", {})
        },
    }


def _figures(document: Document) -> dict[str, float | None]:
    return {
        "attainment": document["attainment"],
        "goodput_rps": _goodput_rps(document),
        "shed_share": _share(document, "shed"),
        "ttft_p90_s": document["ttft_s"]["p90"],
        "tpot_p90_s": document["tpot_s"]["p90"],
    }


def _goodput_rps(document: Document) -> float:
    """Requests that met their SLOs, per second of the trace; 0 without requests."""
    met: float = (document["attainment"] or 0.0) * document["requests"]
    return met / float(document["trace"]["duration_s"])


def _share(counts: Document, key: str) -> float | None:
    return counts[key] / counts["requests"] if counts["requests"] else None


def _spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and standard deviation over the seeds; None where nothing was measured."""
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "sd": None}
    return {"mean": fmean(known), "sd": stdev(known) if len(known) > 1 else None}


def _ahead(ours: Sequence[Document], theirs: Sequence[Document]) -> dict[str, Any]:
    """The paired difference of goodput, absolute and relative to the other's mean."""
    pairs = zip(map(_goodput_rps, ours), map(_goodput_rps, theirs), strict=True)
    differences = [mine - other for mine, other in pairs]
    base = fmean(map(_goodput_rps, theirs))
    mean = fmean(differences)
    half = _half_width(differences)
    return {
        "goodput_rps": mean,
        "half_width_rps": half,
        "relative": mean / base if base else None,
        "relative_half_width": half / base if base and half is not None else None,
    }


def _half_width(differences: Sequence[float]) -> float | None:
    """Half of the 95 % confidence interval of the mean; None with a single run."""
    if len(differences) < 2:
        return None
    from scipy.stats import t

    count = len(differences)
    return float(t.ppf(0.975, count - 1)) * stdev(differences) / sqrt(count)
