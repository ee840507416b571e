"""The ledger in the store: every change is one `put` of the whole ledger, and only then in force.

Each method runs from the event to the stored ledger without a point at which another call could come between.
If the put fails, its error reaches the caller, and the ledger stays what it was; if the process dies after
the put, the next one reads what was put. Either way an id that was handed out is in the store.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter

from actors.store import Store
from actors.virtual_connector.decision import BadProposal, UnreadableLedger, counts, plain, roles
from actors.virtual_connector.ledger import (
    DecisionAnswer,
    Ledger,
    Rules,
    answer,
    elapse,
    free_at_s,
    propose,
)
from headway.planning import Role

KEY = "virtual/ledger"
VERSION = 1
LEDGER = TypeAdapter(Ledger)
FIELDS = tuple(item.name for item in fields(Ledger))


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
        stored = LEDGER.dump_python(self.ledger, mode="json")
        shown = {name: stored[name] for name in ("acknowledged_id", "completed", "failure", "wish")}
        return {"decision": self.ledger.decision and self.ledger.decision.document(), **shown}

    def _keep(self, ledger: Ledger) -> None:
        if ledger != self.ledger:
            # The store comes first: what is in memory must never be ahead of it.
            document = {"version": VERSION, **LEDGER.dump_python(ledger, mode="json")}
            self._store.put(KEY, json.dumps(document, allow_nan=False).encode())
            self.ledger = ledger

    def _roles(self, targets: Mapping[str, int]) -> dict[Role, int]:
        try:
            return roles(targets)
        except ValueError:
            known = ", ".join(self.rules.floor)
            raise BadProposal(f"targets: {', '.join(targets)} should name pools: {known}") from None


def _from_bytes(stored: bytes) -> Ledger:
    """The ledger that was stored; UnreadableLedger says what is wrong."""
    try:
        document = json.loads(stored)
        if document["version"] != VERSION:
            raise UnreadableLedger(f"the stored ledger has version {document['version']}, not {VERSION}")
        # A field without its value must not take the default: ids might go back.
        return LEDGER.validate_python({name: document[name] for name in FIELDS})
    except (ValueError, TypeError, KeyError) as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableLedger(f"the stored ledger cannot be read: {said}") from error
