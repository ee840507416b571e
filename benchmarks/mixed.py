"""Mixed pools: does the policy headway keep its promise, and at which cost beside the best static fleet?

    python -m benchmarks mixed --data DIR [--cells 'azure10_8b_*'] [--quick] [--output DIR] [--workers N]

Hours of the grid of `policies` on one pool of mixed replicas that runs as profiled, promise 99 %, one
rotation: chunks of 256 to 8,192 tokens with a start-up delay of 60 s, and chunks of 2,048 tokens with 0 and
180 s. Each run begins with the fleet of `simulation.initial: sized`. Attainment is over the attainable, those
requests that an idle replica meets (with the same chunks); `late` leaves out the first 15 minutes. The static
fleet is the smallest that holds 99 % of the attainable over the whole hour, searched by simulation from what
a replay of the hour says. Results lie in --output, one file a run; what is there stays. --quick: chunks of
2,048 at 60 s.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np

from benchmarks.policies.cells import PROFILES, Base, bases
from benchmarks.policies.recording import Recording, recordings
from benchmarks.processes import run_missing
from headway.config import load_config
from headway.planning.replay import ReplayEngine, Requests, least_replicas, mixed_losses
from headway.simulation.build import Plan, make_plan, make_scenario, run
from headway.simulation.demand import reach
from headway.simulation.results import SimulationResult
from headway.workload import Trace

OUTPUT = Path("out/mixed")
HOURS = ("azure1", "azure10", "mooncake4")
GOAL, LATE_S, FLOOR = 0.99, 900.0, 0.985
CHUNKS, USUAL = (256, 512, 2048, 8192), (2048, 60)
SETTINGS = (*((chunk, 60) for chunk in CHUNKS), (2048, 0), (2048, 180))
MOST_REPLICAS = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One deployment: a chunk size and a start-up delay."""

    data: Path
    output: Path
    base: Base
    chunk_tokens: int
    delay_s: int

    @property
    def name(self) -> str:
        return f"{self.base.name}_{self.chunk_tokens}_{self.delay_s}s"

    @property
    def path(self) -> Path:
        return self.output / f"{self.name}.json"

    def found(self) -> Mapping[str, Any]:
        trace = recordings(self.data, self.base.trace)[0]
        plan = self.plan({})
        scenario = make_scenario(plan, cast(Trace, trace))
        known = reach(cast(Trace, trace), scenario.mix, plan.idle)
        result = run(plan, scenario, cast(Trace, trace))
        late = [each for each in result.intervals if each.end_s > LATE_S and each.requests]
        met = sum((each.attainment or 0.0) * each.requests for each in late)
        fleet = self._static_fleet(trace, known.attainable)
        return {
            "attainable": known.attainable / known.requests,
            "attained": result.tally.met / known.attainable,
            "late": met / sum(each.requests for each in late) * known.requests / known.attainable,
            "gpu_hours": result.gpu_hours,
            "static": fleet and {"replicas": fleet, "gpu_hours": self._static(trace, fleet).gpu_hours},
        }

    def plan(self, overrides: Mapping[str, Any]) -> Plan:
        """The deployment under the policy, or another with these overrides."""
        ttft_s, itl_s = self.base.slo_s
        settings = {
            "slo": {"ttft_ms": ttft_s * 1e3, "itl_ms": itl_s * 1e3, "attainment": GOAL},
            "engine.profile": str(self.data / "profiles" / PROFILES[self.base.profile]),
            "engine.chunk_tokens": self.chunk_tokens,
            "pools.mixed.max_replicas": MOST_REPLICAS,
            "planner.policy": "headway",
            "simulation.start_up_delay_s": self.delay_s,
        }
        return make_plan(load_config(None, {**settings, **overrides}))

    def _static(self, trace: Recording, replicas: int) -> SimulationResult:
        plan = self.plan({"planner.policy": "static", "planner.static.mixed": replicas})
        return run(plan, make_scenario(plan, cast(Trace, trace)), cast(Trace, trace))

    def _static_fleet(self, trace: Recording, attainable: int) -> int | None:
        """The smallest that holds the goal; None where none of up to twice what the replay says does."""
        plan = self.plan({})
        engine = ReplayEngine.of(plan.profile, plan.settings.slo, plan.engine)
        columns = (trace.arrival_s, trace.input_tokens, trace.output_tokens)
        requests = Requests(*(each.astype(np.float64) for each in columns))
        replicas = least_replicas(lambda guess: mixed_losses(engine, requests, 0, guess), 1.0 - GOAL)
        most = 2 * replicas

        @cache
        def holds(count: int) -> bool:
            return self._static(trace, count).tally.met >= GOAL * attainable

        while not holds(replicas) and replicas < most:
            replicas += 1
        while replicas > 1 and holds(replicas - 1):
            replicas -= 1
        return replicas if holds(replicas) else None


def main(
    data: Path,
    *,
    cells: str = "*",
    quick: bool = False,
    output: Path = OUTPUT,
    workers: int | None = None,
) -> int:
    """Run what is missing, then print the table."""
    jobs = [
        Job(data=data.resolve(), output=output, base=base, chunk_tokens=chunk_tokens, delay_s=delay_s)
        for base in bases(HOURS)
        for chunk_tokens, delay_s in ([USUAL] if quick else SETTINGS)
    ]
    jobs = [job for job in jobs if any(fnmatch(job.name, pattern) for pattern in cells.split(","))]
    run_missing(jobs, workers)
    print("\n".join(table(jobs)))
    return 0


def table(jobs: Sequence[Job]) -> Iterator[str]:
    """One row a run, then the figures over all that are there."""
    yield "| cell | attainable | attained of it | after 15 min | GPU-hours | × static | static fleet |"
    yield "|---|---|---|---|---|---|---|"
    found = {job: json.loads(job.path.read_text()) for job in jobs if job.path.is_file()}
    for job, each in found.items():
        share = "–" if each["static"] is None else f"{_ratio(each):.2f}"
        fleet = "none" if each["static"] is None else each["static"]["replicas"]
        yield (
            f"| {job.name} | {each['attainable']:.2%} | {each['attained']:.2%} | {each['late']:.2%} | "
            f"{each['gpu_hours']:.2f} | {share} | {fleet} |"
        )
    for name, some in {
        "all": list(found.values()),
        **{f"chunks of {chunk}": _of(found, (chunk, 60)) for chunk in CHUNKS},
        **{f"{delay} s": _of(found, (2048, delay)) for delay in (0, 60, 180)},
    }.items():
        if some:
            yield f"| {name} | {_summary(some)} |"


def _of(found: Mapping[Job, Mapping[str, Any]], setting: tuple[int, int]) -> list[Mapping[str, Any]]:
    return [each for job, each in found.items() if (job.chunk_tokens, job.delay_s) == setting]


def _ratio(each: Mapping[str, Any]) -> float:
    return float(each["gpu_hours"] / each["static"]["gpu_hours"])


def _summary(found: Sequence[Mapping[str, Any]]) -> str:
    attained = [each["attained"] for each in found]
    late = [each["late"] for each in found]
    costs = [_ratio(each) for each in found if each["static"] is not None]
    cost = f"{exp(fmean(map(log, costs))):.3f} ({max(costs):.2f})" if costs else "–"
    held = sum(share >= GOAL for share in attained)
    below = sum(share < FLOOR for share in attained)
    return (
        f"{held} of {len(found)} hold {GOAL:.0%}, {below} below {FLOOR:.1%} | "
        f"{fmean(attained):.2%} ({min(attained):.2%}) | {fmean(late):.2%} ({min(late):.2%}) | | {cost} | |"
    )
