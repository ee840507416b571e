"""Plans for engines of other speeds than profiled: corrected, not corrected, and by the truth.

    python -m benchmarks mismatch --data DIR [--cells 'azure10_8b_*'] [--quick] [--output DIR] [--workers N]

Hours of the grid of `policies` at a start-up of 60 s, split and mixed pools, engines at speeds over those of
the profile: both phases alike, one of them alone, a step in mid-trace, and a tenth of the replicas at half
speed; engines as profiled behind a balancer that places at random, and 100 ms outside them.

Each run begins with the smallest fleet that keeps the goal in the first five minutes, by replay of engines as
they then are. Attainment is over the attainable, those requests that an idle engine meets (in runs with a
step, one of the slower speed); `late` leaves out the first 15 minutes.

    truth       policy headway, given the profile of the engines (for a step: of the first speed, corrected)
    corrected   policy headway with the profile, corrected by traffic: the default
    believed    the same with `engine.refinement` off, and without a plan for what replays do not explain
    reference   policy reference with its correction factors (split pools)
    scraped     with --scrape S,...: policy headway corrected by the engines' metrics alone, read every S
                seconds, as of engines that others run; then only truth and corrected run beside

With --unprofiled S there is no profile: three traces on three engines, planned by an estimate and by their
metrics, read every S seconds. `named`: model and GPU are known by their names; `unknown`: neither.

Results lie in --output, one file a run; what is there stays. --quick: some speeds.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.policies.cells import PROFILES, Base, bases
from benchmarks.policies.recording import Recording, recordings
from benchmarks.policies.scaled_reference import WrappedPolicy
from benchmarks.processes import run_missing
from headway.config import load_config
from headway.engine.rules import EngineSpeeds
from headway.planning import Decision, Observation, Role, make_policy
from headway.planning.replay import (
    ReplayEngine,
    Requests,
    decode_losses,
    least_replicas,
    mixed_losses,
    prefill_losses,
)
from headway.simulation.build import Plan, make_plan, make_scenario
from headway.simulation.demand import reach
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import simulate
from interp import scaled

OUTPUT = Path("out/mismatch")
HOURS = ("azure1", "azure10", "mooncake4", "burst")
DELAY_S, GOAL, FIRST_S, LATE_S, STEP_S = 60.0, 0.99, 300.0, 900.0, 1800.0
POOLS: Mapping[str, Sequence[str]] = {"split": ("prefill", "decode"), "mixed": ("mixed",)}
MOST_REPLICAS = 4000
WAYS = ("truth", "corrected", "believed", "reference")
SCRAPED = "scraped"


class WithoutExcess(WrappedPolicy):
    """Policy headway that plans nothing for losses that replays do not explain."""

    def plan(self, observation: Observation, state: Any) -> Decision:  # noqa: ANN401
        with patch("headway.planning.hindsight.policy.excess", lambda *_: None):
            return self.inner.plan(observation, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Speeds of prefill and decode over the profile's, from STEP_S on others; a share of slow replicas.

    `settings` are what else differs from what replays know.
    """

    name: str
    prefill: float = 1.0
    decode: float = 1.0
    later: float | None = None
    slow: float = 0.0
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def speeds(self) -> EngineSpeeds:
        later = {} if self.later is None else {STEP_S: self.later}
        return EngineSpeeds(
            prefill={0.0: self.prefill, **later},
            decode={0.0: self.decode, **later},
            slow_share=self.slow,
            slow_speed=0.5,
        )


SPEEDS = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
MISMATCHES = (
    *(Mismatch(name=f"both {speed:g}", prefill=speed, decode=speed) for speed in SPEEDS),
    *(Mismatch(name=f"prefill {speed:g}", prefill=speed) for speed in SPEEDS if speed != 1.0),
    *(Mismatch(name=f"decode {speed:g}", decode=speed) for speed in SPEEDS if speed != 1.0),
    Mismatch(name="1 → 0.7", later=0.7),
    Mismatch(name="0.7 → 1", prefill=0.7, decode=0.7, later=1.0),
    Mismatch(name="10 % slow", slow=0.1),
    Mismatch(name="placed at random", settings=(("routing.profile", "random"),)),
    Mismatch(name="100 ms outside", settings=(("simulation.engine.queueing_ms", 100.0),)),
)
APART = ("1 → 0.7", "0.7 → 1", "10 % slow", "placed at random", "100 ms outside")
QUICK = ("both 0.7", "both 0.8", "both 1", "both 1.25", *APART)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One deployment, one mismatch, all ways."""

    data: Path
    output: Path
    base: Base
    pools: str
    mismatch: Mismatch
    scrapes: tuple[float, ...] = ()

    @property
    def ways(self) -> Mapping[str, float | None]:
        """The ways to plan, each with the seconds between two reads of metrics, if it goes by them."""
        if self.scrapes:
            return {"truth": None, "corrected": None, **{f"{SCRAPED} {s:g} s": s for s in self.scrapes}}
        return dict.fromkeys(WAYS)

    @property
    def path(self) -> Path:
        name = f"{self.base.name}_{self.pools}_{self.mismatch.name}".replace(" ", "_").replace("%", "pc")
        return self.output / f"{name}.json"

    def found(self) -> Mapping[str, Any]:
        trace = recordings(self.data, self.base.trace)[0]
        plan, mismatch = self._plan("headway"), self.mismatch
        engines = scaled(plan.profile, mismatch.prefill, mismatch.decode)
        slower = engines
        if mismatch.later is not None:
            slower = scaled(plan.profile, min(mismatch.prefill, mismatch.later))
        fleet = least_fleet(
            plan, trace.head(FIRST_S), ReplayEngine.of(engines, plan.settings.slo, plan.engine)
        )
        scenario = make_scenario(plan, trace)
        known = reach(trace, scenario.mix, replace(plan.idle, profile=slower))
        found: dict[str, Any] = {"attainable": known.attainable, "requests": known.requests}
        for way, scrape_s in self.ways.items():
            if way == "reference" and self.pools == "mixed":
                continue
            planned = self._plan(
                "reference" if way == "reference" else "headway", learn=way not in {"believed", "reference"}
            )
            if way == "truth":
                policy = make_policy("headway", planned.settings, engines)
                planned = replace(planned, profile=engines, policy=policy)
            if way == "believed":
                planned = replace(planned, policy=WithoutExcess(planned.policy))
            setting = replace(make_scenario(planned, trace), initial=fleet, speeds=mismatch.speeds)
            setting = replace(setting, profile=plan.profile)
            found[way] = _figures(setting, trace, planned, scrape_s)
        return found

    def _plan(self, policy: str, *, learn: bool = True) -> Plan:
        ttft_s, itl_s = self.base.slo_s
        pools = {role: {"max_replicas": MOST_REPLICAS} for role in POOLS[self.pools]}
        settings = {
            "slo": {"ttft_ms": ttft_s * 1e3, "itl_ms": itl_s * 1e3, "attainment": GOAL},
            "engine.profile": str(self.data / "profiles" / PROFILES[self.base.profile]),
            "engine.refinement.enabled": learn,
            "pools": pools,
            "planner.policy": policy,
            "simulation.start_up_delay_s": DELAY_S,
            **dict(self.mismatch.settings),
        }
        return make_plan(load_config(None, settings))


def _figures(
    setting: Scenario, trace: Recording, planned: Plan, scrape_s: float | None
) -> Mapping[str, float]:
    """One run: requests in time, their share after LATE_S, and GPU-hours."""
    learner = planned.learner(scrape_s)
    result = simulate(setting, trace, planned.policy, planned.asked_forecaster, learner=learner)
    late = [each for each in result.intervals if each.end_s > LATE_S and each.requests]
    met = sum((each.attainment or 0.0) * each.requests for each in late)
    return {
        "met": result.tally.met,
        "late": met / max(1, sum(each.requests for each in late)),
        "gpu_hours": result.gpu_hours,
    }


UNPROFILED = ("azure1", "azure10", "mooncake4")
ENGINES = {
    "8b": ("vidur_llama-3-8b_a100_tp1", "llama-3-8b", "A100", 1),
    "70b": ("vidur_llama-2-70b_a100_tp4", "llama-2-70b", "A100", 4),
    "8b-fp8": ("dynamo_h200_llama31-8b-fp8_tp1", "llama-3.1-8b-fp8", "H200", 1),
}
"""Measured engines, and what their users call model and GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprofiledJob:
    """One engine without a profile on one trace, planned by the truth and by estimates."""

    data: Path
    output: Path
    trace: str
    engine: str
    pools: str
    scrape_s: float

    @property
    def path(self) -> Path:
        return self.output / f"{self.trace}_{self.engine}_{self.pools}_{self.scrape_s:g}.json"

    def found(self) -> Mapping[str, Any]:
        trace = recordings(self.data, self.trace)[0]
        directory, model, gpu, gpus = ENGINES[self.engine]
        truth = self._plan({"engine.profile": str(self.data / "profiles" / directory)})
        setting = make_scenario(truth, trace)
        engine = ReplayEngine.of(truth.profile, truth.settings.slo, truth.engine)
        setting = replace(setting, initial=least_fleet(truth, trace.head(FIRST_S), engine))
        known = reach(trace, setting.mix, truth.idle)
        found: dict[str, Any] = {"attainable": known.attainable, "requests": known.requests}
        found["truth"] = _figures(setting, trace, truth, None)
        named = {"model": model, "engine.gpu_type": gpu}
        for way, settings in {"named": named, "unknown": {"model": "chat"}}.items():
            sizes = {f"pools.{role}.gpus_per_replica": gpus for role in POOLS[self.pools]}
            planned = self._plan({"engine.kind": "external", **settings, **sizes})
            found[way] = {
                **_figures(setting, trace, planned, self.scrape_s),
                **planned.profile.meta["guessed"],
            }
        return found

    def _plan(self, settings: Mapping[str, Any]) -> Plan:
        ttft_s, itl_s = Base(trace=self.trace, profile=self.engine.split("-")[0], slo="loose").slo_s
        return make_plan(
            load_config(
                None,
                {
                    "slo": {"ttft_ms": ttft_s * 1e3, "itl_ms": itl_s * 1e3, "attainment": GOAL},
                    "pools": {role: {"max_replicas": MOST_REPLICAS} for role in POOLS[self.pools]},
                    "planner.policy": "headway",
                    "simulation.start_up_delay_s": DELAY_S,
                    **settings,
                },
            )
        )


def unprofiled_table(jobs: Sequence[UnprofiledJob]) -> Iterator[str]:
    """One row for each cell and way."""
    yield "| trace, engine, pools | way | estimate | late, of the attainable | truth's | × GPU-hours |"
    yield "|---|---|---|---|---|---|"
    for job in jobs:
        found = json.loads(job.path.read_text())
        share = found["requests"] / max(1, found["attainable"])
        for way in ("named", "unknown"):
            own, truth = found[way], found["truth"]
            by = f"{own['from']}, prefill × {own['prefill']:.2g}, decode × {own['decode']:.2g}"
            figures = f"{own['late'] * share:.2%} | {truth['late'] * share:.2%}"
            cost = own["gpu_hours"] / truth["gpu_hours"]
            yield f"| {job.trace}, {job.engine}, {job.pools} | {way} | {by} | {figures} | {cost:.2f} |"


def least_fleet(plan: Plan, recording: Recording, engine: ReplayEngine) -> Mapping[Role, int]:
    """The smallest fleet that keeps the goal, by replay, with an equal part of the losses in each pool."""
    columns = (recording.arrival_s, recording.input_tokens, recording.output_tokens)
    requests = Requests(*(column.astype(np.float64) for column in columns))
    curves = {Role.PREFILL: prefill_losses, Role.DECODE: decode_losses, Role.MIXED: mixed_losses}
    may_miss = (1.0 - GOAL) / len(plan.settings.limits)
    return {
        role: least_replicas(lambda guess, role=role: curves[role](engine, requests, 0, guess), may_miss)
        for role in plan.settings.limits
    }


def main(
    data: Path,
    *,
    cells: str = "*",
    quick: bool = False,
    output: Path = OUTPUT,
    workers: int | None = None,
    scrape: Sequence[float] = (),
    unprofiled: float | None = None,
) -> int:
    """Run what is missing, then print the table."""
    if unprofiled is not None:
        cases = [
            UnprofiledJob(
                data=data.resolve(),
                output=output / "unprofiled",
                trace=trace,
                engine=engine,
                # Each trace and each engine with both kinds of pools.
                pools=tuple(POOLS)[(first + second) % 2],
                scrape_s=unprofiled,
            )
            for first, trace in enumerate(UNPROFILED)
            for second, engine in enumerate(ENGINES)
            if any(fnmatch(f"{trace}_{engine}", pattern) for pattern in cells.split(","))
        ]
        run_missing(cases, workers)
        print("\n".join(unprofiled_table(cases)))
        return 0
    jobs = [
        Job(
            data=data.resolve(),
            output=output / SCRAPED if scrape else output,
            base=base,
            pools=pools,
            mismatch=mismatch,
            scrapes=tuple(scrape),
        )
        for base in bases(HOURS)
        if any(fnmatch(base.name, pattern) for pattern in cells.split(","))
        for pools in POOLS
        for mismatch in MISMATCHES
        if not quick or mismatch.name in QUICK
    ]
    run_missing(jobs, workers)
    print("\n".join(scraped_table(jobs) if scrape else table(jobs)))
    return 0


def table(jobs: Sequence[Job]) -> Iterator[str]:
    """One row for each kind of pool and mismatch, over the cells that are there."""
    yield "| pools, speed | cells | corrected: mean (least), late least | × GPU-hours of truth (most) | "
    yield "truth | believed | reference |\n|---|---|---|---|---|---|---|"
    for pools in POOLS:
        for name in dict.fromkeys(job.mismatch.name for job in jobs):
            of = [job for job in jobs if (job.pools, job.mismatch.name) == (pools, name)]
            if found := [json.loads(job.path.read_text()) for job in of if job.path.is_file()]:
                yield f"| {pools}, {name} | {len(found)} | {_row(found)} |"


def _row(found: Sequence[Mapping[str, Any]]) -> str:
    def shares(way: str) -> list[float]:
        return [each[way]["met"] / max(1, each["attainable"]) for each in found if way in each]

    late = [each["corrected"]["late"] * each["requests"] / max(1, each["attainable"]) for each in found]
    costs = [each["corrected"]["gpu_hours"] / each["truth"]["gpu_hours"] for each in found]
    own = shares("corrected")
    others = [
        f"{fmean(rest):.1%} ({min(rest):.1%})" if (rest := shares(way)) else "–"
        for way in ("truth", "believed", "reference")
    ]
    geometric = exp(fmean(log(cost) for cost in costs))
    mine = f"{fmean(own):.2%} ({min(own):.2%}), {min(late):.2%}"
    return " | ".join([mine, f"{geometric:.2f} ({max(costs):.2f})", *others])


def scraped_table(jobs: Sequence[Job]) -> Iterator[str]:
    """The same by ways, with the late attainment and the GPU-hours over those of truth."""
    yield "| pools, speed | cells | way | late, of the attainable (least) | × GPU-hours of truth (most) |"
    yield "|---|---|---|---|---|"
    for pools, name in dict.fromkeys((job.pools, job.mismatch.name) for job in jobs):
        of = [job for job in jobs if (job.pools, job.mismatch.name) == (pools, name)]
        found = [json.loads(job.path.read_text()) for job in of if job.path.is_file()]
        for way in of[0].ways if found else ():
            late = [each[way]["late"] * each["requests"] / max(1, each["attainable"]) for each in found]
            costs = [each[way]["gpu_hours"] / each["truth"]["gpu_hours"] for each in found]
            geometric = exp(fmean(log(cost) for cost in costs))
            attained = f"{fmean(late):.2%} ({min(late):.2%})"
            figures = f"{attained} | {geometric:.2f} ({max(costs):.2f})"
            yield f"| {pools}, {name} | {len(found)} | {way} | {figures} |"
