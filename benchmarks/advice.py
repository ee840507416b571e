"""Advice against what then came: savings and attainment forecast by a dry run, and those really made.

    python -m benchmarks advice --data DIR [--cells 'azure*'] [--quick] [--output DIR] [--workers N]

A fleet stands there: the largest that policy `headway` had in a run of its own, fixed, as people provision
for a peak; or one that `threshold` scales from there. A dry run of `headway` watches it on the same requests
and forecasts. Then `headway` really runs, from the same first fleet, on the same requests.

    saved         GPU-hours of the fleet that stood there less those of `headway`, over the former
    error         of the forecast saving, as a share of the saving really made

8B on A100, start-up 60 s, engines as profiled and at 0.8 of it, split and mixed pools. Results lie in
--output, one file a run; what is there stays. --quick: azure and the generated load, fixed fleets.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.policies.recording import Recording, read
from benchmarks.policies.scaled_reference import WrappedPolicy
from benchmarks.processes import run_missing
from headway.config import HeadwayConfig, load_config
from headway.planning import Decision, Observation, Policy, PoolState, Role, make_policy
from headway.planning.advice.advisor import Advisor, Look, Seen
from headway.planning.advice.ledger import Estimate, Ledger, Summary, summarise
from headway.planning.advice.replay import StartUp
from headway.planning.deciding import decide
from headway.planning.hindsight.history import attained
from headway.planning.replay import ReplayEngine
from headway.simulation.build import Plan, make_plan, make_scenario, run
from headway.simulation.fleet import ReplicaSeries
from headway.simulation.observing import PerformanceLearner
from headway.simulation.results import SimulationResult
from headway.simulation.scenario import Scenario
from headway.simulation.simulate import SimulationRun, Watchers
from headway.workload import TraceOptions
from interp import Profile

OUTPUT = Path("out/advice")
PROFILE = "profiles/vidur_llama-3-8b_a100_tp1"
DELAY_S, INTERVAL_S, MOST_REPLICAS = 60.0, 30.0, 512
POOLS: Mapping[str, Sequence[str]] = {"split": ("prefill", "decode"), "mixed": ("mixed",)}
SPEEDS = (1.0, 0.8)
STANDING = ("fixed", "threshold")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests and their SLO in ms."""

    source: str
    slo_ms: tuple[float, float]
    rate_scale: float = 1.0


LOADS: Mapping[str, Load] = {
    "azure10": Load(source="traces/azure2023_conv.csv.gz", rate_scale=10.0, slo_ms=(2000, 40)),
    "azure10-tight": Load(source="traces/azure2023_conv.csv.gz", rate_scale=10.0, slo_ms=(500, 20)),
    "mooncake4": Load(source="traces/mooncake_conversation.csv.gz", rate_scale=4.0, slo_ms=(15000, 40)),
    "diurnal": Load(
        source="diurnal:rate_rps=30,amplitude=0.8,period_s=3600,duration_s=7200,seed=1", slo_ms=(1000, 40)
    ),
}
QUICK = ("azure10", "diurnal")


class DryRun:
    """A planner that watches a run: the policy of a plan, its fleet and its ledger."""

    def __init__(self, plan: Plan, start_up_s: float) -> None:
        self._plan = plan
        self._state: Any = None
        self.looks: Callable[[float], Sequence[Look]] = lambda since_s: ()
        self.advisor = Advisor(plan.settings.limits, StartUp(guess_s=start_up_s))
        self.ledger = Ledger()
        self.advice_s = self.decision_s = 0.0

    def watching(self, acting: Policy, profile: Profile) -> "Watched":
        """The acting policy, watched by one that plans by this profile."""
        settings = self._plan.settings
        policy = make_policy("headway", settings, profile)
        assert settings.engine is not None
        if self._state is None:
            self._state = policy.initial_state()
        return Watched(acting, policy, ReplayEngine.of(profile, settings.slo, settings.engine), self)

    def see(self, observation: Observation, policy: Policy, engine: ReplayEngine) -> None:
        """One interval."""
        begun = perf_counter()
        looks = self.looks(observation.now_s - observation.interval_s)
        seen = Seen(attained=attained(observation.traffic, self._plan.settings.slo), looks=looks)
        shown, row = self.advisor.see(observation, engine, seen)
        if row is not None:
            self.ledger = self.ledger.add(row)
        advised = perf_counter()
        decision = decide(policy, shown, self._state, self._plan.settings.bounds)
        self._state = decision.next_state
        self.advice_s += advised - begun
        self.decision_s += perf_counter() - advised
        self.advisor.order(decision.targets, observation.now_s)


@dataclass(frozen=True, slots=True)
class Watched(WrappedPolicy):
    """An acting policy with a dry run beside it."""

    policy: Policy
    engine: ReplayEngine
    dry_run: DryRun

    def plan(self, observation: Observation, state: Any) -> Decision:  # noqa: ANN401
        self.dry_run.see(observation, self.policy, self.engine)
        return self.inner.plan(observation, state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One load, kind of pools, speed of the engines, and fleet that stands there; `extra` are settings."""

    data: Path
    output: Path
    load: str
    pools: str
    speed: float
    standing: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.load}_{self.pools}_{self.speed:g}_{self.standing}"

    @property
    def path(self) -> Path:
        return self.output / f"{self.name}.json"

    def found(self) -> Mapping[str, Any]:
        load = LOADS[self.load]
        source = load.source if ":" in load.source else self.data / load.source
        trace = read(source, TraceOptions(rate_scale=load.rate_scale))
        plan = make_plan(self._config("headway"))
        scenario = make_scenario(plan, trace)
        first = run(plan, scenario, trace)
        fleet = {role: max(series.desired) for role, series in first.replicas.items()}
        setting = replace(scenario, initial=fleet)
        stood, dry_run = self._watch(plan, setting, trace)
        summary = summarise(dry_run.ledger.since(0.0), start_up_known=True)
        assert summary is not None
        acted = run(plan, setting, trace)
        found = compared(summary, stood, acted, plan)
        decisions = max(1, len(stood.intervals))
        found["advice_ms"] = dry_run.advice_s / decisions * 1e3
        found["decision_ms"] = dry_run.decision_s / decisions * 1e3
        found["fleet"] = {str(role): count for role, count in fleet.items()}
        return found

    def _watch(self, plan: Plan, setting: Scenario, trace: Recording) -> tuple[SimulationResult, DryRun]:
        """What stands there runs, and a dry run beside it."""
        fleet = {f"planner.static.{role}": count for role, count in setting.initial.items()}
        name = "static" if self.standing == "fixed" else "threshold"
        acting = make_plan(self._config(name, **(fleet if name == "static" else {}))).policy
        dry_run = DryRun(plan, DELAY_S)
        watched = partial(dry_run.watching, acting)
        learner = PerformanceLearner(plan.profile, watched)
        simulation = SimulationRun(setting, trace, watched(plan.profile), None, Watchers(), learner=learner)
        dry_run.looks = partial(_looks, simulation.fleet.series)
        return simulation.result(), dry_run

    def _config(self, policy: str, **more: Any) -> HeadwayConfig:  # noqa: ANN401 - any setting
        ttft_ms, itl_ms = LOADS[self.load].slo_ms
        settings = {
            "slo": {"ttft_ms": ttft_ms, "itl_ms": itl_ms},
            "engine.profile": str(self.data / PROFILE),
            "pools": {role: {"max_replicas": MOST_REPLICAS} for role in POOLS[self.pools]},
            "planner.policy": policy,
            "planner.threshold.interval_s": INTERVAL_S,
            "planner.adjustment_interval_s": INTERVAL_S,
            "simulation.start_up_delay_s": DELAY_S,
            "simulation.engine.prefill_speed": self.speed,
            "simulation.engine.decode_speed": self.speed,
            **more,
            **self.extra,
        }
        return load_config(None, settings)


def compared(
    summary: Summary, stood: SimulationResult, acted: SimulationResult, plan: Plan
) -> dict[str, Any]:
    """Forecast and truth, up to the last decision."""
    until_s = summary.end_s
    real_stood, real = (_gpu_hours(each, plan, until_s) for each in (stood, acted))
    share = summary.saved_share
    return {
        "stood_gpu_hours": real_stood,
        "told_stood_gpu_hours": summary.stood_gpu_hours,
        "planned_gpu_hours": summary.planned_gpu_hours,
        "acted_gpu_hours": real,
        "forecast": _figures(share),
        "saved": 1.0 - real / real_stood,
        "stood_attainment": stood.attainment,
        "told_stood_attainment": summary.stood_attainment,
        "forecast_attainment": _figures(summary.planned_attainment),
        "attainment": acted.attainment,
        "replay_error": summary.replay_error,
    }


def _looks(series: Mapping[Role, ReplicaSeries], since_s: float) -> Sequence[Look]:
    """The pools whenever a count changed, as the live planner sees them by the second."""
    times = sorted({at_s for each in series.values() for at_s in each.time_s if at_s >= since_s})
    return [(at_s, {role: _pool(each, at_s) for role, each in series.items()}) for at_s in times]


def _pool(series: ReplicaSeries, at_s: float) -> PoolState:
    place = bisect_right(series.time_s, at_s) - 1
    names = ("desired", "starting", "ready", "draining")
    return PoolState(**{name: getattr(series, name)[place] for name in names})


def _figures(estimate: Estimate) -> Sequence[float]:
    return [estimate.value, estimate.low, estimate.high]


def _gpu_hours(result: SimulationResult, plan: Plan, until_s: float) -> float:
    total = 0.0
    for role, series in result.replicas.items():
        times = np.minimum(np.array([*series.time_s, result.simulated_s]), until_s)
        up = np.array(series.starting) + np.array(series.ready) + np.array(series.draining)
        total += float((np.diff(times) * up).sum()) * plan.settings.limits[Role(role)].gpus_per_replica
    return total / 3600.0


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
        job
        for load in LOADS
        for pools in POOLS
        for speed in SPEEDS
        for standing in STANDING
        if not quick or (load in QUICK and standing == "fixed")
        for job in [
            Job(data=data.resolve(), output=output, load=load, pools=pools, speed=speed, standing=standing)
        ]
        if any(fnmatch(job.name, pattern) for pattern in cells.split(","))
    ]
    run_missing(jobs, workers)
    print("\n".join(table([(job, json.loads(job.path.read_text())) for job in jobs])))
    return 0


def table(found: Sequence[tuple[Job, Mapping[str, Any]]]) -> Iterator[str]:
    """One row a run, and the worst and mean of all."""
    yield "| load, pools, speed | stood: fleet, GPU-h, attained | saved: forecast (range) | really | error | "
    yield "attained: forecast (range) | really | points off | ms a decision + advice |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for job, each in found:
        share, kept = each["forecast"], each["forecast_attainment"]
        fleet = " + ".join(str(count) for count in each["fleet"].values())
        yield " | ".join((
            f"| {job.load}, {job.pools}, {job.speed:g}",
            f"{job.standing} {fleet}, {each['stood_gpu_hours']:.1f}, {each['stood_attainment']:.1%}",
            f"{share[0]:.1%} ({share[1]:.1%} to {share[2]:.1%})",
            f"{each['saved']:.1%}",
            f"{_error(each):+.1%}",
            f"{kept[0]:.2%} ({kept[1]:.2%} to {kept[2]:.2%})",
            f"{each['attainment']:.2%}",
            f"{_points(each):+.2f}",
            f"{each['decision_ms']:.0f} + {each['advice_ms']:.1f} |",
        ))  # fmt: skip
    if found:
        errors = [abs(_error(each)) for _, each in found]
        points = [abs(_points(each)) for _, each in found]
        yield f"saving off by {fmean(errors):.1%} in the mean, {max(errors):.1%} at most; "
        yield f"attainment by {fmean(points):.2f} points in the mean, {max(points):.2f} at most"


def _error(each: Mapping[str, Any]) -> float:
    forecast: float = each["forecast"][0]
    return forecast / float(each["saved"]) - 1.0


def _points(each: Mapping[str, Any]) -> float:
    return float(each["forecast_attainment"][0] - each["attainment"]) * 100.0
