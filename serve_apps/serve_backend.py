"""A request over Serve handles: prefill call -> decode stream, or one stream of a mixed replica.

    attempt:   KV = Prefill.prefill(request)                       (disaggregated only)
               chunks = Decode.decode_into_feed(request, KV)

Both replicas are picked here: the feed of a decoding one must be open (`serve_apps.feeds`), and one that
costs an attempt is suspect, so that the next goes elsewhere. Routers can't know that: an engine that failed
answers their calls, at once and with the least load of all, until Serve replaces it.

A replica that dies before the first token has left costs an attempt, and the next begins with a new
prefill, since the KV may have died with it. After the first token the stream ends with ReplicaLost. Nothing
waits beyond the request's deadline (TimedOut), nor for a replica to exist at all longer than routers do
(NotReady). Whoever closes the generator cancels the call under way, wherever it is.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ray.serve.handle import DeploymentHandle

from headway.config import HeadwayConfig
from headway.planning import Role
from serve_apps.engines.protocol import EngineRequest, KvHandle, TokenChunk
from serve_apps.feeds import Feeds, Output
from serve_apps.gateway.backend import NotReady, Readiness, ReplicaLoad, ReplicaLost, TimedOut
from serve_apps.membership import NO_REPLICA_S, Member, Membership, membership
from serve_apps.serve_call import Lost, Untaken, ask, lean

T = TypeVar("T")

ATTEMPTS = 3
"""Replicas that one request may see die before its first token, once they have taken it."""

UNTAKEN_S = 0.01
"""Seconds before the next choice when the replica chosen was gone."""


class ServeBackend:
    """Runs requests on the replicas of one application. Made and used on one event loop."""

    def __init__(self, config: HeadwayConfig, handles: Mapping[Role, DeploymentHandle[Any]]) -> None:
        self._timeout_s = config.gateway.request_timeout_s
        self._pools = {
            role: membership(handle.app_name, handle.deployment_name) for role, handle in handles.items()
        }
        self._profile = config.routing.profile
        decoding = Role.MIXED if Role.MIXED in handles else Role.DECODE
        self._decoders = self._pools[decoding]
        self._feeds = Feeds(handles[decoding], self._decoders)
        prefill = handles.get(Role.PREFILL)
        self._prefill = lean(prefill, "prefill") if prefill else None

    def ready(self) -> Readiness:
        """Whether every pool has a running replica."""
        missing = [role.value for role, pool in self._pools.items() if not len(pool)]
        return Readiness(
            ok=not missing, reason=f"no running replica: {', '.join(missing)}" if missing else ""
        )

    def replicas(self) -> Sequence[ReplicaLoad]:
        """The running replicas and what they last said of themselves."""
        return [_load(role, member) for role, pool in self._pools.items() for member in pool.members]

    async def generate(self, request: EngineRequest) -> AsyncGenerator[TokenChunk, None]:
        """The output. Closing it aborts the request wherever it is."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        output, chunk = await self._within(deadline, self._first(request))
        expiry = loop.call_at(deadline, output.fail, _timed_out())
        try:
            while chunk is not None:
                yield chunk
                chunk = await output.next()
        except Lost as loss:
            raise ReplicaLost(f"the replica was lost after the first token: {loss}") from loss
        finally:
            expiry.cancel()
            output.close()

    async def _within(self, deadline: float, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout_at(deadline):
                return await work
        except TimeoutError:
            raise _timed_out() from None

    async def _first(self, request: EngineRequest) -> tuple[Output, TokenChunk | None]:
        losses: list[Lost] = []
        while len(losses) < ATTEMPTS:
            try:
                return await self._attempt(request)
            except Untaken:
                # A scale-down may take more replicas at once than there are attempts.
                await asyncio.sleep(UNTAKEN_S)
            except Lost as loss:
                losses.append(loss)
        raise NotReady(f"{ATTEMPTS} attempts were lost, the last one so: {losses[-1]}") from losses[-1]

    async def _attempt(self, request: EngineRequest) -> tuple[Output, TokenChunk | None]:
        kv = await self._prefilled(self._prefill, request) if self._prefill else None
        replica = await self._pick(self._decoders, "decoding")
        output = self._feeds.start(replica, request, kv)
        started = False
        try:
            chunk = await output.next()
            started = True
            return output, chunk
        except Lost:
            self._decoders.suspect(replica, time.monotonic())
            raise
        finally:
            if not started:
                output.close()

    async def _prefilled(self, handle: DeploymentHandle[Any], request: EngineRequest) -> KvHandle:
        pool = self._pools[Role.PREFILL]
        replica = await self._pick(pool, "prefilling")
        pool.sent(replica, request.request_id)
        try:
            kv: KvHandle = await ask(handle.options(session_id=replica), request)
            return kv
        except Lost:
            pool.suspect(replica, time.monotonic())
            raise
        finally:
            pool.done(replica, request.request_id)

    async def _pick(self, pool: Membership, doing: str) -> str:
        while (replica := pool.pick(self._profile, time.monotonic())) is None:
            try:
                async with asyncio.timeout(NO_REPLICA_S):
                    await pool.change()
            except TimeoutError:
                raise NotReady(f"no {doing} replica is running") from None
        return replica


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
    )
