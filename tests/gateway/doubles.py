"""A backend in this process that does what a test tells it: the double for everything behind the gateway.

Faults can't be had at will from real replicas; the real path is tested in tests/ray.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

from headway.planning import Role
from headway.routing.types import Placement
from serve_apps.engines.answering.answers import answer, plain
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, Refused, TokenChunk
from serve_apps.gateway.backend import ChunkSink, Readiness, RefusedByEngine, ReplicaLoad, Timeline

WAIT = "wait"
"""A step at which the output stops until somebody closes it."""

Step = TokenChunk | BaseException | str | float


@dataclass
class ScriptedBackend:
    """Yields the chunks of a script; raises its errors; sleeps its numbers; waits where it says so.

    Chunks of bytes are an answer, those of text become one, as of an engine that makes text. The script may
    be one for each call, counted from 0.
    """

    script: Sequence[Step] | Callable[[int], Sequence[Step]] = ()
    readiness: Readiness = field(default_factory=lambda: Readiness(ok=True))
    loads: Sequence[ReplicaLoad] = ()
    placement: Placement | None = None
    requests: list[EngineRequest] = field(default_factory=list)
    parts: list[EngineRequest] = field(default_factory=list)
    """What is asked of the engine for a request."""
    begun: int = 0
    completed: int = 0
    aborted: int = 0

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        script = self.script(self.begun) if callable(self.script) else self.script
        self.requests.append(request)
        self.begun += 1
        if timeline is not None:
            timeline.placement = self.placement
        made_here = any(isinstance(step, TokenChunk) and isinstance(step.text, bytes) for step in script)
        play = partial(self._play, script)
        run = play(request) if made_here else answer(request, play, plain, "simulated")
        try:
            async with aclosing(run) as chunks:
                async for chunk in chunks:
                    yield chunk
        except Refused as refused:
            raise RefusedByEngine(refused.status, refused.body) from refused

    async def _play(self, script: Sequence[Step], part: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
        self.parts.append(part)
        complete = False
        try:
            for step in script:
                match step:
                    case TokenChunk():
                        yield step
                    case BaseException():
                        try:
                            raise step
                        finally:
                            # It has this frame.
                            del step
                    case float():
                        await asyncio.sleep(step)
                    case _:
                        await asyncio.Event().wait()
            complete = True
        finally:
            self.completed += complete
            self.aborted += not complete

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        return AuxiliaryAnswer(200, b'{"path": "%s"}' % question.path.encode())

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
