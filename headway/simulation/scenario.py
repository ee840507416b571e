"""A simulated deployment: engines, pools, start-up, SLO classes, routing, crashes.

    share of class c    share_c / Σ share
    class of request n  the first c with u(n) < cumulative share,  u(n) = splitmix64(n + seed·odd) / 2^64

so that a request has the same class whatever the routing, the fleet or the size of chunks. An SLO that a
class leaves open is the deployment's. Without classes all requests are of one that has just that SLO.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log, sqrt

import numpy as np
from numpy.typing import NDArray

from headway.config import HeadwayConfig
from headway.config.routing import PredictionSettings
from headway.engine import EngineRules
from headway.engine.kernel import layout
from headway.engine.kernel.layout import Routing
from headway.engine.rules import EngineSpeeds
from headway.planning.deciding import Bounds
from headway.planning.policies import class_promises
from headway.planning.schedule import Schedule
from headway.planning.types import PlanningError, PoolLimits, Role, Slo
from headway.routing import Router
from headway.simulation.clients import Clients
from interp import Profile

INCREMENT = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
SEED_STRIDE = 0xD1342543DE82EF95
"""An odd number: seeds lie far apart in the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestClass:
    """A class: what its requests are promised, and its part of all, relative to the other classes' shares."""

    name: str
    slo: Slo
    critical: bool = False
    share: float = 1.0
    tenant: str = ""


class ClassMix:
    """The classes of a run and who belongs to which; without `classes` there is one, without a name."""

    def __init__(self, classes: Sequence[RequestClass], slo: Slo, seed: int) -> None:
        self.named = bool(classes)
        self.classes = tuple(classes) or (RequestClass(name="", slo=slo),)
        shares = np.array([each.share for each in self.classes], np.float64)
        self._until = np.cumsum(shares / shares.sum())[:-1]
        self.limits_s = np.array([(each.slo.ttft_s, each.slo.itl_s) for each in self.classes]).T
        """TTFT and TPOT by place in `classes`: f8[2, C]."""
        self._offset = np.uint64(seed * SEED_STRIDE % 2**64)

    def draw(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place in `classes` of each request, by its number in the trace."""
        uniform = _mixed(numbers.astype(np.uint64) * INCREMENT + self._offset) / 2.0**64
        return np.searchsorted(self._until, uniform, side="right").astype(np.int64)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    mixed: NDArray[np.uint64] = bits ^ (bits >> np.uint64(31))
    return mixed


def request_classes(config: HeadwayConfig) -> tuple[RequestClass, ...]:
    """The classes that `slo.classes` names, in its order.

    Raises PlanningError where no class has a share of the requests.
    """
    classes = config.slo.classes
    if classes and not any(each.share for each in classes.values()):
        raise PlanningError("slo.classes: no class has a share of the requests")
    return tuple(
        RequestClass(
            name=each.name,
            slo=each.slo,
            critical=each.critical,
            share=classes[each.name].share,
            tenant=classes[each.name].tenant,
        )
        for each in class_promises(config.slo)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Time from the order of a replica until it serves: lognormal with mean `delay_s` and variation `cv`.

    Of one that sleeps (`PoolLimits.sleepers`) it is `wake_s`. Of others at most `at_once` start together.
    """

    delay_s: float = 0.0
    cv: float = 0.0
    wake_s: float = 0.0
    at_once: int | None = None

    def sampler(self, generator: np.random.Generator) -> Callable[[], float]:
        """A function that draws one start-up time in seconds."""
        if self.cv == 0.0 or self.delay_s == 0.0:
            return lambda: self.delay_s
        spread = log(1.0 + self.cv**2)
        middle = log(self.delay_s) - spread / 2.0
        return lambda: float(generator.lognormal(middle, sqrt(spread)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCapacity:
    """The GPUs of the cluster: `steps` of (second, GPUs from then on), ascending; without bound before."""

    steps: Sequence[tuple[float, int]] = ()

    def at(self, now_s: float) -> float:
        """GPUs at a time."""
        past = bisect_right(self.steps, now_s, key=lambda step: step[0])
        return self.steps[past - 1][1] if past else inf

    def next_s(self, now_s: float) -> float:
        """When they change next; infinite where they do not any more."""
        return min((at_s for at_s, _ in self.steps if at_s > now_s), default=inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCrash:
    """The longest-ready replica of `role` dies at `at_s`."""

    at_s: float
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioRouter:
    """A scenario's router: its profile's name, and how to make it from the run's random generator.

    `most_tokens` bounds prompt and output of one request as routers know it; None: the KV capacity. `learn`
    says how its latency model is trained meanwhile; None: not at all. All replicas are of `gpu_type`. With
    `reports` it hears of engines' loads and of the progress of requests.
    """

    name: str
    make: Callable[[np.random.Generator], Router]
    most_tokens: int | None = None
    learn: PredictionSettings | None = None
    gpu_type: str = ""
    reports: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated deployment. `initial` is the fleet in service when the trace begins.

    `profile` is what its engines do, at `speeds`; each request is placed `queueing_s` after it arrived.

    `max_gpu_budget` bounds the GPUs that a decision may ask for, None does not; `capacity` bounds those that
    it gets; under a common budget those of a replica are on one node of `gpus_per_node`. `max_step` bounds by
    how many replicas a decision changes a pool, `schedule` changes its limits.

    Each request is judged by the SLO of its class among `classes`, without classes by `slo`. With `spills` a
    request that finds no place is none of this deployment's.
    """

    profile: Profile
    slo: Slo
    pools: Mapping[Role, PoolLimits]
    initial: Mapping[Role, int]
    max_gpu_budget: int | None = None
    max_step: int | None = None
    schedule: Schedule | None = None
    capacity: GpuCapacity = field(default_factory=GpuCapacity)
    gpus_per_node: int | None = None
    engine: EngineRules = field(default_factory=EngineRules)
    speeds: EngineSpeeds = field(default_factory=EngineSpeeds)
    clients: Clients = field(default_factory=Clients)
    queueing_s: float = 0.0
    start_up: StartUp = field(default_factory=StartUp)
    routing: Routing | ScenarioRouter = Routing.LEAST_LOAD
    classes: Sequence[RequestClass] = ()
    spills: bool = False
    crashes: Sequence[PlannedCrash] = ()
    seed: int = 0
    drain_limit_s: float = 14_400.0

    @property
    def bounds(self) -> Bounds:
        """The bounds of each decision."""
        return Bounds(
            limits=self.pools,
            max_gpu_budget=self.max_gpu_budget,
            max_step=self.max_step,
            schedule=self.schedule,
        )

    @property
    def mix(self) -> ClassMix:
        """The classes of requests, and who belongs to which."""
        return ClassMix(self.classes, self.slo, self.seed)

    @property
    def settings(self) -> NDArray[np.void]:
        """The kernel's settings record."""
        rules, settings = self.engine, np.zeros(1, layout.SETTINGS)
        settings["disaggregated"] = int(Role.MIXED not in self.pools)
        is_routed = isinstance(self.routing, ScenarioRouter)
        settings["routing"] = Routing.ROUTER if is_routed else self.routing
        settings["max_batch"] = rules.max_batch_size
        settings["kv_capacity_tokens"] = int(self.profile.decode.table.max_kv_tokens)
        settings["chunk_tokens"] = rules.chunk_tokens
        settings["transfer_latency_s"] = rules.transfer_latency_s
        settings["transfer_s_per_token"] = rules.transfer_s_per_token
        settings["block_tokens"] = rules.block_tokens
        settings["queueing_s"] = self.queueing_s
        for name in ("patience_s", "retry_after_s", "retries"):
            settings[name] = getattr(self.clients, name)
        settings["cache_capacity_blocks"] = rules.prefix_cache_tokens // rules.block_tokens
        return settings
