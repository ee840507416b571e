"""The runs of a fleet in virtual time: its deployments under their budgets, each by itself, or in parts.

Deployments of one budget are simulated together. Where requests spill over to GPUs of another type, those
come after: what the first ones had no place for is then the trace of the next.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

from headway.config import FleetConfig, HeadwayConfig
from headway.planning.sharing import Standing
from headway.simulation.deployments import SimulatedDeployment, simulate_fleet
from headway.simulation.report import SimulationReport
from headway.simulation.simulate import Watchers
from headway.words import percent, plural
from headway.workload import Trace, TraceError, TraceOptions, open_trace, spooled
from headway_cli.errors import CliError
from headway_cli.fleet import BudgetUse, DeploymentUse, FleetReport, Spilled
from headway_cli.job import Job, Progress, make_report
from headway_cli.options import fleet as parse_parts

NOTHING: Mapping[str, Spilled] = {}

BY_USE = "use"
"""Parts in proportion to the GPU-hours that each used of the common budget."""


def fleet_jobs(fleet: FleetConfig, file: Path) -> Mapping[str, Job]:
    """The simulation of each deployment; their traces may lie beside `file`."""
    before = fleet.before
    return {name: _job(name, each, file, before.get(name)) for name, each in fleet.deployments.items()}


def _job(name: str, config: HeadwayConfig, file: Path, before: str | None) -> Job:
    load, place = config.simulation.load, f"{file}: deployments.{name}"
    if config.spillover is not None and config.simulation.clients.retries:
        raise CliError(f"{place}.simulation.clients.retries: not where requests spill over instead")
    if before is not None:
        if load.trace is not None:
            raise CliError(
                f"{place}.simulation.load.trace: its requests are those that spill over from {before}"
            )
        return Job(trace=f"what spills over from {before}", config=config, label=name, settings_file=place)
    if load.trace is None:
        raise CliError(f"{place}.simulation.load.trace: missing; a simulation needs its requests")
    beside = file.parent / load.trace
    options = TraceOptions(
        start_s=load.start_s,
        duration_s=load.duration_s,
        rate_scale=load.rate_scale,
        seed=config.simulation.seed,
        may_be_empty=True,  # A rare model may have no request in the time looked at.
    )
    trace = str(beside) if beside.is_file() else load.trace
    return Job(trace=trace, config=config, options=options, label=name, settings_file=place)


def run_budgets(
    jobs: Mapping[str, Job], budgets: Mapping[str, int | None], progress: Progress | None = None
) -> BudgetUse:
    """Simulate the deployments, those of each GPU type under its budget."""
    groups = [
        each
        for gpu_type, gpus in budgets.items()
        for each in ([_of_type(jobs, gpu_type, gpus)] if gpus is not None else _alone(jobs, gpu_type))
    ]
    uses = dict[str, DeploymentUse]()
    for group, came in _in_order(jobs, groups, uses):
        found = run_fleet(group.jobs, group.gpus, progress, came)
        uses |= {use.name: use for use in found.deployments}
    return BudgetUse(deployments=[uses[name] for name in jobs])


class Group(NamedTuple):
    """Deployments that are simulated together, on GPUs of one type."""

    gpu_type: str
    jobs: Mapping[str, Job]
    gpus: int | None


def _of_type(jobs: Mapping[str, Job], gpu_type: str, gpus: int | None) -> Group:
    return Group(
        gpu_type, {name: job for name, job in jobs.items() if job.config.fleet.gpu_type == gpu_type}, gpus
    )


def _alone(jobs: Mapping[str, Job], gpu_type: str) -> list[Group]:
    return [Group(gpu_type, {name: job}, None) for name, job in _of_type(jobs, gpu_type, None).jobs.items()]


def _in_order(
    jobs: Mapping[str, Job], groups: Sequence[Group], uses: Mapping[str, DeploymentUse]
) -> Iterator[tuple[Group, Mapping[str, Spilled]]]:
    """The groups, each after those that spill over to it, whose `uses` are there by then; and what did.

    CliError where none could be the next.
    """
    before, left = {job.config.spillover: name for name, job in jobs.items()}, list(groups)
    while left:
        ready = [group for group in left if all(before.get(name) in {None, *uses} for name in group.jobs)]
        if not ready:
            raise CliError(
                "deployments: spillover is simulated from one GPU type of fleet.gpus to another, and not back"
            )
        left.remove(group := ready[0])
        found = {name: uses[before[name]].spilled for name in group.jobs if name in before}
        yield group, {name: spilled for name, spilled in found.items() if spilled is not None}


class Least(NamedTuple):
    """The least budgets by GPU type, what comes of them, and how each was found, in a sentence."""

    gpus: Mapping[str, int]
    uses: Mapping[str, DeploymentUse]
    said: Mapping[str, str]

    def cost(self, prices: Mapping[str, float]) -> float:
        """Of all its GPUs, an hour."""
        return sum(prices[gpu_type] * count for gpu_type, count in self.gpus.items())


def run_least(
    jobs: Mapping[str, Job], budgets: Mapping[str, int | None], progress: Progress | None = None
) -> FleetReport:
    """Simulate the deployments, those of each GPU type under the least budget on which all keep what they do
    without one. A type from which requests spill over has its stated budget, or, where all have prices, the
    part of it with which all GPUs together are cheapest.
    """
    found, prices = _all_least(jobs, budgets, progress), _prices(jobs)
    for gpu_type in {job.config.fleet.gpu_type: None for job in jobs.values() if job.config.spillover}:
        if budgets.keys() <= prices.keys():
            found = _cheapest(jobs, gpu_type, found, prices, progress)
    return FleetReport(
        gpus=sum(found.gpus.values()),
        whole=BudgetUse(deployments=[found.uses[name] for name in jobs]),
        least=[found.said[gpu_type] for gpu_type in budgets],
    )


def _prices(jobs: Mapping[str, Job]) -> Mapping[str, float]:
    return {
        gpu_type: each.price_per_gpu_hour
        for job in jobs.values()
        for gpu_type, each in job.config.gpu_types.items()
    }


def _cheapest(
    jobs: Mapping[str, Job],
    gpu_type: str,
    stated: Least,
    prices: Mapping[str, float],
    progress: Progress | None,
) -> Least:
    """The part of one budget with which the least others cost least: by thirds, as if there were one dip."""
    own, high = _of_type(jobs, gpu_type, None).jobs.items(), stated.gpus[gpu_type]
    low = max(1, sum(_minimum(job.config, stated.uses[name].report) for name, job in own))
    tried = {high: stated}

    def cost(gpus: int) -> float:
        if gpus not in tried:
            tried[gpus] = _all_least(jobs, {**stated.gpus, gpu_type: gpus}, progress)
        return tried[gpus].cost(prices)

    first, last = low, high
    while last - first > 1:
        third = (last - first) // 3
        left, right = first + third, max(last - third, first + third + 1)
        first, last = (first, right - 1) if cost(left) <= cost(right) else (left + 1, last)
    best = min(range(first, last + 1), key=cost)
    others = ", ".join(f"{count}: {cost(count):g}" for count in sorted(tried) if count != best)
    sentence = f"all GPUs are cheapest with {plural(best, f'{gpu_type} GPU')}: {cost(best):g} an hour"
    sentence += f" ({others})" if others else ""
    return tried[best]._replace(said={**tried[best].said, gpu_type: sentence})


def _all_least(
    jobs: Mapping[str, Job], budgets: Mapping[str, int | None], progress: Progress | None
) -> Least:
    found = Least({}, {}, {})
    groups = [_of_type(jobs, gpu_type, gpus) for gpu_type, gpus in budgets.items()]
    uses = dict[str, DeploymentUse]()
    for group, came in _in_order(jobs, groups, uses):
        if group.gpus is not None and any(job.config.spillover for job in group.jobs.values()):
            use, least = run_fleet(group.jobs, group.gpus, progress, came), group.gpus
            sentence = f"{_gpus(group, least)} as stated, from which requests spill over"
        else:
            use, least, sentence = _least(group, came, progress)
        uses |= {each.name: each for each in use.deployments}
        found = Least({**found.gpus, group.gpu_type: least}, uses, {**found.said, group.gpu_type: sentence})
    return found


def _gpus(group: Group, count: int) -> str:
    return plural(count, f"{group.gpu_type} GPU".lstrip())


def _least(
    group: Group, came: Mapping[str, Spilled], progress: Progress | None
) -> tuple[BudgetUse, int, str]:
    """What comes of the least budget, how many GPUs it has, and how it was found."""
    free = run_fleet(group.jobs, None, progress, came)
    alone = {use.name: use for use in free.deployments}
    low = sum(_minimum(group.jobs[name].config, use.report) for name, use in alone.items()) - 1
    high, short = int(free.most_gpus()), ""
    found = run_fleet(group.jobs, high, progress, came)
    # A ceiling or the size of nodes may cost some of it on any budget.
    less = {use.name: use for use in found.deployments if not use.keeps(alone[use.name])}
    alone |= less
    while high - low > 1:
        tried = run_fleet(group.jobs, middle := (low + high) // 2, progress, came)
        if missed := [use for use in tried.deployments if not use.keeps(alone[use.name])]:
            low, short = middle, ", ".join(f"{use.name} keeps {percent(use.attained)}" for use in missed)
        else:
            high, found = middle, tried
    sentence = (
        f"{_gpus(group, high)} suffice{'s' if high == 1 else ''} for what is kept with "
        f"{free.most_gpus():.0f}, the most that all want at once"
        + (f"; with {low}, {short} of what can be kept" if short else "")
        + "".join(f"; {name} keeps less on {free.most_gpus():.0f} than without a budget" for name in less)
    )
    return found, high, sentence


def run_fleet(
    jobs: Mapping[str, Job],
    gpus: int | None,
    progress: Progress | None = None,
    came: Mapping[str, Spilled] = NOTHING,
) -> BudgetUse:
    """Simulate the deployments under one budget, or without one each by itself.

    Of some the requests are those that `came` from another.
    """
    plans = {name: job.warmed_plan() for name, job in jobs.items()}
    with ExitStack() as opened:
        traces = {
            name: opened.enter_context(spooled(job.trace, *came[name]) if name in came else _opened(job))
            for name, job in jobs.items()
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
        memory = next(iter(jobs.values())).config.fleet.host_memory
        results = simulate_fleet(deployments, gpus, inf if memory is None else memory)
        wall_s = perf_counter() - began
        return BudgetUse(
            deployments=[
                replace(
                    _use(job, make_report(job, plans[name], traces[name], results[name], wall_s)),
                    spilled=Spilled.of(results[name], traces[name]) if job.config.spillover else None,
                )
                for name, job in jobs.items()
            ]
        )


def _opened(job: Job) -> Trace:
    """Its requests; CliError with the deployment where they cannot be read."""
    try:
        return open_trace(job.trace, job.options)
    except TraceError as error:
        raise CliError(f"{job.settings_file}.simulation.load: {error}") from error


def run_split(jobs: Mapping[str, Job], gpus: int, parts: str, together: BudgetUse) -> BudgetUse:
    """Simulate the same deployments, each alone in its part: `chat=9,batch=3`, or by `use` of it."""
    split = _in_proportion(gpus, jobs, together) if parts == BY_USE else stated_parts(gpus, jobs, parts)
    uses = list[DeploymentUse]()
    for name, job in jobs.items():
        planner = job.config.planner.model_copy(update={"max_gpu_budget": split[name]})
        alone = replace(job, config=job.config.model_copy(update={"planner": planner}))
        uses += run_fleet({name: alone}, None).deployments
    return BudgetUse(deployments=uses, parts=split)


def stated_parts(gpus: int, jobs: Mapping[str, Job], text: str) -> Mapping[str, int]:
    """`chat=9,batch=3` of so many GPUs; CliError where that is no split of them."""
    parts = parse_parts("--split", text, also=f"{BY_USE} or ")
    if odd := sorted(parts.keys() ^ jobs.keys()):
        raise CliError(f"--split: should name each deployment once, and {odd[0]} is not in both")
    if none := [name for name, part in parts.items() if part < 1]:
        raise CliError(f"--split: {none[0]} has no GPU in it")
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
