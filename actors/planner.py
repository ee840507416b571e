"""The actor that plans: the loop of `actors.planning`, its calls, and its return after a crash.

The store has `planner/started` while the loop shall run: `start` writes it, `stop` removes it. A
planner that Ray starts again after a crash finds it there and goes on by itself, with ids, grid, targets and
policy state of the planner before it.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from actors.applications import served
from actors.connectors import make_connector
from actors.connectors.drift import drift_aware
from actors.planning.advice import LiveAdvice
from actors.planning.common_budget import common_budget
from actors.planning.context import ControlActors, PlannerContext
from actors.planning.log import DecisionLog
from actors.planning.loop import PlannerLoop
from actors.planning.part_watch import watches
from actors.planning.settings import (
    CONFIGURATION,
    SETTINGS,
    STARTED,
    Author,
    RuntimeSettings,
    flatten,
)
from actors.planning.wake_watch import WakeWatch
from actors.store import InOrder, InternalKvStore, Store, StoreAway
from actors.stored import read, set_aside
from headway.config import HeadwayConfig
from headway.planning.decision_text import story
from headway.planning.record_figures import history

MOST_RECORDS = 1000
STATUS_S = 0.5
"""Seconds that `status` waits for the Interpolator at most."""
SHOWN_S = 86_400.0
"""For as long `status` shows what was set aside in the store."""


class Planner:
    """The planner of one Serve application. Made within a running event loop."""

    def __init__(self, config_json: str, application: str, store: Store) -> None:
        self._store = store
        stored = read(self._store, CONFIGURATION, SETTINGS, HeadwayConfig.model_validate_json)
        config = stored or HeadwayConfig.model_validate_json(config_json)
        self._log = DecisionLog(self._store)
        settings = RuntimeSettings(config, self._store)
        self._configured, self._settings, self._application = config, settings, application
        # First: also of one that cannot be made others must not take what it holds.
        phase = common_budget().phase(application)
        self._part = common_budget().join(application, settings, self._log, time.time)
        self._part.change, self._stored = self._change, InOrder().run
        try:
            connector = make_connector(config, application)
        except Exception:
            self._part.leave(self._served)
            raise
        context = PlannerContext(
            actors=ControlActors(application),
            connector=drift_aware(connector, lambda: settings.config, self._store, time.time),
            log=self._log,
            settings=settings,
            clock=time.time,
            part=self._part,
            phase=phase,
            advice=LiveAdvice(self._store),
            stored=self._stored,
        )
        self._set_aside: Mapping[str, float] = {}
        started = self._store.get(STARTED) is not None
        self._loop = PlannerLoop(context, resume=started)
        self._task: asyncio.Task[None] | None = None
        self._front = config.fleet.application or application
        watches().join(self._front)
        self._watching: asyncio.Task[None] | None = None
        if config.metrics.wake is not None:
            self._watching = asyncio.create_task(WakeWatch(context.actors, self._loop).run())
        if started:
            self._begin()

    async def start(self) -> None:
        """Begin to plan; nothing happens when the loop runs already."""
        await self._stored(lambda: self._store.put(STARTED, b"1"))
        self._begin()

    async def stop(self) -> None:
        """End the loop, for good. Replicas stay as they are."""
        await self._stored(lambda: self._store.delete(STARTED))
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def held(self, gateway: str, requests: int) -> tuple[float | None, bool]:
        """So many requests of a gateway wait for the first replica of a pool, see `PlannerLoop.held`."""
        return self._loop.held(gateway, requests)

    def close(self) -> None:
        """Do nothing any more. What is stored stays: a planner of the same store goes on."""
        for work in (self._task, self._watching):
            if work is not None:
                work.cancel()
        self._part.leave(self._served)

    async def status(self) -> dict[str, Any]:
        """The status document, see `headway.planning.documents`."""
        await self._loop.follow_model(STATUS_S)
        since_s = time.time() - SHOWN_S
        with suppress(StoreAway):
            self._set_aside = await self._stored(lambda: set_aside(self._store, since_s))
        document = self._loop.status().document()
        silent = [*document["silent"], *watches().silent(self._application, self._front)]
        hosts = watches().hosts.document(self._application, self._front)
        return {**document, **hosts, "silent": silent, "set_aside": self._set_aside}

    async def decisions(self, after: int = -1, limit: int = 100) -> list[dict[str, Any]]:
        """Records with ids above `after`, lowest first; at most `limit` of them."""
        return [record.document() for record in self._log.after(after, min(limit, MOST_RECORDS))]

    async def decision(self, id: int) -> dict[str, Any] | None:  # noqa: A002 - the name that callers use
        """The record of that id; None when there is none, or none any more."""
        record = self._log.get(id)
        return None if record is None else record.document()

    async def history(self, after: int = -1) -> dict[str, Any]:
        """The records with ids above `after` as columns, see `headway.planning.record_figures`."""
        return history(self._log.after(after, MOST_RECORDS))

    async def story(self, id: int) -> dict[str, list[str]] | None:  # noqa: A002 - as above
        """The record of that id in words, see `headway.planning.decision_text`; None when there is none."""
        record = self._log.get(id)
        return None if record is None else story(record)

    async def advice(self, since_s: float | None = None) -> dict[str, Any]:
        """What the plan of a dry run would have been worth (`headway.planning.documents.AdviceDocument`)."""
        return self._loop.advice(since_s).document()

    async def fleet(self) -> dict[str, Any]:
        """All applications and their budget (`headway.planning.documents.FleetDocument`)."""
        return self._part.fleet().document()

    async def configure(self, config_json: str) -> None:
        """Go by a configuration that differs in settings that may change while running."""
        config = HeadwayConfig.model_validate_json(config_json)
        if config != self._configured:
            await self._stored(lambda: self._settings.rebase(config))
            self._configured = config
            self._part.changed()

    async def update_settings(self, changes: Mapping[str, Any], by: str = "") -> dict[str, Any]:
        """Change settings while running, by dotted key; all changes in force. ConfigError when refused.

        `by` names who changes them. Those of `fleet` change for all applications that share a budget.
        """
        author, flat = Author(by=by, at=time.time()), flatten(changes)
        changed = await self._change(flat, author)
        if common := {key: value for key, value in flat.items() if key.startswith("fleet.")}:
            for other in self._part.others():
                if other.change is not None:
                    await other.change(common, author)
        return changed

    async def _change(self, changes: Mapping[str, Any], author: Author) -> dict[str, Any]:
        changed: dict[str, Any] = await self._stored(lambda: self._loop.update_settings(changes, author))
        return changed

    async def _served(self) -> bool:
        found: bool = await self._stored(lambda: served(InternalKvStore(), self._application) is not None)
        return found

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._loop.run())
