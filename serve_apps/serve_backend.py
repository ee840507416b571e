"""A request over the replicas of one application, from wherever it is placed to its last token.

    DirectPath   no route: both replicas are chosen here, by a profile that needs no common knowledge
    RoutedPath   carries out placements of the Router, which is first asked when needed
                     both phases on one mixed replica     D.decode(request)
                     on two replicas, of whatever role    KV = P.prefill(request), then D.decode(request, KV)
                 A newer placement that comes meanwhile (an offloaded prefill that takes too long) ends the
                 attempt and is carried out in its stead; the client sees none of it

A replica that dies before the first token has left costs an attempt, and the next begins with a new prefill,
since the KV may have died with it. Such a replica is suspect, so that the next attempt goes elsewhere: an
engine that failed answers its calls at once, and with the least load of all, until Serve replaces it.

While a pool has no replica, requests wait for one (`serve_apps.held`, NotReady). Where all of a
pool are saturated, they wait as long, in line (Overloaded). Nothing waits beyond the request's deadline
(TimedOut). Closing the generator cancels the call under way, wherever it is.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, cast
from uuid import uuid4

from ray.serve.handle import DeploymentHandle

from actors import names
from actors.names import NamedActor
from actors.routing_actors import needs_router, stateless_profile
from headway.config import HeadwayConfig
from headway.planning import Role
from headway.routing.shared_rules import SaturationRule
from headway.routing.types import Placement, ShedReason
from serve_apps.calls import Begun, Phases
from serve_apps.compat_serve import EngineLost, Lost, NotStarted
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, TokenChunk
from serve_apps.gateway.backend import (
    ChunkSink,
    NotReady,
    Overloaded,
    Readiness,
    ReplicaLoad,
    ReplicaLost,
    Step,
    TimedOut,
    Timeline,
)
from serve_apps.held import HeldRequests
from serve_apps.membership import Member, Profile, Saturated
from serve_apps.routed.client import ActorAddress, RouterClient, RouterConnection
from serve_apps.routed.metrics import RoutingCounts
from serve_apps.routed.requests import RequestState, RoutedRequest
from serve_apps.routed.table import WaitLimits
from serve_apps.silences import Silences

ATTEMPTS = 3
"""Replicas that one request may see die before its first token, once they have taken it."""

TELL_WITHIN_S = 2.0
"""Seconds for the planner to answer that it has heard how many requests wait."""

UNTAKEN_S = 0.01
"""Seconds before the next choice when the replica chosen was gone."""


async def begun(attempt: Callable[[], Awaitable[Begun]]) -> Begun:
    """What the first attempt brings that is not lost. NotReady after `ATTEMPTS` losses, or a BackendError."""
    losses = 0
    while True:
        try:
            return await attempt()
        except NotStarted:
            # A scale-down may take more replicas at once than there are attempts.
            await asyncio.sleep(UNTAKEN_S)
        except Lost as loss:
            losses += 1
            if losses == ATTEMPTS:
                raise NotReady(f"{ATTEMPTS} attempts were lost, the last one so: {loss}") from loss


class DirectPath:
    """Picks replicas by profile."""

    def __init__(self, phases: Phases, held: HeldRequests, profile: Profile, most_waiting: int) -> None:
        """`most_waiting` requests may wait for a pool that is saturated."""
        self._phases, self._held = phases, held
        self._profile, self._most_waiting = profile, most_waiting

    async def first(self, request: EngineRequest, timeline: Timeline) -> Begun:
        """The output and its first chunk. BackendError."""
        return await begun(partial(self._attempt, request, timeline))

    async def _attempt(self, request: EngineRequest, timeline: Timeline) -> Begun:
        phases, prefill_replica, kv = self._phases, None, None
        with timeline.step("route"):
            await self._held.staffed(*phases.pools)
        if not phases.mixed:
            with timeline.step("route"):
                # KV that no decode replica can take yet would only fill the prefill replica.
                await self._room(phases.decode_role)
                await self._room(phases.prefill_role)
                prefill_replica = await self._pick(phases.prefill_role, request.input_tokens)
            kv = await phases.prefill(prefill_replica, request, timeline)
        with timeline.step("route"):
            if phases.mixed:
                await self._room(phases.decode_role)
            decode_replica = await self._pick(phases.decode_role)
        timeline.placement = self._placement(
            request.request_id, prefill_replica or decode_replica, decode_replica
        )
        return await phases.decode(decode_replica, request, kv, timeline)

    async def auxiliary(self, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """What a replica that decodes says to it. BackendError."""
        return await self._phases.auxiliary(await self._pick(self._phases.decode_role), question)

    async def _room(self, role: Role) -> None:
        try:
            await self._phases.pools[role].room(role, self._phases.wait_s, self._most_waiting)
        except Saturated as error:
            raise Overloaded(f"{ShedReason.SATURATED}: {error}") from error

    async def _pick(self, role: Role, prompt_tokens: int = 0) -> str:
        while (replica := self._choice(role, prompt_tokens)) is None:
            await self._held.staffed(role)
        return replica

    def _choice(self, role: Role, prompt_tokens: int = 0) -> str | None:
        return self._phases.pools[role].pick(self._profile, time.monotonic(), role, prompt_tokens)

    def place(self, request_id: str, *, critical: bool) -> Placement:
        """A placement by this profile. NotReady when a pool has no replica.

        Overloaded where all replicas of one are saturated, but for a request that is critical.
        """
        for role, pool in self._phases.pools.items():
            if not critical and pool.saturated(time.monotonic(), role):
                raise Overloaded(f"{ShedReason.SATURATED}: every {role.value} replica is saturated")
        decode_replica = self._choice(self._phases.decode_role)
        prefill_replica = decode_replica if self._phases.mixed else self._choice(self._phases.prefill_role)
        if prefill_replica is None or decode_replica is None:
            raise NotReady("no replica is running")
        return self._placement(request_id, prefill_replica, decode_replica, reason="fallback")

    def _placement(
        self, request_id: str, prefill_replica: str, decode_replica: str, reason: str = ""
    ) -> Placement:
        return Placement(
            request_id=request_id,
            prefill_replica=prefill_replica,
            decode_replica=decode_replica,
            profile=self._profile,
            reason=reason or self._profile,
        )


class Superseded(Exception):
    """Another placement has taken the place of the one that was carried out."""


class RoutedPath:
    """Carries out placements."""

    def __init__(self, client: RouterClient, phases: Phases, held: HeldRequests) -> None:
        self._client, self._phases, self._held = client, phases, held
        self._queued = set[asyncio.Timeout]()
        for pool in phases.pools.values():
            pool.watch(self._end_queued)

    async def first(self, request: EngineRequest, timeline: Timeline) -> Begun:
        """The output and its first chunk. BackendError."""
        route = request.route
        assert route is not None, "only requests with a route are routed"
        step = timeline.step("route")
        if route.spills and not all(map(len, self._phases.pools.values())):
            raise NotReady("no replica is running, and another deployment takes the request")
        await self._held.staffed(*self._phases.pools)
        routed, lost = self._client.submit(route), False

        async def attempt() -> Begun:
            nonlocal lost, routed
            if lost:
                await self._held.staffed(*self._phases.pools)
                if routed.state is RequestState.ENDED:
                    routed = self._client.submit(route)
                else:
                    routed.again(timeline.placement)
            lost = True
            return await self._placed(routed, request, timeline, step)

        try:
            output, chunk = await begun(attempt)
        except BaseException:
            routed.close()
            raise
        routed.first_token()
        if chunk is not None:
            routed.counted(chunk)
        output.progress = routed
        return output, chunk

    async def _placed(
        self, routed: RoutedRequest, request: EngineRequest, timeline: Timeline, step: Step
    ) -> Begun:
        """An attempt at the newest placement. `step` is that of the first one, which has begun. Lost."""
        while True:
            with step if not step.ended_s else timeline.step("route"):
                placement = timeline.placement = await self._place(routed)
            try:
                return await self._unless_superseded(routed, placement, request, timeline)
            except Superseded:
                continue

    async def _place(self, routed: RoutedRequest) -> Placement:
        """Where it goes. NotStarted where a pool has become empty before that: it waits in no queue then, as
        only requests that are held wake a pool.
        """
        try:
            async with asyncio.timeout(None) as queued:
                self._queued.add(queued)
                return await routed.placed()
        except TimeoutError:
            routed.close()
            raise NotStarted("a pool has no replica any more") from None
        finally:
            self._queued.discard(queued)

    def _end_queued(self) -> None:
        if self._queued and not all(map(len, self._phases.pools.values())):
            queued, self._queued = self._queued, set()
            for each in queued:
                each.reschedule(asyncio.get_running_loop().time())

    async def _unless_superseded(
        self, routed: RoutedRequest, placement: Placement, request: EngineRequest, timeline: Timeline
    ) -> Begun:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as attempt:
                routed.watch(lambda: attempt.reschedule(loop.time()))
                return await self._attempt(routed, request, placement, timeline)
        except TimeoutError:
            if not attempt.expired():
                raise
            raise Superseded from None
        except Lost:
            if routed.placement is placement:
                raise
            raise Superseded from None
        finally:
            routed.watch(None)

    async def _attempt(
        self, routed: RoutedRequest, request: EngineRequest, placement: Placement, timeline: Timeline
    ) -> Begun:
        kv = None
        divisible = request.call is None or request.call.divisible
        if (placement.split and divisible) or not self._phases.mixed:
            kv = await self._phases.prefill(placement.prefill_replica, request, timeline)
            routed.prefilled()
        return await self._phases.decode(placement.decode_replica, request, kv, timeline)


TOTALS = ("prompt_tokens", "cached_tokens", "external_tokens", "preemptions", "output_tokens")
"""Of `EngineStats`, handed on as they are."""

T = TypeVar("T")


class ServeBackend:
    """Runs requests on the replicas of one application. Made and used on one event loop."""

    def __init__(
        self,
        config: HeadwayConfig,
        handles: Mapping[Role, DeploymentHandle[Any]],
        link: RouterConnection | None = None,
    ) -> None:
        """`link` is for tests; without it the Router actor is called."""
        self._config, self._link = config, link
        self._application = next(iter(handles.values())).app_name
        self._timeout_s, self._began_s = config.gateway.request_timeout_s, time.monotonic()
        queue = config.routing.queue
        self._phases = Phases(handles, queue.max_wait_s)
        for pool in self._phases.pools.values():
            pool.rule = SaturationRule.of(config)
        self._may_be_empty = [role for role in handles if config.pools[role.value].min_replicas == 0]
        planner = NamedActor(names.PLANNER, application=self._application)
        tell = partial(planner.call, "held", uuid4().hex, timeout_s=TELL_WITHIN_S)
        self._held = HeldRequests(
            self._phases.pools, queue.max_wait_s, self._may_be_empty, config.gateway.start_wait_s, tell
        )
        self._direct = DirectPath(
            self._phases, self._held, cast("Profile", stateless_profile(config)), queue.max_requests
        )
        phases = self._phases
        self.silences = Silences(
            {phases.names[role]: (role, pool) for role, pool in phases.pools.items()},
            phases.received,
            phases.progress,
            config.engine.silent_after_s,
        )
        """For the gateway to run."""
        self._client: RouterClient | None = None
        self._routed: RoutedPath | None = None
        if needs_router(config):
            self._router_path()

    def ready(self) -> Readiness:
        """Ok while every pool has a running replica, or may be without, once the router that is to place
        requests has answered.

        One that never does is not waited for longer than a request would be.
        """
        pools = self._phases.pools.items()
        empty = [role for role, pool in pools if not len(pool)]
        if missing := [role.value for role in empty if role not in self._may_be_empty]:
            return Readiness(ok=False, reason=f"no running replica: {', '.join(missing)}")
        waited_s = time.monotonic() - self._began_s
        if self._client is not None and not self._client.met and waited_s < self._phases.wait_s:
            return Readiness(ok=False, reason="the router has not answered yet")
        if not empty:
            return Readiness(ok=True)
        return Readiness(ok=True, empty=self._held.state, serves_in_s=self._held.serves_in_s)

    def replicas(self) -> Sequence[ReplicaLoad]:
        """The running replicas and what they last said of themselves."""
        return [_load(role, member) for role, pool in self._phases.pools.items() for member in pool.members]

    def routing(self) -> RoutingCounts:
        """Counts of what was routed."""
        return RoutingCounts() if self._client is None else self._client.counts

    def end_held(self, why: str) -> None:
        """End requests that wait for a replica, as none comes any more."""
        self._held.end(why)

    async def close(self) -> None:
        """Stop talking to the router and to replicas."""
        if self._client is not None:
            await self._client.close()
        self._held.close()
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
                self._link or RouterConnection(ActorAddress(self._config, self._application)),
                self._phases.pools,
                lambda request: self._direct.place(request.request_id, critical=request.critical),
                WaitLimits(
                    call_timeout_s=routing.call_timeout_ms / 1e3,
                    max_wait_s=routing.queue.max_wait_s,
                    most_waiting=routing.queue.max_requests,
                ),
                ask_blocks=self._phases.known_blocks,
            )
            self._routed = RoutedPath(self._client, self._phases, self._held)
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
