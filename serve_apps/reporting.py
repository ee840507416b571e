"""A replica tells the Interpolator what it saw of its own latencies, every few seconds.

Straight to the actor and not with the load that routers read: what is learnt must not depend on where metrics
come from, and nothing has to be kept on the way. A report that gets lost is a report less.
"""

import asyncio
import logging

from actors import names
from actors.calling import CallError, NamedActor
from headway.profiling.metering import LatencyMeter

TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class Reporter:
    """Sends a meter's reports from the first request on; without requests there is nothing to say."""

    def __init__(self, meter: LatencyMeter, period_s: float, actor: NamedActor | None = None) -> None:
        self._meter, self._period_s = meter, period_s
        self._actor = actor or NamedActor(names.INTERPOLATOR)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, unless it has begun; on the event loop of the engine."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            if seen := self._meter.take():
                await self._send(seen)

    async def _send(self, seen: tuple[object, ...]) -> None:
        try:
            await self._actor.call("learn", seen, timeout_s=TIMEOUT_S)
        except CallError as error:
            logger.debug("a report is lost: %s", error)
        except Exception:
            logger.exception("the Interpolator failed on a report")
