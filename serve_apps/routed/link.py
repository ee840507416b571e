"""Calls of the Router actor over Ray; it is found by its name, and made when it never was there.

The control plane makes it where every request needs it. Where only some ask for it by header, the first of
these does: later the actor is looked up only, since whoever ended it meant to.
"""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError

from actors import names
from actors.routing.messages import Answer, Batch, Letters
from actors.routing.starting import start_routing
from headway.config import HeadwayConfig
from serve_apps.routed.client import Unreachable


class ActorLink:
    """The router of one model, on one event loop."""

    def __init__(self, config: HeadwayConfig) -> None:
        self._config = config
        self._handle: Any = None
        self._found = False

    async def exchange(self, gateway: str, batch: Batch) -> Answer:
        """Events there, answers back."""
        actor = await self._actor()
        answer: Answer = await self._call(actor.exchange, gateway, batch)
        return answer

    async def collect(self, gateway: str) -> Letters:
        """What followed later."""
        actor = await self._actor()
        letters: Letters = await self._call(actor.collect, gateway)
        return letters

    async def _call(self, method: Any, *arguments: object) -> Any:  # noqa: ANN401 - of the method
        try:
            return await method.remote(*arguments)
        except (RayError, ConnectionError) as error:
            self._handle = None
            lines = str(error).strip().splitlines()
            raise Unreachable(lines[0] if lines else type(error).__name__) from error

    async def _actor(self) -> Any:  # noqa: ANN401 - an actor handle
        if self._handle is None:
            try:
                self._handle = await asyncio.to_thread(self._look_up)
            except (RayError, ConnectionError, ValueError) as error:
                raise Unreachable(f"there is no {names.router(self._config.model)}") from error
        return self._handle

    def _look_up(self) -> Any:  # noqa: ANN401
        try:
            actor = ray.get_actor(names.router(self._config.model), namespace=names.NAMESPACE)
        except ValueError:
            if self._found:
                raise
            actor = start_routing(self._config)
        self._found = True
        return actor
