"""What the planner's tests share: virtual time, scripted actors and connector, runs of the loop."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.collector.interval import Health, HealthStatus, Latency, Measured, PoolLoad
from actors.connectors.protocol import Action, PoolCounts, PoolsSnapshot, Ready, Replica
from actors.performance_model import PerformanceModel
from actors.planning.advice import LiveAdvice
from actors.planning.common_budget import CommonBudget
from actors.planning.context import PlannerContext, PlannerState
from actors.planning.log import DecisionLog
from actors.planning.loop import PlannerLoop
from actors.planning.settings import RuntimeSettings
from actors.store import Store, StoreAway
from headway.config import HeadwayConfig, load_config
from headway.engine.observed_metrics import EngineReading
from headway.planning import Decision, LoadForecast, Observation, Role, Traffic
from headway.planning.documents import ComponentHealth
from tests.planning.planning_cases import PROFILE
from tests.stores import MemoryStore

EPOCH = 1_000_000.0
INTERVAL_S = 10.0
NEVER = math.inf


AHEAD_S = 0.0
"""By which the clock has been set, since the loop began."""


def clock() -> float:
    """Unix seconds of the virtual loop."""
    return EPOCH + asyncio.get_running_loop().time() + AHEAD_S


async def inline(work: Callable[[], Decision]) -> Decision:
    return work()


@dataclass
class Script:
    """An answer, or an exception, after so many seconds: first `answers` in order, then `usual`."""

    usual: Any
    answers: list[Any] = field(default_factory=list)
    delay_s: float = 0.0
    calls: list[float] = field(default_factory=list)

    async def play(self) -> Any:
        self.calls.append(clock() - EPOCH)
        answer = self.answers.pop(0) if self.answers else self.usual
        if self.delay_s:
            await (asyncio.Event().wait() if self.delay_s == NEVER else asyncio.sleep(self.delay_s))
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def busy(requests: float = 200.0, **changes: Any) -> Measured:
    """An interval with traffic that one prefill and some decode replicas of PROFILE carry."""
    values: dict[str, Any] = {
        "start_s": clock() - INTERVAL_S,
        "end_s": clock(),
        "health": Health(status=HealthStatus.OK),
        "requests": requests,
        "completed": requests,
        "isl_tokens": 1000.0,
        "osl_tokens": 200.0,
        "request_duration_s": 2.5,
        "attainment": 0.9,
        "ttft_s": Latency(mean=0.06),
        "itl_s": Latency(mean=0.012),
        "load": {Role.PREFILL: PoolLoad(running=1.0, waiting=0.0, kv_usage=0.1)},
    }
    return Measured(**(values | changes))


def unhealthy(status: HealthStatus, detail: str = "said so") -> Measured:
    return Measured(start_s=clock() - INTERVAL_S, end_s=clock(), health=Health(status=status, detail=detail))


@dataclass
class ScriptedActors:
    """The other actors by script. `seen` has each (tick, requests) that the predictor was shown.

    `wake` is what waits in front of engines that others run. `traffic` has the single requests of each;
    `shown` is what the Interpolator was shown of engines.
    """

    readiness: Script = field(default_factory=lambda: Script(""))
    collecting: Script = field(default_factory=lambda: Script(busy))
    mapping: Script = field(default_factory=lambda: Script((1, PROFILE)))
    forecasting: Script = field(default_factory=lambda: Script(None))
    wake: Script = field(default_factory=lambda: Script(0.0))
    seen: list[tuple[int, float]] = field(default_factory=list)
    traffic: list[Traffic | None] = field(default_factory=list)
    shown: list[EngineReading] = field(default_factory=list)

    async def ready(self, *, asleep: bool = False) -> str:
        return "" if asleep else await self.readiness.play()

    async def waiting(self) -> float:
        return await self.wake.play()

    async def collect(
        self, interval_s: float, since_s: float | None, counts: Mapping[Role, PoolCounts]
    ) -> Measured:
        assert interval_s == INTERVAL_S
        return await self.collecting.play()

    async def model(self, known: int) -> PerformanceModel | None:
        version, profile = await self.mapping.play()
        model = PerformanceModel(version=version, profiles_version=version, profiles={"": profile})
        return None if version == known else model

    async def forecast(self, observation: Observation, tick: int, interval_s: float) -> LoadForecast:
        self.seen.append((tick, observation.requests))
        self.traffic.append(observation.traffic)
        given = await self.forecasting.play()
        return given or LoadForecast(
            requests=observation.requests,
            isl_tokens=observation.isl_tokens,
            osl_tokens=observation.osl_tokens,
        )

    async def calibrate(self, observation: Observation, engines: Sequence[EngineReading] = ()) -> None:
        """Nothing is learnt."""
        self.shown.extend(engines)

    def health(self) -> Mapping[str, ComponentHealth]:
        return {"Interpolator": ComponentHealth(ok=True)}


@dataclass
class ScriptedPools:
    """A connector whose replicas need `start_s` seconds to run; `calls` has times and targets."""

    counts: dict[Role, int] = field(default_factory=lambda: {Role.PREFILL: 1, Role.DECODE: 1})
    start_s: float = 3.0
    crowded: bool = False
    readiness: Script = field(default_factory=lambda: Script(Ready(ok=True)))
    setting: Script = field(default_factory=lambda: Script(None))
    reading: Script = field(default_factory=lambda: Script(None))
    calls: list[tuple[float, dict[Role, int]]] = field(default_factory=list)
    born: dict[str, tuple[Role, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for role, count in self.counts.items():
            for number in range(count):
                self.born[f"{role}-{number}"] = (role, -math.inf)

    async def ready(self) -> Ready:
        return await self.readiness.play()

    async def set_targets(self, targets: Mapping[Role, int], reasons: Mapping[str, Any]) -> Action:
        self.calls.append((clock() - EPOCH, dict(targets)))
        await self.setting.play()
        before, self.counts = self.counts, {**self.counts, **targets}
        for role, count in targets.items():
            mine = [name for name, (of, _) in self.born.items() if of is role]
            for name in mine[count:]:
                del self.born[name]
            for number in range(len(mine), count):
                self.born[f"{role}-{number}-{clock() - EPOCH:g}"] = (role, clock())
        return Action(status="unchanged" if before == self.counts else "sent")

    async def state(self) -> Mapping[Role, PoolCounts]:
        return (await self.snapshot()).pools

    async def snapshot(self) -> PoolsSnapshot:
        await self.reading.play()
        replicas = tuple(
            Replica(
                role=role,
                replica=name,
                phase="ready" if clock() >= since_s + self.start_s else "starting",
                started_s=since_s,
            )
            for name, (role, since_s) in self.born.items()
        )
        return PoolsSnapshot(
            pools={role: self._counts(role, replicas) for role in self.counts},
            replicas=replicas,
            crowded=self.crowded,
        )

    def _counts(self, role: Role, replicas: tuple[Replica, ...]) -> PoolCounts:
        phases = [replica.phase for replica in replicas if replica.role is role]
        return PoolCounts(
            desired=self.counts[role],
            starting=phases.count("starting"),
            ready=phases.count("ready"),
            draining=0,
        )


def settings(**overrides: Any) -> HeadwayConfig:
    """The policy `reference`, every ten seconds; keys with `__` for the dots."""
    base = {
        "planner.policy": "reference",
        "planner.adjustment_interval_s": INTERVAL_S,
        "planner.no_correction": True,
    }
    return load_config(None, base | {key.replace("__", "."): value for key, value in overrides.items()})


@dataclass
class Deployment:
    """One planner and its surroundings; `again` is what a restart after `kill -9` makes of them."""

    config: HeadwayConfig = field(default_factory=settings)
    store: Store = field(default_factory=MemoryStore)
    actors: ScriptedActors = field(default_factory=ScriptedActors)
    pools: ScriptedPools = field(default_factory=ScriptedPools)
    resumed: bool = False
    compute: Callable[[Callable[[], Decision]], Awaitable[Decision]] = inline
    store_away: bool = False
    name: str = "headway"
    budget: CommonBudget = field(default_factory=CommonBudget)
    phase: float = 0.0

    def __post_init__(self) -> None:
        self.log = DecisionLog(self.store)
        self.settings = RuntimeSettings(self.config, self.store)
        context = PlannerContext(
            actors=self.actors,
            connector=self.pools,
            log=self.log,
            settings=self.settings,
            clock=clock,
            part=self.budget.join(self.name, self.settings, self.log, clock),
            phase=self.phase,
            advice=LiveAdvice(self.store),
            compute=self._compute,
            stored=self._kept,
        )
        self.loop = PlannerLoop(context, resume=self.resumed)

    async def _compute(self, work: Callable[[], Decision]) -> Decision:
        # Tests replace `compute` while the loop runs.
        return await self.compute(work)

    async def _kept(self, work: Callable[[], Any]) -> Any:
        if self.store_away:
            raise StoreAway("the store does not answer within 2 s")
        return work()

    @property
    def state(self) -> PlannerState:
        return self.loop.state

    def status(self) -> dict[str, Any]:
        return self.loop.status().document()

    def again(self) -> "Deployment":
        return Deployment(self.config, self.store, self.actors, self.pools, resumed=True)

    async def run_for(self, seconds: float) -> None:
        """Let the loop run, then end it."""
        async with self.running():
            await asyncio.sleep(seconds)

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.create_task(self.loop.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def records(self) -> list[dict[str, Any]]:
        return [record.document() for record in self.log.after(-1, 10_000)]

    def times(self) -> list[float]:
        return [round(record["created_at"] - EPOCH, 6) for record in self.records()]
