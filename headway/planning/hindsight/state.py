"""What one decision leaves to the next. Arrays in here are never written to."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from headway.planning.hindsight.history import PoolHistory
from headway.planning.hindsight.lead import Starts
from headway.planning.hindsight.lengths import OutputSample
from headway.planning.hindsight.release import Hold
from headway.planning.replay import Requests
from headway.planning.types import Role, Slo

NO_REQUESTS = Requests(np.zeros(0), np.zeros(0), np.zeros(0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolMemory:
    """One pool: its past, its starts, its target, and the count that the last replay lost nothing with."""

    history: PoolHistory = field(default_factory=PoolHistory)
    starts: Starts = field(default_factory=Starts)
    hold: Hold | None = None
    guess: int = 1
    seconds_each: float = float("nan")
    """Mean engine seconds of a prompt in the last interval that had any."""
    infeasible: float = 0.0
    """Share of that interval's requests that miss their SLO on an idle engine, too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HindsightState:
    """Pools, the requests of the last minutes (outputs drawn), output lengths of completed ones, and the SLO
    by which the past was judged.
    """

    pools: Mapping[Role, PoolMemory] = field(default_factory=dict)
    recent: Requests = NO_REQUESTS
    outputs: OutputSample = field(default_factory=OutputSample)
    slo: Slo | None = None

    def under(self, slo: Slo) -> "HindsightState":
        """For decisions under this SLO: losses by another one say nothing, so the past begins anew."""
        if slo == self.slo:
            return self
        pools = {role: replace(memory, history=PoolHistory()) for role, memory in self.pools.items()}
        return replace(self, pools=pools, slo=slo)

    def pool(self, role: Role) -> PoolMemory:
        """What is remembered of a pool."""
        return self.pools.get(role) or PoolMemory()
