"""A base with its requests in memory, and one measurement: a policy on all rotations of the trace.

Attainment is requests that met both SLOs over requests that an idle fleet could serve within them, summed
over the rotations; cost is the mean GPU-hours of a rotation.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, isfinite
from pathlib import Path
from typing import Any, cast

from benchmarks.policies.cells import PROFILES, Base
from benchmarks.policies.recording import Recording, recordings
from benchmarks.policies.search import MOST_REPLICAS, Fleet
from headway.config import load_config
from headway.planning import LoadForecast, Policy, PolicySettings, Role, Slo
from headway.planning.deciding import fit
from headway.planning.forecasting import LoadForecaster
from headway.simulation.build import Plan, make_plan
from headway.simulation.demand import Reach, reach, requirements
from headway.simulation.scenario import Scenario, StartUp
from headway.simulation.simulate import simulate
from headway.workload import Trace
from interp import Profile

GOAL = 0.99

Driver = tuple[Policy, LoadForecaster | None]
"""What plans in one simulation; the forecaster changes while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Several simulations as one; `spread` holds attainment and GPU-hours of each.

    Reversals are changes of direction per hour and pool.
    """

    attainment: float
    gpu_hours: float
    reversals: float
    fluid_gpu_hours: float
    spread: tuple[tuple[float, float], ...] = ()

    @property
    def held(self) -> bool:
        return self.attainment >= GOAL

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Figures":
        """From JSON."""
        return cls(**{**document, "spread": tuple(tuple(pair) for pair in document["spread"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBase:
    """A base with its requests in memory; `reaches` says of each rotation what is attainable.

    `most` bounds each pool's replicas.
    """

    base: Base
    directory: str
    rotations: Sequence[Recording]
    reaches: Sequence[Reach]
    most: Fleet = (MOST_REPLICAS, MOST_REPLICAS)

    @property
    def attainable(self) -> int:
        return sum(known.attainable for known in self.reaches)

    def plan(self, overrides: Mapping[str, Any], budget: int | None = None) -> Plan:
        """The deployment under a policy's settings."""
        return make_plan(load_config(None, {**self._common(budget), **overrides}))

    def _common(self, budget: int | None) -> dict[str, Any]:
        ttft_s, itl_s = self.base.slo_s
        return {
            "slo.ttft_ms": ttft_s * 1e3,
            "slo.itl_ms": itl_s * 1e3,
            "engine.profile": self.directory,
            "pools.prefill.max_replicas": self.most[0],
            "pools.decode.max_replicas": self.most[1],
            "planner.max_gpu_budget": budget,
            "planner.policy": "static",
        }

    def head(self, duration_s: float) -> "LoadedBase":
        """The first seconds of each rotation."""
        parts = [rotation.head(duration_s) for rotation in self.rotations]
        return replace(self, rotations=parts, reaches=_reaches(self.plan({}), parts))

    def measure(
        self,
        drive: Callable[[], Driver],
        initial: Sequence[Fleet],
        delay_s: float = 0.0,
        budget: int | None = None,
    ) -> Figures:
        """Simulate each rotation under the policy that `drive` makes for it, from its first fleet on."""
        plan = self.plan({}, budget)
        runs = []
        for turn, rotation in enumerate(self.rotations):
            policy, forecaster = drive()
            scenario = _scenario(plan, initial[turn], delay_s)
            result = simulate(scenario, rotation, policy, forecaster)
            moved = sum(result.direction_reversals.values()) / len(scenario.pools)
            hours = max(rotation.duration_s, 1.0) / 3600.0
            fluid = result.tally.fluid.gpu_seconds / 3600.0
            runs.append((result.tally.met, result.gpu_hours, moved / hours, fluid))
        return self._pooled(runs)

    def _pooled(self, runs: Sequence[tuple[int, float, float, float]]) -> Figures:
        met, gpu_hours, reversals, fluid = (list(column) for column in zip(*runs, strict=True))
        shares = [own / max(1, known.attainable) for own, known in zip(met, self.reaches, strict=True)]
        return Figures(
            attainment=sum(met) / max(1, self.attainable),
            gpu_hours=sum(gpu_hours) / len(runs),
            reversals=sum(reversals) / len(runs),
            fluid_gpu_hours=sum(fluid) / len(runs),
            spread=tuple(zip(shares, gpu_hours, strict=True)),
        )

    def guess(self) -> Fleet:
        """The fleet that the reference formulas ask for at the mean load of the first rotation."""
        plan, rotation = self.plan({}), self.rotations[0]
        count = len(rotation.arrival_s)
        load = LoadForecast(
            requests=float(count),
            isl_tokens=float(rotation.input_tokens.sum()) / max(1, count),
            osl_tokens=float(rotation.output_tokens.sum()) / max(1, count),
        )
        need = requirements(load, rotation.duration_s, plan.settings, plan.profile)
        return _whole(need[Role.PREFILL]), _whole(need[Role.DECODE])


def _whole(replicas: float) -> int:
    return max(1, ceil(replicas)) if isfinite(replicas) else 1


def _scenario(plan: Plan, initial: Fleet, delay_s: float) -> Scenario:
    wished = {Role.PREFILL: initial[0], Role.DECODE: initial[1]}
    fitted = fit(wished, plan.settings.limits, plan.settings.max_gpu_budget)
    return Scenario(
        profile=plan.profile,
        slo=plan.settings.slo,
        pools=plan.settings.limits,
        initial=fitted.targets,
        engine=plan.engine,
        start_up=StartUp(delay_s=delay_s),
    )


def gpus_of(settings: PolicySettings) -> Fleet:
    """GPUs of one prefill and one decode replica."""
    limits = settings.limits
    return limits[Role.PREFILL].gpus_per_replica, limits[Role.DECODE].gpus_per_replica


def _reaches(plan: Plan, rotations: Sequence[Recording]) -> list[Reach]:
    # `reach` reads nothing of a trace but its chunks.
    return [reach(cast(Trace, each), plan.settings.slo, plan.idle) for each in rotations]


def best_batch(profile: Profile, slo: Slo, context_tokens: float, most: int) -> float:
    """Requests that one decode replica carries at its best throughput under the ITL target."""
    best = profile.decode.best_throughput_per_gpu(slo.itl_s, context_tokens)
    batch = float(best.throughput_per_gpu) * profile.decode.gpus_per_engine * float(best.itl_s)
    return min(float(most), max(1.0, batch))


@lru_cache(maxsize=1)
def load_base(data: Path, base: Base) -> LoadedBase:
    """A base with its requests, kept until another one is asked for."""
    rotations = recordings(data, base.trace)
    directory = str(data / "profiles" / PROFILES[base.profile])
    empty = LoadedBase(base=base, directory=directory, rotations=rotations, reaches=())
    return replace(empty, reaches=_reaches(empty.plan({}), rotations))
