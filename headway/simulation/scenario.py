"""What a simulation is given besides trace and policy: engine rules, pools, start-up, routing, faults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from headway.engine import EngineRules
from headway.planning.types import PoolLimits, Role, Slo
from headway.simulation import layout
from headway.simulation.classes import ClassMix, RequestClass
from headway.simulation.layout import Routing
from headway.simulation.routed import Routed
from headway.simulation.routing import RoutingPolicy
from interp import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUp:
    """Time from the order of a replica until it serves: lognormal with mean `delay_s` and variation `cv`."""

    delay_s: float = 0.0
    cv: float = 0.0

    def sampler(self, generator: np.random.Generator) -> Callable[[], float]:
        """A function that draws one start-up time in seconds."""
        if self.cv == 0.0 or self.delay_s == 0.0:
            return lambda: self.delay_s
        spread = log(1.0 + self.cv**2)
        middle = log(self.delay_s) - spread / 2.0
        return lambda: float(generator.lognormal(middle, sqrt(spread)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The longest-ready replica of `role` dies at `at_s`."""

    at_s: float
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One simulated deployment. `initial` is the fleet in service when the trace begins.

    A drained replica takes another role in `role_change_s`; None: it cannot.

    Each request is judged by the SLO of its class among `classes`, without classes by `slo`.
    """

    profile: Profile
    slo: Slo
    pools: Mapping[Role, PoolLimits]
    initial: Mapping[Role, int]
    engine: EngineRules = field(default_factory=EngineRules)
    start_up: StartUp = field(default_factory=StartUp)
    role_change_s: float | None = None
    routing: Routing | RoutingPolicy | Routed = Routing.LEAST_LOAD
    classes: Sequence[RequestClass] = ()
    crashes: Sequence[Crash] = ()
    seed: int = 0
    drain_limit_s: float = 14_400.0

    @property
    def mix(self) -> ClassMix:
        """The classes of requests, and who belongs to which."""
        return ClassMix(self.classes, self.slo, self.seed)

    @property
    def _code(self) -> Routing:
        if isinstance(self.routing, Routing):
            return self.routing
        return Routing.ROUTER if isinstance(self.routing, Routed) else Routing.PYTHON

    @property
    def settings(self) -> NDArray[np.void]:
        """The kernel's settings record."""
        rules, settings = self.engine, np.zeros(1, layout.SETTINGS)
        settings["disaggregated"] = int(Role.MIXED not in self.pools)
        settings["routing"] = self._code
        settings["max_batch"] = rules.max_batch_size
        settings["kv_capacity_tokens"] = int(self.profile.decode.table.max_kv_tokens)
        settings["chunk_tokens"] = rules.chunk_tokens
        settings["transfer_latency_s"] = rules.transfer_latency_s
        settings["transfer_s_per_token"] = rules.transfer_s_per_token
        settings["block_tokens"] = rules.block_tokens
        settings["cache_capacity_blocks"] = rules.prefix_cache_tokens // rules.block_tokens
        return settings
