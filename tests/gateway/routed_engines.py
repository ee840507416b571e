"""The Router and simulated engines as a backend in this process, for virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing

import numpy as np

from headway.config import HeadwayConfig
from headway.engine import engine_profile, engine_rules
from headway.planning import Role
from headway.routing import (
    OutputProgress,
    Placement,
    ReplicaLoad,
    ReplicaUpdate,
    RoutingOutcome,
    make_router,
)
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, TokenChunk
from serve_apps.engines.simulated import SimulatedEngine
from serve_apps.gateway.backend import ChunkSink, Overloaded, Readiness, Timeline
from serve_apps.gateway.backend import ReplicaLoad as Shown

LOOK_S, REPORT_S = 0.005, 1.0
"""Seconds between two looks at what is due, and between two reports of engines and of streams."""


class RoutedEngines:
    """Mixed replicas; with `until` the router also does what is due, and engines report."""

    def __init__(self, config: HeadwayConfig, replicas: int) -> None:
        profile = engine_profile(config)
        rules = engine_rules(config, profile)
        self.router = make_router(config, {"": profile}, rules, np.random.default_rng(0))
        names = [f"mixed-{number}" for number in range(replicas)]
        self.engines = {name: SimulatedEngine(config, Role.MIXED, name) for name in names}
        self._waiting: dict[str, asyncio.Future[Placement]] = {}
        self._produced: dict[str, int] = {}
        for name in names:
            self.router.replica_changed(0.0, ReplicaUpdate(replica=name, role=Role.MIXED))

    async def until(self, work: Awaitable[object]) -> None:
        looking = asyncio.create_task(self._look())
        try:
            await work
        finally:
            looking.cancel()

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        assert request.route is not None
        name, complete = request.request_id, False
        self._waiting[name], self._produced[name] = asyncio.get_running_loop().create_future(), 0
        self._take(self.router.submit(self._now_s(), request.route))
        try:
            placement = await self._waiting[name]
            async with aclosing(self.engines[placement.decode_replica].decode(request, None)) as chunks:
                async for chunk in chunks:
                    if not self._produced[name]:
                        self._take(self.router.first_token(self._now_s(), name))
                    self._produced[name] += chunk.tokens
                    complete = chunk.finish_reason is not None
                    yield chunk
        finally:
            del self._waiting[name]
            tokens, now_s = self._produced.pop(name), self._now_s()
            ended = (
                self.router.complete(now_s, name, tokens)
                if complete
                else self.router.failed(now_s, name, retry=False)
            )
            self._take(ended)

    def _take(self, outcome: RoutingOutcome) -> None:
        for placement in outcome.placements:
            self._waiting[placement.request_id].set_result(placement)
        for shed in outcome.sheds:
            if (waiter := self._waiting.get(shed.request_id)) is not None:
                waiter.set_exception(Overloaded(str(shed.reason)))

    async def _look(self) -> None:
        due_s = 0.0
        while True:
            now_s = self._now_s()
            if self.router.next_due_s <= now_s:
                self._take(self.router.expire(now_s))
            if due_s <= now_s:
                due_s = now_s + REPORT_S
                self._report(now_s)
            await asyncio.sleep(LOOK_S)

    def _report(self, now_s: float) -> None:
        produced = [OutputProgress(*each) for each in self._produced.items() if each[1]]
        self._take(self.router.progress(now_s, produced))
        for name, engine in self.engines.items():
            stats = engine.stats()
            load = ReplicaLoad(
                running=stats.running, waiting=stats.waiting, kv_usage=stats.kv_usage, busy_s=stats.busy_s
            )
            self._take(
                self.router.replica_changed(now_s, ReplicaUpdate(replica=name, role=Role.MIXED, load=load))
            )

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        raise NotImplementedError

    def complete(self, request_id: str) -> None:
        """The last chunk says so."""

    def ready(self) -> Readiness:
        return Readiness(ok=True)

    def replicas(self) -> Sequence[Shown]:
        return []
