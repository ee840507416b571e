"""Every connector with the other side that it talks to, made anew for each test.

A connector passes the suite by an entry in `WORLDS`: a function that returns an asynchronous context manager
of a `World`. The pools are prefill and decode with a minimum of 1 each, and stand at it when a world begins.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from actors.connectors.protocol import Connector
from actors.names import ActorGone
from actors.virtual_connector import VirtualConnectorCoordinator
from actors.virtual_connector.connector import VirtualConnector
from headway.config import HeadwayConfig
from tests.kubernetes.worlds import dynamo, kuberay, scale
from tests.stores import MemoryStore


class World(Protocol):
    """A connector and its other side."""

    connector: Connector

    async def carry_out(self) -> None:
        """The other side does what it was last asked for; it may return before that is seen in `state`."""

    async def go_away(self) -> None:
        """From now on the other side does not answer."""


class LocalActor:
    """An actor's object, called as if it were far away."""

    def __init__(self, target: object) -> None:
        self._target: object | None = target

    async def call(self, method: str, *args: object, timeout_s: float) -> Any:
        if self._target is None:
            raise ActorGone("the coordinator is not there")
        return await getattr(self._target, method)(*args)

    def end(self) -> None:
        self._target = None


class VirtualWorld:
    """The virtual connector, its coordinator in the same process, and an orchestrator that obeys."""

    def __init__(self, kind: str = "simulated") -> None:
        config = HeadwayConfig.model_validate({"engine": {"kind": kind}})
        self._coordinator = VirtualConnectorCoordinator(config.model_dump_json(), MemoryStore())
        self._actor = LocalActor(self._coordinator)
        self.connector: Connector = VirtualConnector(config, self._actor)

    async def carry_out(self) -> None:
        while (decision := await self._coordinator.next(None, 0.0)) is not None:
            await self._coordinator.complete(decision["decision_id"])
            await self.told(decision["targets"])

    async def told(self, counts: Mapping[str, int]) -> None:
        """It need not report what there is."""

    async def go_away(self) -> None:
        self._actor.end()


class ReportingWorld(VirtualWorld):
    """The same to a fleet that others started, whose orchestrator reports what there is."""

    def __init__(self) -> None:
        super().__init__("external")

    async def told(self, counts: Mapping[str, int]) -> None:
        await self._coordinator.report({name: {"ready": count} for name, count in counts.items()})


@asynccontextmanager
async def virtual() -> AsyncIterator[World]:
    yield VirtualWorld()


@asynccontextmanager
async def reported() -> AsyncIterator[World]:
    world = ReportingWorld()
    await world.told({"prefill": 1, "decode": 1})
    yield world


WORLDS: Mapping[str, Callable[[], AbstractAsyncContextManager[World]]] = {
    "virtual": virtual,
    "virtual (reported)": reported,
    "kubernetes (dynamo)": dynamo,
    "kubernetes (kuberay)": kuberay,
    "kubernetes (scale)": scale,
}
