"""Looks for requests that wait in front of engines that others run, while none runs (`metrics.wake`).

What our own gateway holds it tells by itself (`serve_apps.held`); another router only shows it.
"""

import asyncio
import logging
from math import ceil

from actors.planning.context import ActorFailure, ControlActors
from actors.planning.loop import PlannerLoop

LOOK_S, ANSWER_WITHIN_S = 2.0, 2.0
"""Between two looks; a word of what waits counts for a second longer (`HELD_S`)."""
ROUTER = "router"

logger = logging.getLogger(__name__)


class WakeWatch:
    """Tells the loop of them, until cancelled."""

    def __init__(self, actors: ControlActors, loop: PlannerLoop) -> None:
        self._actors, self._loop = actors, loop

    async def run(self) -> None:
        """Look every LOOK_S."""
        while True:
            await asyncio.sleep(LOOK_S)
            if all(pool.ready for pool in self._loop.state.counts.values()):
                continue
            try:
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    waiting = await self._actors.waiting()
            except (ActorFailure, TimeoutError) as error:
                # `ControlActors.health` shows it.
                logger.info("what waits for the engines does not show: %s", error)
            except Exception:
                logger.exception("what waits for the engines cannot be looked at")
            else:
                if waiting > 0.0:
                    self._loop.held(ROUTER, ceil(waiting))
