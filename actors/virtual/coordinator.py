"""The coordinator: one ledger behind an actor's name, with a timer and with those who wait.

Between a call's arrival and its stored outcome nothing is awaited, so calls cannot overlap inside the ledger.
A restart drops the waiters, who ask again, reads the ledger, and sets the timer anew.
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
from actors.virtual.book import Book
from actors.virtual.codec import completed_document, failure_document, wish_document
from actors.virtual.decision import ScalingDecision
from actors.virtual.errors import UnknownDecision
from actors.virtual.ledger import Answer, Rules, newest
from actors.virtual.pools import pool_counts
from actors.virtual.waiting import Waiters
from headway.config import HeadwayConfig
from headway.planning import Role

RETRY_S = 1.0
"""Until the timer tries again when the store refused its write."""
LONGEST_WAIT_S = 3_600.0
"""Of one call, and of the timer before it looks at the wall clock again."""

log = logging.getLogger(__name__)


def rules_of(config: HeadwayConfig) -> Rules:
    """The rules that a configuration sets: its pools, each with its minimum as the floor."""
    return Rules(
        floor={Role(name): pool.min_replicas for name, pool in config.pools.items()},
        scaling_timeout_s=config.connector.scaling_timeout_s,
    )


class VirtualConnectorCoordinator:
    """Publishes decisions and takes their answers. Made within a running event loop, as async actors are."""

    def __init__(
        self, config_json: str, store: Store | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        rules = rules_of(HeadwayConfig.model_validate_json(config_json))
        self._book = Book(store or InternalKvStore(), rules, clock)
        self._waiters = Waiters()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.timer_failures = 0
        self._on_time()

    async def propose(self, targets: Mapping[str, int], reasons: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for replica counts per role. `status` is `sent`, `unchanged` or `pending`; BadProposal."""
        with self._telling():
            return self._book.propose(targets, reasons)

    async def next(self, after: int | None = None, timeout_s: float = 30.0) -> dict[str, Any] | None:
        """The newest decision whose id is above `after`, waited for; None after `timeout_s`, at most an hour.

        Without `after`, one that is not answered yet. An `after` that was never issued is UnknownDecision.
        """
        self._elapse()
        if after is not None and after > self._book.ledger.last_id:
            raise UnknownDecision(f"after: decision {after} was never issued: {newest(self._book.ledger)}")
        decision = await self._waiters.until(lambda: self._newer_than(after), min(timeout_s, LONGEST_WAIT_S))
        return None if decision is None else decision.document()

    async def get(self) -> dict[str, Any] | None:
        """The newest decision, answered or not; None before the first."""
        self._elapse()
        decision = self._book.ledger.decision
        return None if decision is None else decision.document()

    async def complete(self, decision_id: int) -> dict[str, Any]:
        """The decision was carried out. UnknownDecision for an id that was never issued."""
        with self._telling():
            return self._book.answer(Answer(decision_id=decision_id))

    async def fail(self, decision_id: int, reason: str) -> dict[str, Any]:
        """The decision could not be carried out. UnknownDecision for an id that was never issued."""
        with self._telling():
            return self._book.answer(Answer(decision_id=decision_id, failure=reason))

    async def state(self) -> dict[str, Any]:
        """Everything, JSON-able: decision, answers, wish, timeout, and who waits."""
        self._elapse()
        ledger, rules = self._book.ledger, self._book.rules
        return {
            "decision": ledger.decision and ledger.decision.document(),
            "last_id": ledger.last_id,
            "acknowledged_id": ledger.acknowledged_id,
            "pools": {role.value: asdict(pool) for role, pool in pool_counts(ledger, rules).items()},
            "completed": completed_document(ledger.completed),
            "failure": failure_document(ledger.failure),
            "wish": wish_document(ledger.wish),
            "free_at_s": self._book.free_at_s,
            "scaling_timeout_s": rules.scaling_timeout_s,
            "waiters": self._waiters.count,
            "timer_failures": self.timer_failures,
            "pid": os.getpid(),
        }

    def _newer_than(self, after: int | None) -> ScalingDecision | None:
        ledger = self._book.ledger
        seen = ledger.acknowledged_id if after is None else after
        return ledger.decision if ledger.last_id > seen else None

    def _elapse(self) -> None:
        with self._telling():
            self._book.elapse()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Around a step, which stores its outcome: then wake those who wait, and set the timer."""
        before = self._book.ledger.last_id
        yield
        if self._book.ledger.last_id > before:
            self._waiters.wake()
        self._set_timer(self._book.due_in_s)

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
