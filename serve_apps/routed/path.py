"""Requests where the Router puts them: prefill on its prefill replica, decode on its decode replica.

    placement   both phases on one mixed replica     D.decode(request)
                on two replicas, of whatever role    KV = P.prefill(request), then D.decode(request, KV)

An attempt that is lost before the first token asks for another place. A newer placement that comes meanwhile
(an offloaded prefill that takes too long) ends the attempt and is carried out in its stead; the client sees
none of it.
"""

import asyncio

from headway.routing.types import Placement
from serve_apps.engines.protocol import EngineRequest, TokenChunk
from serve_apps.feeds import Output
from serve_apps.gateway.backend import NotReady, OnPlaced
from serve_apps.membership import NO_REPLICA_S
from serve_apps.phases import ATTEMPTS, UNTAKEN_S, Phases
from serve_apps.routed.client import RouterClient
from serve_apps.routed.ticket import Ticket
from serve_apps.serve_call import Lost, Untaken


class Superseded(Exception):
    """Another placement has taken the place of the one that was carried out."""


class RoutedOutput:
    """An output whose progress the router hears of."""

    __slots__ = ("_output", "_ticket")

    def __init__(self, output: Output, ticket: Ticket) -> None:
        self._output = output
        self._ticket = ticket

    async def next(self) -> TokenChunk | None:
        """The next chunk, None at the end. Lost, or a BackendError."""
        chunk = await self._output.next()
        if chunk is None:
            self._ticket.complete()
        else:
            self._ticket.output_tokens += chunk.tokens
        return chunk

    def fail(self, error: Exception) -> None:
        """End it with this error."""
        self._output.fail(error)

    def close(self) -> None:
        """Abort it if it has not ended."""
        self._ticket.close()
        self._output.close()


class RoutedPath:
    """Carries out placements."""

    def __init__(self, client: RouterClient, phases: Phases) -> None:
        self._client, self._phases = client, phases

    async def first(
        self, request: EngineRequest, placed: OnPlaced | None
    ) -> tuple[RoutedOutput, TokenChunk | None]:
        """The output and its first chunk. BackendError."""
        assert request.route is not None, "only requests with a route are routed"
        await self._staffed()
        ticket = self._client.submit(request.route)
        try:
            output, chunk = await self._begun(ticket, request)
        except BaseException:
            ticket.close()
            raise
        ticket.first_token()
        ticket.output_tokens += 0 if chunk is None else chunk.tokens
        if placed is not None and ticket.placement is not None:
            placed(ticket.placement)
        return RoutedOutput(output, ticket), chunk

    async def _begun(self, ticket: Ticket, request: EngineRequest) -> tuple[Output, TokenChunk | None]:
        losses: list[Lost] = []
        while len(losses) < ATTEMPTS:
            placement = await ticket.placed()
            try:
                return await self._unless_superseded(ticket, placement, request)
            except Superseded:
                continue
            except Untaken:
                await asyncio.sleep(UNTAKEN_S)
            except Lost as loss:
                losses.append(loss)
            await self._staffed()
            ticket.again(placement)
        raise NotReady(f"{ATTEMPTS} attempts were lost, the last one so: {losses[-1]}") from losses[-1]

    async def _unless_superseded(
        self, ticket: Ticket, placement: Placement, request: EngineRequest
    ) -> tuple[Output, TokenChunk | None]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as attempt:
                ticket.watch(lambda: attempt.reschedule(loop.time()))
                return await self._attempt(ticket, request, placement)
        except TimeoutError:
            if not attempt.expired():
                raise
            raise Superseded from None
        except Lost:
            if ticket.placement is placement:
                raise
            raise Superseded from None
        finally:
            ticket.watch(None)

    async def _attempt(
        self, ticket: Ticket, request: EngineRequest, placement: Placement
    ) -> tuple[Output, TokenChunk | None]:
        kv = None
        if placement.split or not self._phases.mixed:
            kv = await self._phases.prefill(placement.prefill_replica, request)
            ticket.prefilled()
        return await self._phases.decode(placement.decode_replica, request, kv)

    async def _staffed(self) -> None:
        """Return when every pool has a replica. NotReady."""
        for role, pool in self._phases.pools.items():
            while not len(pool):
                try:
                    async with asyncio.timeout(NO_REPLICA_S):
                        await pool.change()
                except TimeoutError:
                    raise NotReady(f"no {role} replica is running") from None
