"""What bursts cost: policy headway on generated loads, beside the best fleet of a fixed size.

    python -m benchmarks bursts [--only WORDS] [--seeds N] [--workers N]

Two hours each: bursts at one distance and at spread ones, bursts of random lengths, sizes and distances, and
for comparison a flat load, a rhythm, a rise and a step. The fixed fleet is the least that keeps 99 % of the
whole load, by replay; nobody knows it beforehand. Attained is what was kept of what an idle engine keeps,
after the first half hour, in which the first bursts are unknown to everybody; GPU-hours are of two hours.

A second table is of storms: for twenty minutes three times the load, of clients that give up after 10 s
without a token and come again 10 s later, up to 20 times. GPU-hours from five minutes after the step on are
over those of clients that wait. Where repeats are not recognised, they are arrivals like others, evenly over
their interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.mismatch import FIRST_S, GOAL, POOLS, least_fleet
from benchmarks.policies.recording import Recording, read
from headway.config import load_config
from headway.planning.replay import ReplayEngine
from headway.planning.types import Observation
from headway.simulation import kernel
from headway.simulation.build import Plan, make_plan, make_scenario
from headway.simulation.clients import Clients
from headway.simulation.demand import reach
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import SimulationRun, Watchers
from headway.workload import TraceOptions
from interp.jit import drop_stale_cache

DURATION_S, LATE_S = 7200.0, 1800.0
LENGTHS = "input_tokens=1000,output_tokens=150,input_cv=0.7,output_cv=0.7"
OFF_S, ON_S = 240.0, 45.0
SHAPES = {
    "burst of 30 s each 300 s": "burst:rate_rps={low:g},peak_rps={high:g},burst_s=30,every_s=300",
    "burst of 90 s each 600 s": "burst:rate_rps={low:g},peak_rps={high:g},burst_s=90,every_s=600",
    "on/off, 20 s of 200 s": "onoff:rate_rps={low:g},peak_rps={high:g},on_s=20,every_s=200",
    "on/off, 120 s of 900 s": "onoff:rate_rps={low:g},peak_rps={high:g},on_s=120,every_s=900",
    "random on/off": "",
    "flat": "steady:rate_rps={usual:g}",
    "rhythm": "diurnal:rate_rps={usual:g},amplitude=0.8,period_s=3600",
    "rise": "ramp:rate_rps={low:g},peak_rps={high:g}",
    "step": "step:rate_rps={usual:g},peak_rps={high:g},at_s=2400,back_at_s=4800",
}
STORM = "step:rate_rps={usual:g},peak_rps={storm:g},at_s=2400,back_at_s=3600"
STORM_S, SETTLED_S = 2400.0, 300.0
DEPLOYMENTS = {
    "8B, split, 60 s": (8.0, "llama-3.1-8b_h100_tp1", "split", 60.0, 500.0, 15.0),
    "8B, mixed, 180 s": (8.0, "llama-3.1-8b_h100_tp1", "mixed", 180.0, 500.0, 15.0),
    "70B, mixed, 60 s": (4.0, "llama-3.1-70b_h100_tp4", "mixed", 60.0, 1500.0, 30.0),
}
"""Requests/s between bursts, profile, pools, start-up time, TTFT and ITL in ms."""
STORMY = {
    **{name: DEPLOYMENTS[name] for name in ("8B, split, 60 s", "8B, mixed, 180 s")},
    "8B, mixed, 60 s": (8.0, "llama-3.1-8b_h100_tp1", "mixed", 60.0, 500.0, 15.0),
}
CLIENTS = Clients(patience_s=10.0, retries=20, retry_after_s=10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on one deployment."""

    load: str
    deployment: str
    seed: int

    def figures(self) -> tuple[float, float]:
        """What was kept after LATE_S of what can be kept, and GPU-hours over those of the fixed fleet."""
        plan, requests, setting, engine = self._setting()
        run = _run(SimulationRun, plan, setting, requests)
        fixed = sum(
            count * plan.settings.limits[role].gpus_per_replica
            for role, count in least_fleet(plan, requests, engine).items()
        )
        share = _late_share(run) / _attainable(plan, requests, setting)
        return share, run.gpu_hours / (fixed * DURATION_S / 3600.0)

    def storm(self) -> Sequence[float]:
        """What was kept by clients that wait and by CLIENTS, the latter's GPU-hours over the former's where
        repeats are recognised and where not, repeats over requests, and seconds from the step to the last.
        """
        plan, requests, setting, _ = self._setting()
        stormy, attainable = replace(setting, clients=CLIENTS), _attainable(plan, requests, setting)
        calm, told, taken = (
            _run(kind, plan, each, requests)
            for kind, each in ((SimulationRun, setting), (SimulationRun, stormy), (Unrecognised, stormy))
        )
        again_s = [each.end_s for each in told.intervals if each.reasons.get("inputs", {}).get("repeats")]
        lasted_s = max(again_s, default=STORM_S) - STORM_S
        hours = [_settled_gpu_hours(each, plan) for each in (calm, told, taken)]
        shares = [_late_share(each) / attainable for each in (calm, told)]
        ratio = told.tally.repeats / told.tally.requests
        return *shares, hours[1] / hours[0], hours[2] / hours[0], ratio, lasted_s

    def _setting(self) -> tuple[Plan, Recording, Scenario, ReplayEngine]:
        plan = self._plan()
        requests = _requests(self.load, {**DEPLOYMENTS, **STORMY}[self.deployment][0], self.seed)
        engine = ReplayEngine.of(plan.profile, plan.settings.slo, plan.engine)
        initial = least_fleet(plan, requests.head(FIRST_S), engine)
        return plan, requests, replace(make_scenario(plan, requests), initial=initial), engine

    def _plan(self) -> Plan:
        _, profile, pools, start_s, ttft_ms, itl_ms = {**DEPLOYMENTS, **STORMY}[self.deployment]
        settings = {
            "slo": {"ttft_ms": ttft_ms, "itl_ms": itl_ms, "attainment": GOAL},
            "engine.profile": profile,
            "pools": {role: {"max_replicas": 200} for role in POOLS[pools]},
            "planner.policy": "headway",
            "simulation.start_up_delay_s": start_s,
        }
        return make_plan(load_config(None, settings))


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


def _run(kind: type[SimulationRun], plan: Plan, setting: Scenario, requests: Recording) -> SimulationResult:
    drop_stale_cache(*kernel.COMPILED_FROM)
    given = plan.policy, plan.asked_forecaster, Watchers()
    return kind(setting, requests, *given, learner=plan.learner(None)).result()


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
        since_s = np.clip([*series.time_s, DURATION_S], STORM_S + SETTLED_S, DURATION_S)
        up = np.sum([series.starting, series.ready, series.draining], axis=0)
        total += float(np.diff(since_s) @ up) * plan.settings.limits[role].gpus_per_replica
    return total / 3600.0


def _requests(load: str, low_rps: float, seed: int) -> Recording:
    if shape := {**SHAPES, "storm": STORM}[load]:
        rates = shape.format(low=low_rps, usual=4.0 * low_rps, high=10.0 * low_rps, storm=12.0 * low_rps)
        return read(f"{rates},duration_s={DURATION_S:g},{LENGTHS},seed={seed}", TraceOptions())
    return _random(np.random.default_rng(seed), low_rps)


def _random(rng: np.random.Generator, low_rps: float) -> Recording:
    """Bursts of random lengths, sizes and distances, and lognormal lengths as of LENGTHS."""
    parts, now_s = [], 0.0
    while now_s < DURATION_S:
        for rate_rps, mean_s in ((low_rps, OFF_S), (low_rps * rng.uniform(5.0, 12.0), ON_S)):
            length_s = rng.exponential(mean_s)
            parts.append(now_s + np.sort(rng.random(rng.poisson(rate_rps * length_s))) * length_s)
            now_s += length_s
    arrival_s = np.concatenate(parts)
    arrival_s = arrival_s[arrival_s < DURATION_S]
    variance = log(1.0 + 0.7**2)
    lengths = [
        np.maximum(1, np.rint(rng.lognormal(log(mean) - variance / 2.0, variance**0.5, len(arrival_s))))
        for mean in (1000.0, 150.0)
    ]
    return Recording(arrival_s, lengths[0].astype(np.int64), lengths[1].astype(np.int64), DURATION_S)


def main(data: Path | None, *, only: str = "", seeds: int = 3, workers: int | None = None) -> int:
    """Print the tables: means over seeds, and the least and most."""
    del data
    words = [word.strip() for word in only.split(",")]
    rows = [(load, name) for load in SHAPES for name in DEPLOYMENTS]
    rows, storms = (
        [row for row in each if any(word in ", ".join(row) for word in words)]
        for each in (rows, [("storm", name) for name in STORMY])
    )
    ratios = []
    with Pool(workers) as pool:
        found = pool.imap(Cell.figures, _cells(rows, seeds))
        if rows:
            print("| load | deployment | attained (least) | × the fixed fleet (most) |\n|---|---|---|---|")
        for load, name in rows:
            kept, costs = zip(*(next(found) for _ in range(seeds)), strict=True)
            ratios += costs
            print("\n".join(_row(load, name, kept, costs)), flush=True)
        if ratios:
            print(f"geometric mean of costs: {exp(fmean(map(log, ratios))):.3f}")
        if storms:
            print(STORM_HEAD)
        stormy = pool.imap(Cell.storm, _cells(storms, seeds))
        for _, name in storms:
            print(_storm_row(name, [next(stormy) for _ in range(seeds)]), flush=True)
    return 0


def _cells(rows: Sequence[tuple[str, str]], seeds: int) -> Sequence[Cell]:
    return [Cell(load=load, deployment=name, seed=seed) for load, name in rows for seed in range(seeds)]


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


def _row(load: str, name: str, kept: Sequence[float], costs: Sequence[float]) -> Iterator[str]:
    yield f"| {load} | {name} | {fmean(kept):.2%} ({min(kept):.2%}) | {fmean(costs):.3f} ({max(costs):.3f}) |"
