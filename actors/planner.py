"""The actor that plans: the loop of `actors.planning`, its calls, and its return after a crash.

The store has `planner/started` while the loop shall run: `start` writes it, `stop` removes it. A
planner that Ray starts again after a crash finds it there and goes on by itself, with ids, grid, targets and
policy state of the planner before it.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from actors.connectors import make_connector
from actors.planning.context import ControlActors, PlannerContext
from actors.planning.log import DecisionLog
from actors.planning.loop import PlannerLoop
from actors.planning.settings import RuntimeSettings
from actors.store import InternalKvStore
from headway.config import HeadwayConfig

STARTED = "planner/started"
MOST_RECORDS = 1000
STATUS_S = 0.5
"""Seconds that `status` waits for the Interpolator at most."""


class Planner:
    """The planner of one Serve application."""

    async def __init__(self, config_json: str, application: str) -> None:  # type: ignore[misc] # Ray awaits it
        config = HeadwayConfig.model_validate_json(config_json)
        self._store = InternalKvStore()
        self._log = DecisionLog(self._store)
        context = PlannerContext(
            actors=ControlActors(),
            connector=make_connector(config, application),
            log=self._log,
            settings=RuntimeSettings(config, self._store),
            clock=time.time,
        )
        started = self._store.get(STARTED) is not None
        self._loop = PlannerLoop(context, resume=started)
        self._task: asyncio.Task[None] | None = None
        if started:
            self._begin()

    async def start(self) -> None:
        """Begin to plan; nothing happens when the loop runs already."""
        self._store.put(STARTED, b"1")
        self._begin()

    async def stop(self) -> None:
        """End the loop, for good. Replicas stay as they are."""
        self._store.delete(STARTED)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def status(self) -> dict[str, Any]:
        """The status document, see `headway.planning.records`."""
        await self._loop.follow_model(STATUS_S)
        return self._loop.status().document()

    async def decisions(self, after: int = -1, limit: int = 100) -> list[dict[str, Any]]:
        """Records with ids above `after`, lowest first; at most `limit` of them."""
        return [record.document() for record in self._log.after(after, min(limit, MOST_RECORDS))]

    async def decision(self, id: int) -> dict[str, Any] | None:  # noqa: A002 - the name that callers use
        """The record of that id; None when there is none, or none any more."""
        record = self._log.get(id)
        return None if record is None else record.document()

    async def update_settings(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings while running, by dotted key; all changes in force. ConfigError when refused."""
        return self._loop.update_settings(changes)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._loop.run())
