"""The coordinator: one ledger behind an actor's name, a timer, and the callers that wait for a decision.

Between a call's arrival and its stored outcome nothing is awaited, so calls cannot overlap inside the ledger.
A restart drops the waiting calls, which are made again, reads the ledger, and sets the timer anew.

A waiting call is a coroutine on the coordinator's loop. All of them share one event, which is renewed at each
issue; a call that is woken checks by itself whether the decision was for it.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from actors.store import InternalKvStore, Store
from actors.virtual_connector.decision import ScalingDecision, TooManyWaiters, UnknownDecision
from actors.virtual_connector.ledger import DecisionAnswer, Rules, newest, pool_counts
from actors.virtual_connector.stored_ledger import StoredLedger
from headway.config import HeadwayConfig
from headway.planning import Role

RETRY_S = 1.0
"""Until the timer tries again when the store refused its write."""
LONGEST_WAIT_S = 3_600.0
"""Of one call, and of the timer before it looks at the wall clock again."""
MOST_WAITERS = 8_000
"""Waiting calls at once. The actor admits more calls than this, so that an answer always gets in."""

log = logging.getLogger(__name__)


def rules_of(config: HeadwayConfig) -> Rules:
    """The configured pools, each with its minimum as the floor, and the timeout."""
    return Rules(
        floor={Role(name): pool.min_replicas for name, pool in config.pools.items()},
        scaling_timeout_s=config.connector.scaling_timeout_s,
    )


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
                return await self._found(found)
        except TimeoutError:
            return None
        finally:
            self.count -= 1

    async def _found(self, found: Callable[[], ScalingDecision | None]) -> ScalingDecision:
        while (decision := found()) is None:
            await self._issued.wait()
        return decision


class VirtualConnectorCoordinator:
    """Publishes decisions and takes their answers. Made within a running event loop, as async actors are."""

    def __init__(
        self, config_json: str, store: Store | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        rules = rules_of(HeadwayConfig.model_validate_json(config_json))
        self._stored = StoredLedger(store or InternalKvStore(), rules, clock)
        self._waiters = Waiters()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.timer_failures = 0
        self._on_time()

    async def propose(self, targets: Mapping[str, int], reasons: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for replica counts per role. `status` is `sent`, `unchanged` or `pending`; BadProposal."""
        with self._announcing():
            return self._stored.propose(targets, reasons)

    async def next(self, after: int | None = None, timeout_s: float = 30.0) -> dict[str, Any] | None:
        """The newest decision whose id is above `after`, waited for; None after `timeout_s`, at most an hour.

        Without `after`, one that is not answered yet. An `after` that was never issued is UnknownDecision.
        """
        self._elapse()
        if after is not None and after > self._stored.ledger.last_id:
            raise UnknownDecision(f"after: decision {after} was never issued: {newest(self._stored.ledger)}")
        decision = await self._waiters.until(lambda: self._newer_than(after), min(timeout_s, LONGEST_WAIT_S))
        return None if decision is None else decision.document()

    async def get(self) -> dict[str, Any] | None:
        """The newest decision, answered or not; None before the first."""
        self._elapse()
        decision = self._stored.ledger.decision
        return None if decision is None else decision.document()

    async def complete(self, decision_id: int) -> dict[str, Any]:
        """The decision was carried out. UnknownDecision for an id that was never issued."""
        with self._announcing():
            return self._stored.answer(DecisionAnswer(decision_id=decision_id))

    async def fail(self, decision_id: int, reason: str) -> dict[str, Any]:
        """The decision could not be carried out. UnknownDecision for an id that was never issued."""
        with self._announcing():
            return self._stored.answer(DecisionAnswer(decision_id=decision_id, failure=reason))

    async def state(self) -> dict[str, Any]:
        """Everything, JSON-able: decision, answers, wish, timeout, and how many calls wait."""
        self._elapse()
        ledger, rules = self._stored.ledger, self._stored.rules
        return {
            **self._stored.document(),
            "last_id": ledger.last_id,
            "pools": {role.value: asdict(pool) for role, pool in pool_counts(ledger, rules).items()},
            "free_at_s": self._stored.free_at_s,
            "scaling_timeout_s": rules.scaling_timeout_s,
            "waiters": self._waiters.count,
            "timer_failures": self.timer_failures,
            "pid": os.getpid(),
        }

    def _newer_than(self, after: int | None) -> ScalingDecision | None:
        ledger = self._stored.ledger
        seen = ledger.acknowledged_id if after is None else after
        return ledger.decision if ledger.last_id > seen else None

    def _elapse(self) -> None:
        with self._announcing():
            self._stored.elapse()

    @contextmanager
    def _announcing(self) -> Iterator[None]:
        """Around a step, which stores its outcome: then wake the waiting calls, and set the timer."""
        before = self._stored.ledger.last_id
        yield
        if self._stored.ledger.last_id > before:
            self._waiters.wake()
        self._set_timer(self._stored.due_in_s)

    def _set_timer(self, due_in_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if due_in_s is not None:
            self._timer = self._loop.call_later(min(due_in_s, LONGEST_WAIT_S), self._on_time)

    def _on_time(self) -> None:
        try:
            self._elapse()
        except Exception:
            self.timer_failures += 1
            log.exception("the virtual connector could not issue what was due; it tries again")
            self._set_timer(RETRY_S)
