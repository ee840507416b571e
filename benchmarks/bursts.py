"""What bursts cost: policy headway on generated loads, beside the best fleet of a fixed size.

    python -m benchmarks bursts [--only WORDS] [--seeds N] [--workers N]

Two hours each: bursts at one distance and at spread ones, bursts of random lengths, sizes and distances, and
for comparison a flat load, a rhythm, a rise and a step. The fixed fleet is the least that keeps 99 % of the
whole load, by replay; nobody knows it beforehand. Attained is what was kept of what an idle engine keeps,
after the first half hour, in which the first bursts are unknown to everybody; GPU-hours are of two hours.
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
from headway.simulation.build import Plan, make_plan, make_scenario
from headway.simulation.demand import reach
from headway.simulation.simulate import simulate
from headway.workload import TraceOptions

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
DEPLOYMENTS = {
    "8B, split, 60 s": (8.0, "llama-3.1-8b_h100_tp1", "split", 60.0, 500.0, 15.0),
    "8B, mixed, 180 s": (8.0, "llama-3.1-8b_h100_tp1", "mixed", 180.0, 500.0, 15.0),
    "70B, mixed, 60 s": (4.0, "llama-3.1-70b_h100_tp4", "mixed", 60.0, 1500.0, 30.0),
}
"""Requests/s between bursts, profile, pools, start-up time, TTFT and ITL in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One load on one deployment."""

    load: str
    deployment: str
    seed: int

    def figures(self) -> tuple[float, float]:
        """What was kept after LATE_S of what can be kept, and GPU-hours over those of the fixed fleet."""
        plan = self._plan()
        requests = _requests(self.load, DEPLOYMENTS[self.deployment][0], self.seed)
        setting = make_scenario(plan, requests)
        attainable = reach(requests, setting.mix, plan.idle).attainable / len(requests.arrival_s)
        engine = ReplayEngine.of(plan.profile, plan.settings.slo, plan.engine)
        setting = replace(setting, initial=least_fleet(plan, requests.head(FIRST_S), engine))
        result = simulate(setting, requests, plan.policy, plan.asked_forecaster, learner=plan.learner(None))
        late = [each for each in result.intervals if each.end_s > LATE_S and each.requests]
        met = sum((each.attainment or 0.0) * each.requests for each in late)
        fixed = sum(
            count * plan.settings.limits[role].gpus_per_replica
            for role, count in least_fleet(plan, requests, engine).items()
        )
        share = met / sum(each.requests for each in late) / attainable
        return share, result.gpu_hours / (fixed * DURATION_S / 3600.0)

    def _plan(self) -> Plan:
        _, profile, pools, start_s, ttft_ms, itl_ms = DEPLOYMENTS[self.deployment]
        settings = {
            "slo": {"ttft_ms": ttft_ms, "itl_ms": itl_ms, "attainment": GOAL},
            "engine.profile": profile,
            "pools": {role: {"max_replicas": 200} for role in POOLS[pools]},
            "planner.policy": "headway",
            "simulation.start_up_delay_s": start_s,
        }
        return make_plan(load_config(None, settings))


def _requests(load: str, low_rps: float, seed: int) -> Recording:
    if shape := SHAPES[load]:
        rates = shape.format(low=low_rps, usual=4.0 * low_rps, high=10.0 * low_rps)
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
    """Print the table: means over seeds, and the least and most."""
    del data
    words = [word.strip() for word in only.split(",")]
    rows = [(load, name) for load in SHAPES for name in DEPLOYMENTS]
    rows = [row for row in rows if any(word in ", ".join(row) for word in words)]
    cells = [Cell(load=load, deployment=name, seed=seed) for load, name in rows for seed in range(seeds)]
    print("| load | deployment | attained (least) | × the fixed fleet (most) |\n|---|---|---|---|")
    ratios = []
    with Pool(workers) as pool:
        found = pool.imap(Cell.figures, cells)
        for load, name in rows:
            kept, costs = zip(*(next(found) for _ in range(seeds)), strict=True)
            ratios += costs
            print("\n".join(_row(load, name, kept, costs)), flush=True)
    print(f"geometric mean of costs: {exp(fmean(map(log, ratios))):.3f}")
    return 0


def _row(load: str, name: str, kept: Sequence[float], costs: Sequence[float]) -> Iterator[str]:
    yield f"| {load} | {name} | {fmean(kept):.2%} ({min(kept):.2%}) | {fmean(costs):.3f} ({max(costs):.3f}) |"
