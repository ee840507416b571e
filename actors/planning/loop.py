"""The planner's loop: wait until ready → tick on a steady grid → follow what becomes of it. It never ends by
itself.

States: `waiting` (the deployment or an actor is not ready: probed every second, the reason is shown),
`running`, `holding` (the last tick could decide nothing new), `stopped`. Ticks and the watcher are two tasks
of one event loop. The watcher asks the connector for its state every `WATCH_S` while an action is unfinished,
else every `IDLE_S`.

After a restart the loop goes on where the log ends: its grid continues, the policy's state comes back, and
the last targets are asserted again at once, cut to today's limits.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from actors.connectors.protocol import ConnectorError, TellsReplicas
from actors.planning.grid import Beat, first_beat, next_beat
from actors.planning.parts import PartError
from actors.planning.policies import InForce, check
from actors.planning.progress import Progress
from actors.planning.records import DRY_RUN, REFUSED, Record, targets_of
from actors.planning.status import Progressing, interval_s, status_document
from actors.planning.tick import apply, rehearse, run_tick
from actors.planning.world import Deadline, World, ensure_policy
from headway.planning import Observation, PlanningError
from headway.planning.budget import fit

logger = logging.getLogger(__name__)

PROBE_S = 1.0
PROBE_TIMEOUT_S = 10.0
WATCH_S, IDLE_S = 0.25, 1.0
WATCH_TIMEOUT_S = 5.0
LONGEST_DEADLINE_S = 30.0
AFTER_FAILURE_S = 1.0
CALIBRATE_S = 5.0


class PlannerLoop:
    """One planner. `run` is the loop; the other methods may be called while it runs."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._at = Progressing()
        self._progress = Progress()
        self._beat: Beat | None = None
        self._begun = asyncio.Event()
        self._rehearsed: tuple[int, int] | None = None

    async def run(self) -> None:
        """Plan until cancelled. A failure that nobody foresaw is counted and logged, and the loop goes on."""
        self._at.state, self._at.reason = "waiting", "starting"
        watcher = asyncio.create_task(self._watch())
        try:
            while True:
                try:
                    await self._wait_until_ready()
                    await self._resume()
                    while True:
                        await self._one_tick()
                except Exception:
                    self._fail("unforeseen failure, see the log of the Planner")
                    logger.exception("the planner's loop failed and goes on")
                    await asyncio.sleep(AFTER_FAILURE_S)
        finally:
            watcher.cancel()
            self._at.state, self._at.reason, self._at.next_tick_at = "stopped", "stopped", None

    def status(self) -> dict[str, Any]:
        """The status document."""
        return status_document(self._world, self._at, self._world.parts.health())

    def update_settings(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change settings from the next tick on. ConfigError when they are refused; then nothing changes."""
        return self._world.settings.update(changes, lambda config: check(config, self._world.profile))

    async def _wait_until_ready(self) -> None:
        while reason := await self._unready():
            if reason != self._at.reason:
                logger.info("waiting: %s", reason)
            self._at.state, self._at.reason = "waiting", reason
            await asyncio.sleep(PROBE_S)
        self._at.state, self._at.reason = "running", ""

    async def _unready(self) -> str:
        """Empty, or who is not ready and why."""
        deadline = Deadline(PROBE_TIMEOUT_S)
        try:
            ready = await deadline.within(1.0, self._world.connector.ready())
            if not ready.ok:
                return f"deployment: {ready.reason}"
            if reason := await deadline.within(1.0, self._world.parts.ready()):
                return reason
            await self._rehearse(await ensure_policy(self._world, deadline))
        except ConnectorError as error:
            return f"deployment: {error}"
        except (PartError, PlanningError) as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT_S:g} s"
        return ""

    async def _rehearse(self, in_force: InForce) -> None:
        """Plan once for nothing: the first look into a profile compiles, for longer than a tick may take."""
        if self._rehearsed != in_force.version:
            self._at.reason = "the surfaces are being compiled"
            self._world.counts = await self._world.connector.state()
            await rehearse(self._world)
            self._rehearsed = in_force.version

    async def _resume(self) -> None:
        """After a restart: the grid, and the last targets, go on."""
        last = self._world.log.last
        if self._beat is None and last is not None and self._world.resumed:
            self._beat = Beat(tick=last["tick"], due_s=last["due_at"])
            await self._reassert(last)

    async def _reassert(self, last: Record) -> None:
        force = self._world.in_force
        targets = targets_of(last)
        if force is None or last["dry_run"] or set(targets) != set(force.settings.limits):
            return
        if self._world.settings.config.planner.dry_run:
            return
        fitted = fit(targets, force.settings.limits, force.settings.max_gpu_budget).targets
        applied = await apply(self._world, last, fitted)
        if applied["reached_at"] is None:
            self._follow(applied)

    async def _one_tick(self) -> None:
        world = self._world
        beat, missed = self._next_beat()
        self._at.next_tick_at = beat.due_s
        await asyncio.sleep(min(max(0.0, beat.due_s - world.clock()), self._interval_s))
        self._beat = beat
        self._at.ticks += 1
        self._at.missed_ticks += missed
        self._at.late_ticks += beat.late(world.clock(), self._interval_s)
        self._at.last_tick_at = world.clock()
        try:
            outcome = await run_tick(world, beat, self._deadline_s())
        except (PartError, ConnectorError, PlanningError, TimeoutError) as error:
            self._fail(str(error) or "the tick did not end within its deadline")
            return
        self._at.state = "holding" if outcome.holding else "running"
        self._at.reason = outcome.holding
        if outcome.record["connector"]["status"] not in (DRY_RUN, REFUSED):
            self._follow(outcome.record)
        await self._calibrate(outcome.observation)

    def _next_beat(self) -> tuple[Beat, int]:
        now_s = self._world.clock()
        if self._beat is None:
            return first_beat(now_s, self._interval_s), 0
        return next_beat(self._beat, now_s, self._interval_s)

    @property
    def _interval_s(self) -> float:
        return interval_s(self._world.settings.config, self._world)

    def _deadline_s(self) -> float:
        stated = self._world.settings.config.planner.tick_deadline_s
        return stated or min(LONGEST_DEADLINE_S, self._interval_s / 2)

    async def _calibrate(self, observation: Observation) -> None:
        work = self._world.parts.calibrate(observation)
        try:
            self._world.calibration = await Deadline(self._spare_s()).within(1.0, work)
        except (PartError, TimeoutError) as error:
            logger.warning("calibration: %s", str(error) or "no answer in time")

    def _spare_s(self) -> float:
        """Seconds for what may fail without harm: the next tick does not wait for it."""
        if self._beat is None:
            return 0.0
        return min(CALIBRATE_S, max(0.0, self._beat.due_s + self._interval_s - self._world.clock()))

    def _follow(self, record: Record) -> None:
        self._progress.begin(record)
        self._begun.set()

    def _fail(self, reason: str) -> None:
        self._at.failed_ticks += 1
        self._at.state, self._at.reason = "holding", reason
        logger.warning("no decision: %s", reason)

    async def _watch(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S if self._progress.unfinished else IDLE_S):
                    await self._begun.wait()
            self._begun.clear()
            try:
                await self._look()
            except (ConnectorError, TimeoutError) as error:
                self._world.fault = str(error) or "no answer in time"
            except Exception:
                logger.exception("following the last decision failed and goes on")

    async def _look(self) -> None:
        world, replicas = self._world, None
        async with asyncio.timeout(WATCH_TIMEOUT_S):
            if isinstance(world.connector, TellsReplicas):
                snapshot = await world.connector.snapshot()
                world.counts, replicas = snapshot.pools, snapshot.replicas
            else:
                world.counts = await world.connector.state()
        world.fault = ""
        for number, changes in self._progress.see(world.clock(), world.counts, replicas).items():
            world.log.update(number, changes)
