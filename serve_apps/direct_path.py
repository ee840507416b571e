"""Requests without a router: both replicas are picked here, by a profile that needs no common knowledge.

A replica that dies before the first token has left costs an attempt, and the next begins with a new prefill,
since the KV may have died with it. Routers of Serve can't make this choice: the feed of a decoding replica
must be open (`serve_apps.feeds`), and who is suspect is known here.
"""

import asyncio
import time

from headway.routing.types import Placement
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.feeds import Output
from serve_apps.gateway.backend import NotReady, OnPlaced
from serve_apps.membership import NO_REPLICA_S, Membership, Profile
from serve_apps.phases import ATTEMPTS, UNTAKEN_S, Phases
from serve_apps.serve_call import Lost, Untaken


class DirectPath:
    """Picks replicas by profile."""

    def __init__(self, phases: Phases, profile: Profile) -> None:
        self._phases = phases
        self._profile: Profile = profile

    async def first(
        self, request: EngineRequest, placed: OnPlaced | None
    ) -> tuple[Output, TokenChunk | None]:
        """The output and its first chunk. BackendError."""
        losses: list[Lost] = []
        while len(losses) < ATTEMPTS:
            try:
                return await self._attempt(request, placed)
            except Untaken:
                # A scale-down may take more replicas at once than there are attempts.
                await asyncio.sleep(UNTAKEN_S)
            except Lost as loss:
                losses.append(loss)
        raise NotReady(f"{ATTEMPTS} attempts were lost, the last one so: {losses[-1]}") from losses[-1]

    async def _attempt(
        self, request: EngineRequest, placed: OnPlaced | None
    ) -> tuple[Output, TokenChunk | None]:
        phases, computer, kv = self._phases, None, None
        if not phases.mixed:
            computer = await self._pick(phases.computers, "prefilling")
            kv = await phases.prefill(computer, request)
        decoder = await self._pick(phases.decoders, "decoding")
        begun = await phases.decode(decoder, request, kv)
        if placed is not None:
            placed(self._placement(request.request_id, computer or decoder, decoder))
        return begun

    async def _pick(self, pool: Membership, doing: str) -> str:
        while (replica := pool.pick(self._profile, time.monotonic())) is None:
            try:
                async with asyncio.timeout(NO_REPLICA_S):
                    await pool.change()
            except TimeoutError:
                raise NotReady(f"no {doing} replica is running") from None
        return replica

    def place(self, request_id: str) -> Placement | None:
        """A placement by this profile; None when a pool has no replica."""
        now_s, phases = time.monotonic(), self._phases
        decoder = phases.decoders.pick(self._profile, now_s)
        computer = decoder if phases.mixed else phases.computers.pick(self._profile, now_s)
        if computer is None or decoder is None:
            return None
        return self._placement(request_id, computer, decoder, reason="fallback")

    def _placement(self, request_id: str, computer: str, decoder: str, reason: str = "") -> Placement:
        return Placement(
            request_id=request_id,
            prefill_replica=computer,
            decode_replica=decoder,
            profile=self._profile,
            reason=reason or self._profile,
        )
