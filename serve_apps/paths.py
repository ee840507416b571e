"""The paths of a request to its output: placed by the gateway itself, or by the Router.

    Phases       kv            = prefill(replica, request)
                 output, chunk = decode(replica, request, kv)      the first chunk shows that it has begun
    DirectPath   both replicas are chosen here, by a profile that needs no common knowledge
    RoutedPath   carries out placements of the Router
                     both phases on one mixed replica     D.decode(request)
                     on two replicas, of whatever role    KV = P.prefill(request), then D.decode(request, KV)
                 A newer placement that comes meanwhile (an offloaded prefill that takes too long) ends the
                 attempt and is carried out in its stead; the client sees none of it

A replica that dies before the first token has left costs an attempt, and the next begins with a new prefill,
since the KV may have died with it. Such a replica is suspect, so that the next attempt goes elsewhere: an
engine that failed answers its calls at once, and with the least load of all, until Serve replaces it.

While a pool has no replica, as when its only one is started anew, requests wait for one: as long as the
Router would hold them, or until their deadline. Where all replicas of a pool are saturated, requests wait as
long, in line, and are turned away then (Overloaded).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from ray.serve.handle import DeploymentHandle

from headway.planning import Role
from headway.routing.types import KnownBlocks, Placement, ShedReason
from serve_apps.calls import ConnectionPool, Lost, NotStarted, Output
from serve_apps.engines.protocol import AuxiliaryAnswer, AuxiliaryCall, EngineRequest, KvHandle, TokenChunk
from serve_apps.gateway.backend import NotReady, Overloaded, Step, Timeline
from serve_apps.membership import Profile, Saturated, membership
from serve_apps.routed.client import RouterClient
from serve_apps.routed.requests import RoutedRequest

ATTEMPTS = 3
"""Replicas that one request may see die before its first token, once they have taken it."""

UNTAKEN_S = 0.01
"""Seconds before the next choice when the replica chosen was gone."""

Begun = tuple[Output, TokenChunk | None]
"""An output and its first chunk, None where it has none."""


class Phases:
    """The pools of one application. Made and used on one event loop."""

    def __init__(self, handles: Mapping[Role, DeploymentHandle[Any]], wait_s: float) -> None:
        """`wait_s`: how long a request waits for the first replica of a pool that has none."""
        self.wait_s = wait_s
        self.pools = {
            role: membership(handle.app_name, handle.deployment_name) for role, handle in handles.items()
        }
        self.mixed = Role.MIXED in handles
        """True if the replicas do both phases."""
        self.prefill_role, self.decode_role = (
            (Role.MIXED, Role.MIXED) if self.mixed else (Role.PREFILL, Role.DECODE)
        )
        self._connections = {
            role: ConnectionPool(handle, self.pools[role]) for role, handle in handles.items()
        }

    async def staffed(self, *roles: Role) -> None:
        """Return when these pools have a replica each. NotReady."""
        for role in roles:
            pool = self.pools[role]
            try:
                async with asyncio.timeout(self.wait_s):
                    while not len(pool):
                        await pool.change()
            except TimeoutError:
                raise NotReady(f"no {role.value} replica has been running for {self.wait_s:g} s") from None

    async def close(self) -> None:
        """Let go of all replicas."""
        for each in self._connections.values():
            await each.close()

    async def prefill(self, replica: str, request: EngineRequest, timeline: Timeline) -> KvHandle:
        """Compute the prompt there. Lost, or a BackendError."""
        pool, connections = self.pools[self.prefill_role], self._connections[self.prefill_role]
        pool.sent(replica, request.request_id, request.input_tokens)
        try:
            with timeline.step("prefill", replica) as step:
                kv: KvHandle = await connections.call(replica, "prefill", step.traced(request))
                step.times = kv.times
                return kv
        except Lost:
            pool.suspect(replica, time.monotonic())
            raise
        finally:
            pool.done(replica, request.request_id)

    async def known_blocks(self, role: Role, replica: str, since: int | None) -> KnownBlocks | None:
        """What that replica's prefix cache holds, or what changed. Lost, or a BackendError."""
        said: KnownBlocks | None = await self._connections[role].call(replica, "known_blocks", since)
        return said

    async def auxiliary(self, replica: str, question: AuxiliaryCall) -> AuxiliaryAnswer:
        """What that replica says to it. Lost, or a BackendError."""
        answer: AuxiliaryAnswer = await self._connections[self.decode_role].call(
            replica, "auxiliary", question
        )
        return answer

    async def decode(
        self, replica: str, request: EngineRequest, kv: KvHandle | None, timeline: Timeline
    ) -> Begun:
        """Begin to decode there; the output and its first chunk. Lost, or a BackendError."""
        pool, output = self.pools[self.decode_role], None
        pool.sent(replica, request.request_id)
        step = timeline.step("decode", replica)
        try:
            connections = self._connections[self.decode_role]
            output = await connections.start(replica, "decode", step.traced(request), kv)
            chunk = await output.next()
        except BaseException as error:
            step.failed(error)
            if isinstance(error, Lost):
                pool.suspect(replica, time.monotonic())
            if output is not None:
                output.close()
            pool.done(replica, request.request_id)
            raise
        output.closed = partial(pool.done, replica, request.request_id)
        return output, chunk


async def begun(attempt: Callable[[], Awaitable[Begun]]) -> Begun:
    """What the first attempt brings that is not lost. NotReady after `ATTEMPTS` losses, or a BackendError."""
    losses: list[Lost] = []
    while len(losses) < ATTEMPTS:
        try:
            return await attempt()
        except NotStarted:
            # A scale-down may take more replicas at once than there are attempts.
            await asyncio.sleep(UNTAKEN_S)
        except Lost as loss:
            losses.append(loss)
    raise NotReady(f"{ATTEMPTS} attempts were lost, the last one so: {losses[-1]}") from losses[-1]


class DirectPath:
    """Picks replicas by profile."""

    def __init__(self, phases: Phases, profile: Profile, most_waiting: int) -> None:
        """`most_waiting` requests may wait for a pool that is saturated."""
        self._phases, self._most_waiting = phases, most_waiting
        self._profile: Profile = profile

    async def first(self, request: EngineRequest, timeline: Timeline) -> Begun:
        """The output and its first chunk. BackendError."""
        return await begun(partial(self._attempt, request, timeline))

    async def _attempt(self, request: EngineRequest, timeline: Timeline) -> Begun:
        phases, prefill_replica, kv = self._phases, None, None
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
            await self._phases.staffed(role)
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

    def __init__(self, client: RouterClient, phases: Phases) -> None:
        self._client, self._phases = client, phases

    async def first(self, request: EngineRequest, timeline: Timeline) -> Begun:
        """The output and its first chunk. BackendError."""
        assert request.route is not None, "only requests with a route are routed"
        step = timeline.step("route")
        await self._phases.staffed(*self._phases.pools)
        routed, lost = self._client.submit(request.route), False

        async def attempt() -> Begun:
            nonlocal lost
            if lost:
                await self._phases.staffed(*self._phases.pools)
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
                placement = timeline.placement = await routed.placed()
            try:
                return await self._unless_superseded(routed, placement, request, timeline)
            except Superseded:
                continue

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
