"""The ledger in the store: every change is one `put` of the whole ledger, and only then in force.

Each method runs from the event to the stored ledger without a point at which another call could come between.
If the put fails, its error reaches the caller, and the ledger stays what it was; if the process dies after
the put, the next one reads what was put. Either way an id that was handed out is in the store.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from actors.store import Store
from actors.virtual_connector.decision import (
    BadProposal,
    ScalingDecision,
    UnreadableLedger,
    counts,
    plain,
    roles,
)
from actors.virtual_connector.ledger import (
    CompletedDecision,
    DecisionAnswer,
    FailedDecision,
    Ledger,
    Rules,
    Wish,
    answer,
    elapse,
    free_at_s,
    propose,
)
from headway.planning import Role

KEY = "virtual/ledger"
VERSION = 1


class StoredLedger:
    """One ledger with its rules, its store and its clock (Unix seconds)."""

    def __init__(self, store: Store, rules: Rules, clock: Callable[[], float]) -> None:
        stored = store.get(KEY)
        self.ledger = Ledger() if stored is None else _from_bytes(stored)
        self.rules = rules
        self._store = store
        self._clock = clock

    def propose(self, targets: Mapping[str, int], reasons: Mapping[str, Any]) -> dict[str, Any]:
        """Ask for these counts; the reply says what became of the proposal."""
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

    def answer(self, said: DecisionAnswer) -> dict[str, Any]:
        """Take an answer; the reply says whether it was the one that counts."""
        before = self.ledger.acknowledged_id
        self._keep(answer(self.ledger, self.rules, said, self._clock()))
        return {
            "decision_id": said.decision_id,
            "counted": self.ledger.acknowledged_id > before,
            "acknowledged_id": self.ledger.acknowledged_id,
        }

    def elapse(self) -> None:
        """Issue a wish whose way is free by now."""
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

    def document(self) -> dict[str, Any]:
        """Newest decision, answers and wish as JSON-able data."""
        return _document(self.ledger)

    def _keep(self, ledger: Ledger) -> None:
        if ledger != self.ledger:
            # The store comes first: what is in memory must never be ahead of it.
            self._store.put(KEY, _to_bytes(ledger))
            self.ledger = ledger

    def _roles(self, targets: Mapping[str, int]) -> dict[Role, int]:
        try:
            return roles(targets)
        except ValueError:
            known = ", ".join(self.rules.floor)
            raise BadProposal(f"targets: {', '.join(targets)} should name pools: {known}") from None


def _document(ledger: Ledger) -> dict[str, Any]:
    decision, wish, completed, failure = ledger.decision, ledger.wish, ledger.completed, ledger.failure
    return {
        "decision": decision and decision.document(),
        "acknowledged_id": ledger.acknowledged_id,
        "completed": completed
        and {"decision_id": completed.decision_id, "targets": counts(completed.targets)},
        "failure": failure
        and {"decision_id": failure.decision_id, "reason": failure.reason, "at_s": failure.at_s},
        "wish": wish and {"targets": counts(wish.targets), "reasons": dict(wish.reasons)},
    }


def _to_bytes(ledger: Ledger) -> bytes:
    document = {
        "version": VERSION,
        "waiting_since_s": ledger.waiting_since_s,
        "overtaken": [one.document() for one in ledger.overtaken],
        **_document(ledger),
    }
    return json.dumps(document, allow_nan=False).encode()


def _from_bytes(stored: bytes) -> Ledger:
    """The ledger that was stored; UnreadableLedger says what is wrong."""
    try:
        document = json.loads(stored)
        if document["version"] != VERSION:
            raise UnreadableLedger(f"the stored ledger has version {document['version']}, not {VERSION}")
        return _ledger(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableLedger(f"the stored ledger cannot be read: {error!r}") from error


def _ledger(document: Mapping[str, Any]) -> Ledger:
    decision, completed = document["decision"], document["completed"]
    failure, wish = document["failure"], document["wish"]
    return Ledger(
        decision=decision and ScalingDecision.of(decision),
        waiting_since_s=float(document["waiting_since_s"]),
        acknowledged_id=int(document["acknowledged_id"]),
        overtaken=tuple(map(ScalingDecision.of, document["overtaken"])),
        completed=completed
        and CompletedDecision(decision_id=completed["decision_id"], targets=roles(completed["targets"])),
        failure=failure and FailedDecision(**failure),
        wish=wish and Wish(targets=roles(wish["targets"]), reasons=wish["reasons"]),
    )
