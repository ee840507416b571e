"""What policy headway costs on generated loads, kind by kind, beside the best fleet of a fixed size.

    python -m benchmarks bursts [--only WORDS] [--seeds N] [--workers N] [--without RULE | --ablation [RULES]]

Two hours each (`bursts_loads`). The fixed fleet is the least that keeps 99 % of the whole load, by replay;
nobody knows it beforehand. Attained is what was kept of what an idle engine keeps, after the first half hour,
in which the first bursts are unknown to everybody; GPU-hours are of two hours. Where engines become slower,
both are of the slower speed, and the truth is the policy that is told when it comes and learns nothing of
engines; else they are as profiled. Reversals are changes of direction of a pool's target, per hour and pool.

A last table is of storms: for twenty minutes three times the load, of clients that give up after 10 s
without a token and come again 10 s later, up to 20 times. GPU-hours from five minutes after the step on are
over those of clients that wait. Where repeats are not recognised, they are arrivals like others, evenly over
their interval.

With --without the policy lacks one rule (`bursts_without`). --ablation holds it without each rule, or each of
RULES, against itself on the same cells; storms do not run. Words joined by + must all be in a row's name.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, isnan, log, nan
from multiprocessing import Pool
from multiprocessing.pool import Pool as PoolType
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from benchmarks.bursts_loads import DEPLOYMENTS, DURATION_S, LOADS, STEP_S, STORM, STORMY
from benchmarks.bursts_without import RULES, policy_without
from benchmarks.mismatch import FIRST_S, least_fleet
from benchmarks.policies.recording import Recording
from benchmarks.policies.scaled_reference import WrappedPolicy
from headway.planning import Decision, Policy, make_policy
from headway.planning.replay import ReplayEngine
from headway.planning.types import Observation
from headway.simulation import kernel
from headway.simulation.build import Plan, make_scenario
from headway.simulation.clients import Clients
from headway.simulation.demand import reach
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import SimulationRun, Watchers
from headway_cli.errors import CliError
from interp import scaled
from interp.jit import drop_stale_cache

LATE_S, SETTLED_S = 1800.0, 300.0
CLIENTS = Clients(patience_s=10.0, retries=20, retry_after_s=10.0)


class Figures(NamedTuple):
    """What was kept after LATE_S of what can be kept, GPU-hours, those of the fixed fleet and of the truth,
    and reversals.
    """

    attained: float
    gpu_hours: float
    fixed: float
    truth: float
    reversals: float


@dataclass(frozen=True, slots=True)
class InformedPolicy(WrappedPolicy):
    """Is told at STEP_S that engines are others."""

    later: Policy

    def plan(self, observation: Observation, state: Any) -> Decision:  # noqa: ANN401 - the policy's own
        return (self.inner if observation.now_s < STEP_S else self.later).plan(observation, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on one deployment."""

    load: str
    deployment: str
    seed: int

    def __str__(self) -> str:
        return f"{self.load} | {self.deployment}"

    def figures(self, rules: Sequence[str] = ("",)) -> Sequence[Figures]:
        """Those of the policy without each of the rules."""
        plan, requests, setting = self._setting()
        slower = scaled(plan.profile, min(1.0, LOADS[self.load].speed))
        attainable = _attainable(replace(plan, profile=slower), requests, setting)
        fleet = least_fleet(plan, requests, ReplayEngine.of(slower, plan.settings.slo, plan.engine))
        fixed = sum(count * plan.settings.limits[role].gpus_per_replica for role, count in fleet.items())
        truth = nan
        if slower is not plan.profile:
            policy = InformedPolicy(plan.policy, make_policy("headway", plan.settings, slower))
            truth = _run(SimulationRun, plan, setting, requests, policy).gpu_hours
        found = []
        for rule in rules:
            with policy_without(rule):
                run = _run(SimulationRun, plan, setting, requests)
            turns = fmean(run.direction_reversals.values()) / (DURATION_S / 3600.0)
            own = _late_share(run) / attainable, run.gpu_hours
            found.append(Figures(*own, fixed * DURATION_S / 3600.0, truth, turns))
        return found

    def storm(self, rule: str) -> Sequence[float]:
        """What was kept by clients that wait and by CLIENTS, the latter's GPU-hours over the former's where
        repeats are recognised and where not, repeats over requests, and seconds from the step to the last.
        """
        plan, requests, setting = self._setting()
        stormy, attainable = replace(setting, clients=CLIENTS), _attainable(plan, requests, setting)
        with policy_without(rule):
            calm, told, taken = (
                _run(kind, plan, each, requests)
                for kind, each in ((SimulationRun, setting), (SimulationRun, stormy), (Unrecognised, stormy))
            )
        again_s = [each.end_s for each in told.intervals if each.reasons.get("inputs", {}).get("repeats")]
        lasted_s = max(again_s, default=STEP_S) - STEP_S
        hours = [_settled_gpu_hours(each, plan) for each in (calm, told, taken)]
        shares = [_late_share(each) / attainable for each in (calm, told)]
        ratio = told.tally.repeats / told.tally.requests
        return *shares, hours[1] / hours[0], hours[2] / hours[0], ratio, lasted_s

    def _setting(self) -> tuple[Plan, Recording, Scenario]:
        load, deployment = {**LOADS, "storm": STORM}[self.load], {**DEPLOYMENTS, **STORMY}[self.deployment]
        plan, requests = deployment.plan(), load.requests(deployment.low_rps, self.seed)
        engine = ReplayEngine.of(plan.profile, plan.settings.slo, plan.engine)
        initial = least_fleet(plan, requests.head(FIRST_S), engine)
        return plan, requests, replace(make_scenario(plan, requests), initial=initial, speeds=load.speeds)


class Unrecognised(SimulationRun):
    """A run in which repeats are taken for requests, of lengths that those of the interval have."""

    def _observe(self) -> Observation:
        seen = super()._observe()
        traffic, count = seen.traffic, int(seen.repeats)
        if not count or traffic is None:
            return seen
        again_s = seen.now_s - seen.interval_s * np.arange(count) / count
        arrival_s = np.sort(np.concatenate([traffic.arrival_s, again_s]))
        traffic = replace(
            traffic, arrival_s=arrival_s, input_tokens=np.resize(traffic.input_tokens, len(arrival_s))
        )
        return replace(seen, requests=seen.requests + count, repeats=0.0, traffic=traffic)


def _run(
    kind: type[SimulationRun],
    plan: Plan,
    setting: Scenario,
    requests: Recording,
    told: Policy | None = None,
) -> SimulationResult:
    """One run; a policy that is `told` learns nothing of engines."""
    drop_stale_cache(*kernel.COMPILED_FROM)
    given = told or plan.policy, plan.asked_forecaster, Watchers()
    return kind(setting, requests, *given, learner=None if told else plan.learner(None)).result()


def _attainable(plan: Plan, requests: Recording, setting: Scenario) -> float:
    return reach(requests, setting.mix, plan.idle).attainable / len(requests.arrival_s)


def _late_share(result: SimulationResult) -> float:
    """The share of requests that was kept after LATE_S."""
    late = [each for each in result.intervals if each.end_s > LATE_S and each.requests]
    met = sum((each.attainment or 0.0) * each.requests for each in late)
    return met / sum(each.requests for each in late)


def _settled_gpu_hours(result: SimulationResult, plan: Plan) -> float:
    """GPU-hours from SETTLED_S after the step of a storm on."""
    total = 0.0
    for role, series in result.replicas.items():
        since_s = np.clip([*series.time_s, DURATION_S], STEP_S + SETTLED_S, DURATION_S)
        up = np.sum([series.starting, series.ready, series.draining], axis=0)
        total += float(np.diff(since_s) @ up) * plan.settings.limits[role].gpus_per_replica
    return total / 3600.0


GOOD = 0.99
MOVED = 0.001, 0.005
"""Attainment, and share of GPU-hours, from which on a rule is listed beside a cell."""

Found = Sequence[tuple[Cell, Figures]]


def main(
    data: Path | None,
    *,
    only: str = "",
    seeds: int = 3,
    workers: int | None = None,
    without: str = "",
    ablation: str = "",
) -> int:
    """Print the tables: means over seeds, and the least and most."""
    del data
    rules = list(RULES) if ablation == "all" else ablation.split(",") if ablation else [without]
    if strangers := [rule for rule in rules if rule not in {"", *RULES}]:
        raise CliError(f"unknown rule {strangers[0]!r}; known: {', '.join(RULES)}")
    if not _cells([*LOADS, "storm"], {**DEPLOYMENTS, **STORMY}, only, seeds):
        raise CliError(f"no load and deployment has {only!r} in its name")
    with Pool(workers) as pool:
        lines = _ablation(pool, only, seeds, rules) if ablation else _tables(pool, only, seeds, without)
        for line in lines:
            print(line, flush=True)
    return 0


def _cells(loads: Iterable[str], deployments: Iterable[str], only: str, seeds: int) -> list[Cell]:
    rows = [Cell(load=load, deployment=name, seed=0) for load in loads for name in deployments]
    asked = [set(word.strip().split("+")) for word in only.split(",")]
    chosen = [row for row in rows if any(all(part in str(row) for part in parts) for parts in asked)]
    return [replace(row, seed=seed) for row in chosen for seed in range(seeds)]


def _tables(pool: PoolType, only: str, seeds: int, rule: str) -> Iterator[str]:
    cells = _cells(LOADS, DEPLOYMENTS, only, seeds)
    found: list[tuple[Cell, Figures]] = []
    figures = "attained (least) | GPU-hours | × the fixed fleet (most) | × the truth | reversals"
    for cell, (each,) in zip(cells, pool.imap(partial(Cell.figures, rules=[rule]), cells), strict=True):
        if not found:
            yield f"| load | deployment | {figures} |" + "\n" + "|---" * 7 + "|"
        found.append((cell, each))
        if len(found) % seeds == 0:
            yield f"| {cell} | {_row(found[-seeds:])} |"
    if found:
        yield f"\n| kind | {figures} | cells ≥ {GOOD:.0%} |\n" + "|---" * 7 + "|"
    for kind in (*dict.fromkeys(LOADS[cell.load].kind for cell in cells), *["all"][: len(found)]):
        alike = [(cell, each) for cell, each in found if kind in {LOADS[cell.load].kind, "all"}]
        good = sum(each.attained >= GOOD for _, each in alike)
        yield f"| {kind} | {_row(alike)} | {good} of {len(alike)} |"
    storms = _cells(["storm"], STORMY, only, seeds)
    stormy = pool.imap(partial(Cell.storm, rule=rule), storms)
    if storms:
        yield STORM_HEAD
    for cell in storms[::seeds]:
        yield _storm_row(cell.deployment, [next(stormy) for _ in range(seeds)])


def _row(found: Found) -> str:
    """Means over cells; of ratios geometric ones."""
    kept, hours, fixed, truth, turns = zip(*(each for _, each in found), strict=True)
    ratios = [own / least for own, least in zip(hours, fixed, strict=True)]
    beside = "–" if any(map(isnan, truth)) else f"{_ratio(hours, truth):.3f}"
    return (
        f"{fmean(kept):.2%} ({min(kept):.2%}) | {fmean(hours):.1f} | {_ratio(hours, fixed):.3f} "
        f"({max(ratios):.3f}) | {beside} | {fmean(turns):.1f}"
    )


def _ratio(ones: Iterable[float], others: Iterable[float]) -> float:
    return exp(fmean(log(one / other) for one, other in zip(ones, others, strict=True)))


def _ablation(pool: PoolType, only: str, seeds: int, rules: Sequence[str]) -> Iterator[str]:
    """What each rule moves in each cell, then what its lack changes over all; spreads are of seeds."""
    cells = _cells(LOADS, DEPLOYMENTS, only, seeds)
    yield "| load | deployment | seed | attained, GPU-hours; what changes without a rule, in points and % |"
    yield "|---" * 4 + "|"
    found: dict[str, list[tuple[int, Figures, Figures]]] = {rule: [] for rule in rules}
    for cell, (whole, *others) in zip(
        cells, pool.imap(partial(Cell.figures, rules=["", *rules]), cells), strict=True
    ):
        moved = [f"{whole.attained:.2%}, {whole.gpu_hours:.1f}"]
        for rule, lacking in zip(rules, others, strict=True):
            found[rule].append((cell.seed, whole, lacking))
            points, hours = lacking.attained - whole.attained, lacking.gpu_hours / whole.gpu_hours - 1.0
            if abs(points) >= MOVED[0] or abs(hours) >= MOVED[1]:
                moved.append(f"{rule} {100.0 * points:+.2f} {hours:+.1%}")
        yield f"| {cell} | {cell.seed} | {'; '.join(moved)} |"
    yield (
        f"\n| without | attained, points (seeds) | worst cell, best | GPU-hours (seeds) | least, most cell "
        f"| cells ≥ {GOOD:.0%} | reversals |\n" + "|---" * 7 + "|"
    )
    yield from (f"| {rule} | {_change(each)} |" for rule, each in found.items())


def _change(found: Sequence[tuple[int, Figures, Figures]]) -> str:
    points = [(seed, 100.0 * (lacking.attained - whole.attained)) for seed, whole, lacking in found]
    hours = [(seed, 100.0 * log(lacking.gpu_hours / whole.gpu_hours)) for seed, whole, lacking in found]
    good = [sum(each[place].attained >= GOOD for each in found) for place in (1, 2)]
    turns = fmean(lacking.reversals - whole.reversals for _, whole, lacking in found)
    return (
        f"{_over_seeds(points)} | {_ends(points)} | {_over_seeds(hours)} % | {_ends(hours)} % "
        f"| {good[1] - good[0]:+d} | {turns:+.1f}"
    )


def _over_seeds(values: Sequence[tuple[int, float]]) -> str:
    means = [fmean(each for seed, each in values if seed == one) for one in {seed for seed, _ in values}]
    return f"{fmean(means):+.2f} ({min(means):+.2f} to {max(means):+.2f})"


def _ends(values: Sequence[tuple[int, float]]) -> str:
    each = [value for _, value in values]
    return f"{min(each):+.2f}, {max(each):+.2f}"


STORM_HEAD = (
    "\n| storm | attained by those who wait | who come again (least) | × GPU-hours, recognised (most) "
    "| not recognised (most) | repeats a request | the last, s after the step (most) |\n" + "|---" * 7 + "|"
)


def _storm_row(name: str, seen: Sequence[Sequence[float]]) -> str:
    mean, least, most = (
        [measure(column) for column in zip(*seen, strict=True)] for measure in (fmean, min, max)
    )
    return (
        f"| {name} | {mean[0]:.2%} | {mean[1]:.2%} ({least[1]:.2%}) | {mean[2]:.2f} ({most[2]:.2f}) "
        f"| {mean[3]:.2f} ({most[3]:.2f}) | {mean[4]:.2f} | {mean[5]:.0f} ({most[5]:.0f}) |"
    )
