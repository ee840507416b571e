"""The planner's loop: wait until ready → tick on a steady grid → follow what becomes of it. It never ends by
itself.

States: `waiting` (the deployment or an actor is not ready: probed every second, the reason is shown),
`running`, `holding` (the last tick could decide nothing new), `stopped`. Ticks and the watcher are two tasks
of one event loop. The watcher asks the connector for its state every `WATCH_S` while an action is unfinished,
else every `IDLE_S`.

The grid does not drift, and a restart continues it:

    due(0) = start + (1 + phase) * interval   by `phase` the planners of one process are kept apart
    due(k + n) = due(k) + n * interval        n = the first whole number that is not in the past, at least 1

The numbers of ticks that were missed are skipped, so that anything that counts intervals sees the gap. A
clock that was set back would leave the next tick far in the future: then the grid begins anew.

After a restart the loop goes on where the log ends: its grid continues, the policy's state comes back, and
the last targets are asserted again at once, cut to today's limits.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from math import ceil, floor
from typing import Any

from actors.connectors.protocol import ConnectorError, TellsReplicas
from actors.planning.context import (
    ActorFailure,
    CurrentPolicy,
    Deadline,
    PlannerContext,
    PlannerState,
    PolicyInForce,
)
from actors.planning.log import Changes, PlannerMemory, Progress, load_memory
from actors.planning.settings import NOBODY, Author
from actors.planning.start import recalled, rehearse
from actors.planning.status import LoopCounters, status_document
from actors.planning.tick import Tick, TickTime, after, apply
from actors.store import StoreAway
from headway.config import HeadwayConfig
from headway.planning import PlanningError
from headway.planning.deciding import PolicyError, fit, gpus
from headway.planning.documents import AdviceDocument, StatusDocument
from headway.planning.records import (
    DRY_RUN,
    PENDING,
    REFUSED,
    UNREACHABLE,
    YIELDED,
    DecisionRecord,
)
from headway.planning.types import KnowsStarts

logger = logging.getLogger(__name__)

NOT_UNDER_WAY = (DRY_RUN, REFUSED, PENDING, YIELDED)
"""Answers after which nobody carries the decision out, though the counts may happen to be as it says."""

SLACK_S = 1e-6
"""Rounding of Unix times."""

LATE_SHARE, LATE_S = 0.1, 1.0
"""A tick that begins later than this share of an interval, or this many seconds, after it was due is late."""

PROBE_S = 1.0
PROBE_TIMEOUT_S = 10.0
WATCH_S, IDLE_S = 0.25, 1.0
WATCH_TIMEOUT_S = 5.0
LONGEST_DEADLINE_S = 30.0
AFTER_FAILURE_S = 1.0
AFTER_TICK_S = 5.0
AGAIN_S = 5.0
"""A decision out of turn, for a budget that others share, comes no sooner after the one before: what was
measured in between has to be worth a look."""
LOOK_S, LOOK_TIMEOUT_S = 5.0, 1.0
"""Between two looks at the performance model while no tick is due, and how long one may take."""


def first_tick(now_s: float, interval_s: float, phase: float = 0.0) -> TickTime:
    """A new grid: the first tick is due when there is one whole interval to look back on, and `phase` of one
    later.
    """
    due_s = now_s + (1.0 + phase) * interval_s
    return TickTime(tick=floor(due_s / interval_s), due_s=due_s)


def next_tick(last: TickTime, now_s: float, interval_s: float) -> tuple[TickTime, int]:
    """The tick after `last`, and how many were missed in between."""
    if now_s < last.due_s - interval_s:
        return TickTime(tick=last.tick + 1, due_s=now_s + interval_s), 0
    steps = max(1, ceil((now_s - last.due_s - SLACK_S) / interval_s))
    return TickTime(tick=last.tick + steps, due_s=last.due_s + steps * interval_s), steps - 1


def is_late(time: TickTime, now_s: float, interval_s: float) -> bool:
    """True for a tick that begins now and should have begun well before."""
    return now_s - time.due_s > min(LATE_S, LATE_SHARE * interval_s)


class PlannerLoop:
    """One planner. `run` is the loop; the other methods may be called while it runs.

    With `resume` it goes on where the planner that wrote the log ended.
    """

    def __init__(self, context: PlannerContext, *, resume: bool = False) -> None:
        self._context = context
        memory = load_memory(context.log.memory) if resume else PlannerMemory()
        self.state = PlannerState(policy=CurrentPolicy(context.settings), memory=memory)
        self._resumed = resume
        self._counters = LoopCounters()
        self._progress = Progress()
        self._unstored: Changes = {}
        """What followed decisions, until the store has it."""
        self._last: TickTime | None = None
        self._begun, self._woken = asyncio.Event(), asyncio.Event()
        self._known_held = 0
        """Requests that waited for the first replica of a pool as the last tick began."""
        self._held_ended = False
        """Those have ended since."""
        self._rehearsed: tuple[int, int] | None = None
        self._on: asyncio.AbstractEventLoop | None = None
        self._ticked_s = 0.0
        self._again: asyncio.TimerHandle | None = None
        context.part.wake, context.part.state = self.wake, lambda: self._counters.state

    async def run(self) -> None:
        """Plan until cancelled. A failure of the policy or an unforeseen one is counted and logged, and the
        loop goes on.
        """
        self._counters.state, self._counters.reason = "waiting", "starting"
        self._woken, self._on = asyncio.Event(), asyncio.get_running_loop()
        watcher = asyncio.create_task(self._watch())
        try:
            while True:
                try:
                    await self._wait_until_ready()
                    await self._resume()
                    while True:
                        time, missed = self._schedule()
                        await self._tick(await self._until_due(time), missed)
                except Exception as error:
                    line = "unforeseen failure, see the log of the Planner"
                    self._fail(str(error) if isinstance(error, PolicyError) else line)
                    logger.exception("the planner's loop failed and goes on")
                    await asyncio.sleep(AFTER_FAILURE_S)
        finally:
            watcher.cancel()
            self._counters.state, self._counters.reason = "stopped", "stopped"
            self._counters.next_tick_at = None

    async def follow_model(self, within_s: float) -> None:
        """Look for a newer performance model, so that `status` is not as old as the last tick."""
        with suppress(ActorFailure, TimeoutError):
            await Deadline(within_s).within(1.0, self.state.policy.follow(self._context.actors))
            self.state.seen_at["profile"] = self._context.clock()

    def held(self, gateway: str, requests: int) -> tuple[float | None, bool]:
        """So many requests of a gateway wait for the first replica of a pool: the next tick is due now.

        Seconds until they should have one, None where the policy does not know; and whether it was asked for
        in vain, as others of the common budget hold the GPUs.
        """
        state, now_s = self.state, self._context.clock()
        self._held_ended |= not state.held_now(now_s)
        state.held[gateway] = requests, now_s
        if any(pool.desired == 0 for pool in state.counts.values()):
            if not self._known_held:
                self._woken.set()
            elif self._held_ended and requests:
                self._wake()
        policy = None if state.policy.in_force is None else state.policy.in_force.policy
        if not isinstance(policy, KnowsStarts):
            return None, self._lacks_gpus
        return policy.serves_in_s(state.memory.state_for(policy), now_s), self._lacks_gpus

    @property
    def _lacks_gpus(self) -> bool:
        grant, last = self._context.part.grant, self._context.log.last
        lacks = grant is not None and grant.gpus < grant.wanted and not grant.lent
        return lacks and last is not None and not all(last.targets.values())

    def wake(self) -> None:
        """Decide out of turn, as others of the common budget have; from any thread."""
        if self._on is not None:
            self._on.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._on is not None and self._last is not None and self._again is None:
            again_s = self._ticked_s + min(AGAIN_S, self.state.policy.interval_s / 2)
            self._again = self._on.call_at(max(self._on.time(), again_s), self._woken.set)

    def status(self) -> StatusDocument:
        """The status document."""
        return status_document(self._context, self.state, self._counters)

    def advice(self, since_s: float | None) -> AdviceDocument:
        """What the plan of a dry run would have been worth in its last seconds, or since it began."""
        return self._context.advice.document(self._context.settings.config, since_s)

    def update_settings(self, changes: Mapping[str, Any], author: Author = NOBODY) -> dict[str, Any]:
        """Change settings from the next tick on. ConfigError when they are refused; then nothing changes."""

        def check(config: HeadwayConfig) -> None:
            self.state.policy.check(config)
            self._context.part.check(config)

        changed = self._context.settings.update(changes, check, author)
        self._context.part.changed()
        return changed

    async def _wait_until_ready(self) -> None:
        if self._counters.undecided_since is None:
            self._counters.undecided_since = self._context.clock()
        while reason := await self._unready():
            if reason != self._counters.reason:
                logger.info("waiting: %s", reason)
            self._counters.state, self._counters.reason = "waiting", reason
            await asyncio.sleep(PROBE_S)
        self._counters.state, self._counters.reason = "running", ""
        if self._counters.begun_at is None:
            self._counters.begun_at = self._context.clock()

    async def _unready(self) -> str:
        """Empty, or what is not ready and why."""
        deadline, actors = Deadline(PROBE_TIMEOUT_S), self._context.actors
        try:
            ready = await deadline.within(1.0, self._context.connector.ready())
            if not ready.ok:
                others = ""
                # A pool that shows nowhere may be a model that the metrics call otherwise.
                with suppress(ActorFailure, TimeoutError):
                    others = await deadline.within(0.5, actors.ready())
                return "; ".join(filter(None, (f"deployment: {ready.reason}", others)))
            if reason := await deadline.within(1.0, actors.ready(asleep=await self._asleep(deadline))):
                return reason
            await self._rehearse(await self.state.policy.refresh(actors, deadline))
        except ConnectorError as error:
            return f"deployment: {error}"
        except PolicyError:
            # Nothing that waiting would heal: the loop shows it as it shows a tick that failed.
            raise
        except (ActorFailure, PlanningError) as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {PROBE_TIMEOUT_S:g} s"
        return ""

    async def _asleep(self, deadline: Deadline) -> bool:
        """True where others run the engines, and none is wanted."""
        if self._context.settings.config.metrics.wake is None:
            return False
        self.state.counts = await deadline.within(1.0, self._context.connector.state())
        return not any(pool.desired for pool in self.state.counts.values())

    async def _rehearse(self, policy: PolicyInForce) -> None:
        # The first look into a profile compiles, for longer than a tick may take.
        if self._rehearsed != policy.version:
            self._counters.reason = "what the engines can do is being computed"
            self.state.counts = await self._context.connector.state()
            await rehearse(self._context, self.state)
            self._rehearsed = policy.version
        planner = self._context.settings.config.planner
        if self.state.memory.state is None and planner.load_predictor_warmup_trace is not None:
            self._counters.reason = "the warm-up trace is being learnt"
            self.state.memory = await recalled(self._context, policy)

    async def _resume(self) -> None:
        """After a restart: the grid, and the last targets, go on."""
        last, policy = self._context.log.last, self.state.policy.in_force
        if self._last is not None or last is None or not self._resumed:
            return
        self._last = TickTime(tick=last.tick, due_s=last.due_at)
        if policy is None or set(last.targets) != set(policy.settings.limits):
            return
        if last.dry_run or self._context.settings.config.planner.dry_run:
            return
        bounds = policy.settings.bounds.at(self._context.clock())
        fitted = fit(last.targets, bounds.limits, bounds.max_gpu_budget).targets
        each = bounds.limits
        if self._context.part.shares and gpus(fitted, each) > gpus(last.targets, each):
            # Of a common budget more is asked for first.
            return
        applied = await apply(self._context, last, fitted)
        # Reached before the restart: nothing is on its way any more.
        if applied.reached_at is None and applied.connector.status not in NOT_UNDER_WAY:
            self._follow(applied)

    def _schedule(self) -> tuple[TickTime, int]:
        """The next tick, and how many were missed before it."""
        now_s, interval_s = self._context.clock(), self.state.policy.interval_s
        if self._last is None:
            time, missed = first_tick(now_s, interval_s, self._context.phase), 0
        else:
            time, missed = next_tick(self._last, now_s, interval_s)
        self._counters.next_tick_at = time.due_s
        return time, missed

    async def _until_due(self, time: TickTime) -> TickTime:
        """Sleep until a tick is due, which is now when engines are seen to have changed, or requests wait for
        a pool that has no replica.
        """
        clock, delay_s = asyncio.get_running_loop().time, time.due_s - self._context.clock()
        # Never longer than to a first tick: a clock that is set back would make it sleep on.
        longest_s = (1.0 + self._context.phase) * self.state.policy.interval_s
        end_s = clock() + min(max(0.0, delay_s), longest_s)
        while (left_s := end_s - clock()) > 0.0:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S, left_s)):
                    await self._woken.wait()
            if not self._woken.is_set() and left_s > LOOK_S:
                await self.follow_model(LOOK_TIMEOUT_S)
            if self._woken.is_set() or (left_s > LOOK_S and self.state.policy.urgent):
                return TickTime(tick=time.tick, due_s=self._context.clock())
        return time

    async def _tick(self, time: TickTime, missed: int) -> None:
        counters, now_s = self._counters, self._context.clock()
        self._last, self._ticked_s = time, asyncio.get_running_loop().time()
        self._woken.clear()
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._known_held, self._held_ended = self.state.held_now(now_s), False
        counters.ticks += 1
        counters.missed_ticks += missed
        counters.late_ticks += is_late(time, now_s, self.state.policy.interval_s)
        counters.last_tick_at = now_s
        stated_s = self._context.settings.config.planner.tick_deadline_s
        deadline_s = stated_s or min(LONGEST_DEADLINE_S, self.state.policy.interval_s / 2)
        elapsed_s = asyncio.get_running_loop().time
        began_s = elapsed_s()
        try:
            outcome = await Tick(self._context, self.state, time, deadline_s).run()
        except (ActorFailure, ConnectorError, PlanningError, TimeoutError) as error:
            self._fail(str(error) or "the tick did not end within its deadline")
            if isinstance(error, PolicyError) and error.__cause__ is not None:
                logger.warning("the policy failed", exc_info=error.__cause__)
            return
        finally:
            counters.took(elapsed_s() - began_s)
        self._hold(settled=True)
        counters.count(outcome.record)
        counters.undecided_since = None
        self.state.connector_failures += outcome.record.connector.status in (REFUSED, UNREACHABLE)
        counters.state = "holding" if outcome.holding else "running"
        counters.reason = outcome.holding
        if outcome.record.connector.status not in NOT_UNDER_WAY:
            self._follow(outcome.record)
        until_next_s = time.due_s + self.state.policy.interval_s - self._context.clock()
        deadline = Deadline(min(AFTER_TICK_S, max(0.0, until_next_s)))
        await after(self._context, self.state, outcome, deadline)

    def _hold(self, *, settled: bool = False) -> None:
        policy = self.state.policy.in_force
        limits = None if policy is None else policy.settings.limits
        self._context.part.hold(self.state.counts, limits, settled=settled)

    def _follow(self, record: DecisionRecord) -> None:
        self._progress.begin(record)
        self._begun.set()

    def _fail(self, reason: str) -> None:
        self._counters.failed_ticks += 1
        self._counters.state, self._counters.reason = "holding", reason
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
                self.state.connector_fault = str(error) or "no answer in time"
                self.state.connector_failures += 1
            except StoreAway as error:
                logger.info("the progress of a decision is noted later: %s", error)
            except Exception:
                logger.exception("following the last decision failed and goes on")

    async def _look(self) -> None:
        connector, replicas = self._context.connector, None
        async with asyncio.timeout(WATCH_TIMEOUT_S):
            if isinstance(connector, TellsReplicas):
                snapshot = await connector.snapshot()
                counts, replicas = snapshot.pools, snapshot.replicas
                self.state.asleep = snapshot.asleep
                self._context.part.crowd(snapshot.crowded)
            else:
                counts = await connector.state()
        self.state.counts, self.state.connector_fault = counts, ""
        self._context.part.room.replicas = replicas
        self._hold()
        self.state.seen_at["replicas"] = self._context.clock()
        self._context.advice.look(self._context.clock(), counts)
        for number, changes in self._progress.see(self._context.clock(), counts, replicas).items():
            self._unstored.setdefault(number, {}).update(changes)
        if self._unstored:
            await self._context.stored(self._store_changes)
            self._unstored = {}

    def _store_changes(self) -> None:
        for number, changes in self._unstored.items():
            self._context.log.update(number, changes)
