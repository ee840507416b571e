"""A gateway's client over a router in this process that can be slow, stall, die and come back."""

import asyncio
from collections.abc import Coroutine
from math import inf
from typing import Any

from actors.routing.gateway_sessions import GatewaySessions
from actors.routing.messages import Batch, BatchAnswer, Messages
from headway.planning import Role
from headway.routing import Placement, RouteRequest
from serve_apps.gateway.backend import NotReady, Overloaded
from serve_apps.membership import Membership
from serve_apps.routed.client import RouterClient, Unreachable
from serve_apps.routed.replicas import AskBlocks
from serve_apps.routed.table import WaitLimits
from tests.actors.router_cases import sessions
from tests.engines.virtual_loop import run
from tests.scenarios import scenarios

CALL_S = 0.01
"""What a call takes, there and back."""


class Line:
    """The link, and the router at its end."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self.batches: list[Batch] = []
        self.dead = False
        self._moving = asyncio.Event()
        self._moving.set()
        self._died = asyncio.Event()
        self._begin()

    def _begin(self) -> None:
        self.sessions: GatewaySessions = sessions(**self._settings)
        self._later: asyncio.Queue[Messages] = asyncio.Queue()

    def stall(self) -> None:
        self._moving.clear()

    def resume(self) -> None:
        self._moving.set()

    def die(self) -> None:
        """Calls under way are lost, and so is every other until it is back."""
        self.dead = True
        died, self._died = self._died, asyncio.Event()
        died.set()

    def come_back(self) -> None:
        """It knows nothing."""
        self.die()
        self.dead = False
        self._begin()

    async def exchange(self, gateway: str, batch: Batch) -> BatchAnswer:
        return await self._call(self._exchange(gateway, batch))

    async def collect(self) -> Messages:
        return await self._call(self._later.get())

    def close(self) -> None:
        pass

    def deliver(self) -> None:
        """Send what has become of requests."""
        for name in self.sessions.gateways.with_messages():
            self._later.put_nowait(self.sessions.gateways.take(name))

    async def _exchange(self, gateway: str, batch: Batch) -> BatchAnswer:
        await asyncio.sleep(CALL_S / 2)
        await self._moving.wait()
        self.batches.append(batch)
        answer = self.sessions.exchange(asyncio.get_running_loop().time(), gateway, batch)
        self.deliver()
        await asyncio.sleep(CALL_S / 2)
        return answer

    async def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        if self.dead:
            work.close()
            raise Unreachable("dead")
        call, death = asyncio.ensure_future(work), asyncio.ensure_future(self._died.wait())
        try:
            await asyncio.wait({call, death}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise Unreachable("died")
            return call.result()
        finally:
            call.cancel()
            death.cancel()


class Gateway:
    """A client, and its pool of mixed replicas.

    Without the router there is room for `room` requests, and for critical ones.
    """

    def __init__(
        self, line: Line, *replicas: str, ask_blocks: AskBlocks | None = None, **patience: float
    ) -> None:
        self.line, self.pool = line, Membership()
        self.pool.update((replica, {}) for replica in replicas)
        self.room = inf
        self.client = RouterClient(
            line,
            {Role.MIXED: self.pool},
            self._fall_back,
            WaitLimits(**patience),
            ask_blocks=ask_blocks,
            clock=asyncio.get_running_loop().time,
        )

    def _fall_back(self, request: RouteRequest) -> Placement:
        if self.room < 1.0 and not request.critical:
            raise Overloaded("saturated: every mixed replica is saturated")
        replica = self.pool.pick("least_load", asyncio.get_running_loop().time())
        if replica is None:
            raise NotReady("no replica is running")
        self.room -= 1.0
        return Placement(
            request_id=request.request_id,
            prefill_replica=replica,
            decode_replica=replica,
            profile="least_load",
            reason="fallback",
        )


def play(scenario: Any, *replicas: str, settings: dict[str, Any] | None = None, **patience: float) -> None:
    """Run a scenario of a gateway and its line in no time."""

    async def played() -> None:
        gateway = Gateway(Line(**(settings or {})), *replicas, **patience)
        try:
            await scenario(gateway, gateway.line)
        finally:
            await gateway.client.close()

    run(played())


at_gateway = scenarios(play)
