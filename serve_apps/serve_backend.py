"""A request over Serve handles, from wherever it is placed to its last token.

    no route     the gateway places it by itself                    `serve_apps.paths`
    with route   the Router actor does, first asked when needed     `serve_apps.paths`

A replica that dies before the first token has left costs an attempt. After the first token the stream ends
with ReplicaLost. Nothing waits beyond the request's deadline (TimedOut), nor for a replica to exist at all
longer than `routing.queue.max_wait_s` (NotReady). Closing the generator cancels the call under way, wherever
it is.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from ray.serve.handle import DeploymentHandle

from actors.routing_actors import needs_router, stateless_profile
from headway.config import HeadwayConfig
from headway.planning import Role
from headway.routing.shared_rules import SaturationRule
from serve_apps.calls import EngineLost, Lost
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, TokenChunk
from serve_apps.gateway.backend import ChunkSink, Readiness, ReplicaLoad, ReplicaLost, TimedOut, Timeline
from serve_apps.membership import Member, Profile
from serve_apps.paths import DirectPath, Phases, RoutedPath
from serve_apps.routed.client import ActorAddress, RouterClient, RouterConnection, RouterLink
from serve_apps.routed.metrics import RoutingCounts
from serve_apps.routed.table import WaitLimits

TOTALS = ("prompt_tokens", "cached_tokens", "external_tokens", "preemptions", "output_tokens")
"""Of `EngineStats`, handed on as they are."""

T = TypeVar("T")


class ServeBackend:
    """Runs requests on the replicas of one application. Made and used on one event loop."""

    def __init__(
        self,
        config: HeadwayConfig,
        handles: Mapping[Role, DeploymentHandle[Any]],
        link: RouterLink | None = None,
    ) -> None:
        """`link` is for tests; without it the Router actor is called."""
        self._config, self._link = config, link
        self._timeout_s, self._began_s = config.gateway.request_timeout_s, time.monotonic()
        queue = config.routing.queue
        self._phases = Phases(handles, queue.max_wait_s)
        for pool in self._phases.pools.values():
            pool.rule = SaturationRule.of(config)
        self._direct = DirectPath(
            self._phases, cast("Profile", stateless_profile(config)), queue.max_requests
        )
        self._client: RouterClient | None = None
        self._routed: RoutedPath | None = None
        if needs_router(config):
            self._router_path()

    def ready(self) -> Readiness:
        """Ok while every pool has a running replica, once the router that is to place requests has answered.

        One that never does is not waited for longer than a request would be.
        """
        missing = [role.value for role, pool in self._phases.pools.items() if not len(pool)]
        if missing:
            return Readiness(ok=False, reason=f"no running replica: {', '.join(missing)}")
        waited_s = time.monotonic() - self._began_s
        if self._client is not None and not self._client.met and waited_s < self._phases.wait_s:
            return Readiness(ok=False, reason="the router has not answered yet")
        return Readiness(ok=True)

    def replicas(self) -> Sequence[ReplicaLoad]:
        """The running replicas and what they last said of themselves."""
        return [_load(role, member) for role, pool in self._phases.pools.items() for member in pool.members]

    def routing(self) -> RoutingCounts:
        """Counts of what was routed."""
        return RoutingCounts() if self._client is None else self._client.counts

    async def close(self) -> None:
        """Stop talking to the router and to replicas."""
        if self._client is not None:
            await self._client.close()
        await self._phases.close()

    async def generate(
        self, request: EngineRequest, timeline: Timeline | None = None, sink: ChunkSink | None = None
    ) -> AsyncGenerator[TokenChunk, None]:
        """The output. Closing it aborts the request wherever it is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        path: DirectPath | RoutedPath = self._direct if request.route is None else self._router_path()
        output, chunk = await self._within(deadline, path.first(request, timeline or Timeline()))
        if sink is not None:
            output.set_sink(sink)
        expiry = loop.call_at(deadline, output.fail, _timed_out())
        try:
            while chunk is not None:
                yield chunk
                chunk = await output.next()
        except EngineLost as loss:
            raise ReplicaLost(f"after the first token {loss}") from loss
        except Lost as loss:
            raise ReplicaLost(f"the replica was lost after the first token: {loss}") from loss
        finally:
            expiry.cancel()
            output.close()

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """What a replica that decodes says to it. BackendError."""
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        return await self._within(deadline, self._direct.auxiliary(question))

    def complete(self, request_id: str) -> None:
        """Count it as completed, with the tokens that came, where it was routed."""
        if self._client is not None:
            self._client.complete(request_id)

    async def _within(self, deadline: float, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout_at(deadline):
                return await work
        except TimeoutError:
            raise _timed_out() from None

    def _router_path(self) -> RoutedPath:
        """The way over the router, which is first spoken to when the first request needs it."""
        if self._routed is None:
            routing = self._config.routing
            self._client = RouterClient(
                self._link or RouterConnection(ActorAddress(self._config)),
                self._phases.pools,
                lambda request: self._direct.place(request.request_id, critical=request.critical),
                WaitLimits(
                    call_timeout_s=routing.call_timeout_ms / 1e3,
                    max_wait_s=routing.queue.max_wait_s,
                    most_waiting=routing.queue.max_requests,
                ),
                ask_blocks=self._phases.known_blocks,
            )
            self._routed = RoutedPath(self._client, self._phases)
        return self._routed


def _timed_out() -> TimedOut:
    return TimedOut("the request's time is over")


def _load(role: Role, member: Member) -> ReplicaLoad:
    stats = member.stats
    return ReplicaLoad(
        role=role,
        replica=member.replica,
        running=int(stats.get("running", 0)),
        waiting=int(stats.get("waiting", 0)),
        kv_usage=float(stats.get("kv_usage", 0.0)),
        **{name: int(stats.get(name, 0)) for name in TOTALS},
    )
