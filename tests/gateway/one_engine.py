"""A backend that is one simulated engine in this process."""

from collections.abc import AsyncGenerator, Sequence

from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.engines.protocol import (
    AuxiliaryAnswer,
    AuxiliaryCall,
    EngineRequest,
    PromptTooLong,
    Refused,
    TokenChunk,
)
from serve_apps.engines.simulated import SimulatedEngine
from serve_apps.gateway.backend import ChunkSink, Readiness, RefusedByEngine, ReplicaLoad, Timeline, TooLong


class OneEngine:
    """A mixed engine, called directly."""

    def __init__(self, config: HeadwayConfig) -> None:
        self.engine = SimulatedEngine(config, Role.MIXED, "one")

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        chunks = self.engine.decode(request, None)
        try:
            async for chunk in chunks:
                yield chunk
        except PromptTooLong as error:
            raise TooLong(str(error)) from error
        except Refused as refused:
            raise RefusedByEngine(refused.status, refused.body) from refused
        finally:
            await chunks.aclose()

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        return await self.engine.auxiliary(question)

    def ready(self) -> Readiness:
        return Readiness(ok=True)

    def replicas(self) -> Sequence[ReplicaLoad]:
        stats = self.engine.stats()
        return [
            ReplicaLoad(
                role=Role.MIXED,
                replica="one",
                running=stats.running,
                waiting=stats.waiting,
                kv_usage=stats.kv_usage,
            )
        ]
