"""The coordinator: one ledger behind an actor's name, a timer, and the callers that wait for a decision.

The ledger is in the store: every change is one `put` of the whole ledger, and only then in force. If the put
fails, its error reaches the caller, and the ledger stays what it was; if the process dies after the put, the
next one reads what was put. Either way an id that was handed out is in the store.

Steps are made in one thread beside the event loop, one after the other (`actors.store.InOrder`), so calls
cannot overlap inside the ledger, and what only reads is answered while the store is away. A step that the
store keeps waiting ends with StoreAway for its caller, and counts if it is stored in the end. A restart drops
the waiting calls, which are made again, reads the ledger, and sets the timer anew.

A waiting call is a coroutine on the coordinator's loop. All of them share one event, which is renewed at each
issue; a call that is woken checks by itself whether the decision was for it.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from pydantic import TypeAdapter

from actors.store import InOrder, InternalKvStore, Store
from actors.stored import Kind, put, read
from actors.virtual_connector.ledger import (
    Ledger,
    Rules,
    ScalingDecision,
    TooManyWaiters,
    UnknownDecision,
    answer,
    counts_of,
    elapse,
    free_at_s,
    newest,
    plain,
    pool_counts,
    propose,
    report,
    targets_of,
    unseen,
)
from headway.config import HeadwayConfig
from headway.planning import Role
from headway.planning.policies import jsonable

KEY = "virtual/ledger"
KIND = Kind("ledger", dict[str, Any])
LEDGER = TypeAdapter(Ledger)
FIELDS = tuple(item.name for item in fields(Ledger))
SINCE = ("reports", "begun_after")
"""Fields that coordinators before did not write."""
RETRY_S = 1.0
"""Until the timer tries again when the store refused its write."""
LONGEST_WAIT_S = 3_600.0
"""Of one call, and of the timer before it looks at the wall clock again."""
MOST_WAITERS = 8_000
"""Waiting calls at once. The actor admits more calls than this, so that an answer always gets in."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class StoredLedger:
    """One ledger with its rules, its store and its clock (Unix seconds)."""

    def __init__(self, store: Store, rules: Rules, clock: Callable[[], float]) -> None:
        self.ledger = _restored(store, clock())
        self.rules = rules
        self._store = store
        self._clock = clock

    def propose(self, targets: Mapping[str, int], reasons: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for these counts; the reply says what became of the proposal."""
        before = self.ledger.last_id
        asked = targets_of(targets, self.rules)
        self._keep(propose(self.ledger, self.rules, asked, jsonable(reasons), self._clock()))
        if self.ledger.last_id > before:
            return {"status": "sent", "decision_id": self.ledger.last_id}
        if self.ledger.wish is None:
            return {"status": "unchanged", "decision_id": self.ledger.last_id}
        return {
            "status": "pending",
            "decision_id": self.ledger.last_id,
            "wish": plain(self.ledger.wish.targets),
            "free_at_s": self.free_at_s,
        }

    def answer(self, decision_id: int, failure: str | None = None) -> dict[str, Any]:
        """Take an answer; the reply says whether it was the one that counts."""
        before = self.ledger.acknowledged_id
        self._keep(answer(self.ledger, self.rules, decision_id, failure, self._clock()))
        return {
            "decision_id": decision_id,
            "counted": self.ledger.acknowledged_id > before,
            "acknowledged_id": self.ledger.acknowledged_id,
        }

    def report(self, pools: Mapping[str, Mapping[str, int]]) -> None:
        """Take what the outside system says of these pools."""
        counts = counts_of(pools, self.rules)
        self._keep(report(self.ledger, self.rules, counts, self._clock()))

    def unseen(self) -> dict[str, str]:
        """The pools whose counts are not known, and why."""
        return {role.value: why for role, why in unseen(self.ledger, self.rules, self._clock()).items()}

    def elapse(self) -> None:
        """Issue a wish whose way is free by now."""
        self._keep(elapse(self.ledger, self.rules, self._clock()))

    @property
    def overdue(self) -> bool:
        """True if `elapse` would issue something now."""
        return elapse(self.ledger, self.rules, self._clock()) != self.ledger

    @property
    def free_at_s(self) -> float | None:
        """When the pending decision stops blocking the next, None if nothing is pending."""
        return free_at_s(self.ledger, self.rules)

    @property
    def due_in_s(self) -> float | None:
        """Seconds until a wish is issued unless an answer comes first; None without a wish."""
        if self.ledger.wish is None or self.free_at_s is None:
            return None
        left_s = self.free_at_s - self._clock()
        # A wish that is overdue waits for a report; it is looked at again all the same.
        return left_s if left_s > 0.0 else RETRY_S

    def document(self) -> dict[str, Any]:
        """Newest decision, answers and wish as JSON-able data."""
        stored = LEDGER.dump_python(self.ledger, mode="json")
        shown = {name: stored[name] for name in ("acknowledged_id", "completed", "failure", "wish")}
        return {"decision": self.ledger.decision and self.ledger.decision.document(), **shown}

    def _keep(self, ledger: Ledger) -> None:
        if ledger != self.ledger:
            # The store comes first: what is in memory must never be ahead of it.
            put(self._store, KIND, KEY, LEDGER.dump_python(ledger, mode="json"))
            self.ledger = ledger


def _restored(store: Store, now_s: float) -> Ledger:
    """The ledger that was stored. Where it cannot be read, one whose next id is above any that was issued.

    Ids begin at 0 and rise by one at a time, so that none is above the time in Unix seconds.
    """
    if store.get(KEY) is None:
        return Ledger()

    def use(document: Mapping[str, Any]) -> Ledger:
        # A field without its value must not take the default: ids might go back.
        return LEDGER.validate_python(
            {name: document[name] for name in FIELDS if name in document or name not in SINCE}
        )

    beyond = int(now_s)
    return read(store, KIND, KEY, use) or Ledger(begun_after=beyond, acknowledged_id=beyond)


class Waiters:
    """The calls that wait for a decision; woken when one is issued, not when one is answered."""

    def __init__(self, most: int = MOST_WAITERS) -> None:
        self._most = most
        self._issued = asyncio.Event()
        self.count = 0

    def wake(self) -> None:
        """A decision was issued."""
        self._issued.set()
        self._issued = asyncio.Event()

    async def until(
        self, found: Callable[[], ScalingDecision | None], timeout_s: float
    ) -> ScalingDecision | None:
        """The decision that `found` returns, now or after one was issued; None after `timeout_s` seconds."""
        decision = found()
        if decision is not None or timeout_s <= 0.0:
            return decision
        if self.count >= self._most:
            raise TooManyWaiters(f"{self.count} calls are waiting already; ask again later")
        self.count += 1
        try:
            async with asyncio.timeout(timeout_s):
                while (decision := found()) is None:
                    await self._issued.wait()
                return decision
        except TimeoutError:
            return None
        finally:
            self.count -= 1


class VirtualConnectorCoordinator:
    """Publishes decisions and takes their answers. Made within a running event loop, as async actors are."""

    def __init__(
        self, config_json: str, store: Store | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        config = HeadwayConfig.model_validate_json(config_json)
        rules = Rules(
            floor={Role(name): pool.min_replicas for name, pool in config.pools.items()},
            scaling_timeout_s=config.connector.scaling_timeout_s,
            report_max_age_s=config.connector.report_max_age_s,
            started_by_us=config.engine.kind != "external",
        )
        self._stored = StoredLedger(store or InternalKvStore(), rules, clock)
        self._beside = InOrder()
        self._waiters = Waiters()
        self._loop = asyncio.get_running_loop()
        self._announced_id = self._stored.ledger.last_id
        self._timer: asyncio.TimerHandle | None = None
        self._issuing: asyncio.Task[None] | None = None
        self.timer_failures = 0
        self._on_time()

    def close(self) -> None:
        """Issue nothing any more."""
        for work in (self._timer, self._issuing):
            if work is not None:
                work.cancel()

    async def propose(self, targets: Mapping[str, int], reasons: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for replica counts per role. `status` is `sent`, `unchanged` or `pending`; BadProposal."""
        return await self._step(lambda: self._stored.propose(targets, reasons))

    async def next(self, after: int | None = None, timeout_s: float = 30.0) -> dict[str, Any] | None:
        """The newest decision whose id is above `after`, waited for; None after `timeout_s`, at most an hour.

        Without `after`, one that is not answered yet. An `after` that was never issued is UnknownDecision.
        """
        await self._elapse()
        if after is not None and after > self._stored.ledger.last_id:
            raise UnknownDecision(f"after: decision {after} was never issued: {newest(self._stored.ledger)}")

        def newer() -> ScalingDecision | None:
            ledger = self._stored.ledger
            seen = ledger.acknowledged_id if after is None else after
            return ledger.decision if ledger.last_id > seen else None

        decision = await self._waiters.until(newer, min(timeout_s, LONGEST_WAIT_S))
        return None if decision is None else decision.document()

    async def get(self) -> dict[str, Any] | None:
        """The newest decision, answered or not; None before the first."""
        await self._elapse()
        decision = self._stored.ledger.decision
        return None if decision is None else decision.document()

    async def complete(self, decision_id: int) -> dict[str, Any]:
        """The decision was carried out. UnknownDecision for an id that was never issued."""
        return await self._step(lambda: self._stored.answer(decision_id))

    async def fail(self, decision_id: int, reason: str) -> dict[str, Any]:
        """The decision could not be carried out. UnknownDecision for an id that was never issued."""
        return await self._step(lambda: self._stored.answer(decision_id, reason))

    async def report(self, pools: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
        """Replicas of these pools as they are now, by name: `ready`, and `desired`, `starting`, `draining`.

        The pools as they are understood now. BadReport names what cannot be.
        """
        await self._step(lambda: self._stored.report(pools))
        return self._pools()

    async def state(self) -> dict[str, Any]:
        """Everything, JSON-able: decision, answers, wish, timeout, pools, how many calls wait.

        `unseen` has the pools whose counts are not known, and why.
        """
        await self._elapse()
        rules = self._stored.rules
        return {
            **self._stored.document(),
            "last_id": self._stored.ledger.last_id,
            "pools": self._pools(),
            "unseen": self._stored.unseen(),
            "free_at_s": self._stored.free_at_s,
            "scaling_timeout_s": rules.scaling_timeout_s,
            "waiters": self._waiters.count,
            "timer_failures": self.timer_failures,
            "pid": os.getpid(),
        }

    def _pools(self) -> dict[str, Any]:
        counted = pool_counts(self._stored.ledger, self._stored.rules)
        return {role.value: asdict(pool) for role, pool in counted.items()}

    async def _elapse(self) -> None:
        if self._stored.overdue:
            await self._step(self._stored.elapse)

    async def _step(self, step: Callable[[], T]) -> T:
        """The outcome of a step that changes the ledger, once it is stored."""

        def stored() -> T:
            try:
                return step()
            finally:
                # Here, not where the caller waits: it may have given up on a step that is stored in the end.
                self._loop.call_soon_threadsafe(self._announce)

        return await self._beside.run(stored)

    def _announce(self) -> None:
        """After a step: wake the waiting calls if it issued a decision, and set the timer."""
        if self._stored.ledger.last_id > self._announced_id:
            self._announced_id = self._stored.ledger.last_id
            self._waiters.wake()
        self._set_timer(self._stored.due_in_s)

    def _set_timer(self, due_in_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due_in_s is not None:
            self._timer = self._loop.call_later(min(due_in_s, LONGEST_WAIT_S), self._on_time)

    def _on_time(self) -> None:
        self._issuing = self._loop.create_task(self._issue())

    async def _issue(self) -> None:
        try:
            await self._elapse()
        except Exception:
            self.timer_failures += 1
            log.exception("the virtual connector could not issue what was due; it tries again")
            self._set_timer(RETRY_S)
        else:
            self._set_timer(self._stored.due_in_s)
