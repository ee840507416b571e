"""The ledger kept: every change is one `put` of the whole ledger, and only then the truth.

Each method runs from the event to the stored ledger without a point at which another call could come between.
If the put fails, its error is the caller's, and the ledger stays what it was; if the process dies after the
put, the next one reads what was put. Either way an id that anyone was told is in the store.
"""

from collections.abc import Callable, Mapping
from typing import Any

from actors.store import Store
from actors.virtual.codec import from_bytes, to_bytes
from actors.virtual.decision import counts, plain, roles
from actors.virtual.errors import BadProposal
from actors.virtual.ledger import Answer, Ledger, Rules, answer, elapse, free_at_s, propose
from headway.planning import Role

KEY = "virtual/ledger"


class Book:
    """One ledger, its rules, its place and its clock (Unix seconds)."""

    def __init__(self, store: Store, rules: Rules, clock: Callable[[], float]) -> None:
        stored = store.get(KEY)
        self.ledger = Ledger() if stored is None else from_bytes(stored)
        self.rules = rules
        self._store = store
        self._clock = clock

    def propose(self, targets: Mapping[str, int], reasons: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for these counts; the reply says what became of it."""
        before = self.ledger.last_id
        now_s = self._clock()
        self._keep(propose(self.ledger, self.rules, self._roles(targets), plain(reasons), now_s))
        if self.ledger.last_id > before:
            return {"status": "sent", "decision_id": self.ledger.last_id}
        if self.ledger.wish is None:
            return {"status": "unchanged", "decision_id": self.ledger.last_id}
        return {
            "status": "pending",
            "decision_id": self.ledger.last_id,
            "wish": counts(self.ledger.wish.targets),
            "free_at_s": self.free_at_s,
        }

    def answer(self, said: Answer) -> dict[str, Any]:
        """Take an answer; the reply says whether it was the one that counts."""
        before = self.ledger.acknowledged_id
        self._keep(answer(self.ledger, self.rules, said, self._clock()))
        return {
            "decision_id": said.decision_id,
            "counted": self.ledger.acknowledged_id > before,
            "acknowledged_id": self.ledger.acknowledged_id,
        }

    def elapse(self) -> None:
        """Let the clock be read: a wish whose way is free is issued."""
        self._keep(elapse(self.ledger, self.rules, self._clock()))

    @property
    def free_at_s(self) -> float | None:
        """When the pending decision stops blocking the next, None if nothing is pending."""
        return free_at_s(self.ledger, self.rules)

    @property
    def due_in_s(self) -> float | None:
        """Seconds until a wish is issued unless an answer comes first; None without a wish."""
        if self.ledger.wish is None or self.free_at_s is None:
            return None
        return max(0.0, self.free_at_s - self._clock())

    def _keep(self, ledger: Ledger) -> None:
        if ledger != self.ledger:
            self._store.put(KEY, to_bytes(ledger))
            self.ledger = ledger

    def _roles(self, targets: Mapping[str, int]) -> dict[Role, int]:
        try:
            return roles(targets)
        except ValueError:
            known = ", ".join(self.rules.floor)
            raise BadProposal(f"targets: {', '.join(targets)} should name pools: {known}") from None
