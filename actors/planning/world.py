"""What ticks act on and what outlives each: other actors, connector, log, settings, last answers."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from actors.collector.values import Measured
from actors.connectors.protocol import Connector, PoolCounts
from actors.planning.log import DecisionLog
from actors.planning.memory import Memory, load_memory
from actors.planning.parts import PartError, Parts
from actors.planning.policies import InForce, put_in_force
from actors.planning.settings import RuntimeSettings
from headway.planning import Decision, Role
from interp import Profile

T = TypeVar("T")

SURFACES_UNTIL = 0.5
"""Share of the deadline for which the surfaces are waited for."""

Compute = Callable[[Callable[[], Decision]], Awaitable[Decision]]


async def in_thread(work: Callable[[], Decision]) -> Decision:
    """Compute beside the event loop: the first look into a profile compiles, which takes seconds."""
    return await asyncio.to_thread(work)


@dataclass(slots=True, kw_only=True)
class World:
    """What a tick acts on and what outlives it. `clock` gives Unix seconds."""

    parts: Parts
    connector: Connector
    kind: str
    log: DecisionLog
    settings: RuntimeSettings
    clock: Callable[[], float]
    compute: Compute = in_thread
    profile: Profile | None = None
    profile_version: int = -1
    in_force: InForce | None = None
    counts: Mapping[Role, PoolCounts] = field(default_factory=dict)
    measured: Measured | None = None
    fault: str = ""
    """Why the connector did not tell its state, when it was asked last."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    resumed: bool = False
    """Whether this planner goes on where another one ended."""

    def resume(self) -> None:
        """Go on where the planner that wrote the log ended."""
        self.resumed = True
        self.memory = load_memory(self.log.memory)

    def refreshed(self) -> InForce:
        """The policy for the present settings and surfaces. PartError without surfaces."""
        if self.profile is None:
            raise PartError("Interpolator: no profile")
        version = (self.settings.version, self.profile_version)
        if self.in_force is None or self.in_force.version != version:
            self.in_force = put_in_force(self.settings.config, self.profile, version)
        return self.in_force


class Deadline:
    """Time left of one tick, on the event loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin, self._seconds = self._loop.time(), seconds

    async def within(self, share: float, work: Awaitable[T]) -> T:
        """The answer, or TimeoutError once that share of the whole time is over."""
        async with asyncio.timeout_at(self._begin + share * self._seconds):
            return await work


async def ensure_policy(world: World, deadline: Deadline) -> InForce:
    """The policy for the present settings and surfaces."""
    try:
        version, fresh = await deadline.within(SURFACES_UNTIL, world.parts.surfaces(world.profile_version))
        if fresh is not None:
            world.profile, world.profile_version = fresh, version
    except (PartError, TimeoutError) as error:
        if world.profile is None:
            raise PartError(str(error) or "Interpolator: no answer in time") from error
    return world.refreshed()
