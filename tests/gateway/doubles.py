"""A backend in this process that does what a test tells it: the double for everything behind the gateway.

Faults can't be had at will from real replicas; the real path is tested in tests/ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from headway.planning import Role
from headway.routing.types import Placement
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.gateway.backend import OnPlaced, Readiness, ReplicaLoad

WAIT = "wait"
"""A step at which the output stops until somebody closes it."""

Step = TokenChunk | BaseException | str | float


@dataclass
class ScriptedBackend:
    """Yields the chunks of a script; raises its errors; sleeps its numbers; waits where it says so."""

    script: Sequence[Step] = ()
    readiness: Readiness = field(default_factory=lambda: Readiness(ok=True))
    loads: Sequence[ReplicaLoad] = ()
    placement: Placement | None = None
    requests: list[EngineRequest] = field(default_factory=list)
    begun: int = 0
    completed: int = 0
    aborted: int = 0
    told_complete: list[str] = field(default_factory=list)

    async def generate(
        self, request: EngineRequest, placed: OnPlaced | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        self.requests.append(request)
        self.begun += 1
        complete = False
        if placed is not None and self.placement is not None:
            placed(self.placement)
        try:
            for step in self.script:
                match step:
                    case TokenChunk():
                        yield step
                    case BaseException():
                        raise step
                    case float():
                        await asyncio.sleep(step)
                    case _:
                        await asyncio.Event().wait()
            complete = True
        finally:
            self.completed += complete
            self.aborted += not complete

    def complete(self, request_id: str) -> None:
        self.told_complete.append(request_id)

    def ready(self) -> Readiness:
        return self.readiness

    def replicas(self) -> Sequence[ReplicaLoad]:
        return self.loads


def chunks(*texts: str, tokens: int = 1, reason: str = "length") -> list[Step]:
    """One chunk per text, the last with the reason."""
    last = len(texts) - 1
    return [TokenChunk(text, tokens, reason if at == last else None) for at, text in enumerate(texts)]


LOADS = (
    ReplicaLoad(role=Role.PREFILL, replica="p#1", running=1, waiting=2, kv_usage=0.25),
    ReplicaLoad(role=Role.DECODE, replica="d#1", running=3, waiting=0, kv_usage=0.5),
)
