"""The ledger as bytes: one JSON document, so that one write stores all of it."""

import json
from collections.abc import Mapping
from typing import Any

from actors.virtual.decision import ScalingDecision, counts, roles
from actors.virtual.errors import UnreadableLedger
from actors.virtual.ledger import Completed, Failure, Ledger, Wish

VERSION = 1


def to_bytes(ledger: Ledger) -> bytes:
    """The ledger, whole."""
    document = {
        "version": VERSION,
        "decision": _decision(ledger.decision),
        "waiting_since_s": ledger.waiting_since_s,
        "acknowledged_id": ledger.acknowledged_id,
        "overtaken": [one.document() for one in ledger.overtaken],
        "completed": completed_document(ledger.completed),
        "failure": failure_document(ledger.failure),
        "wish": wish_document(ledger.wish),
    }
    return json.dumps(document, allow_nan=False).encode()


def from_bytes(stored: bytes) -> Ledger:
    """The ledger that was stored; UnreadableLedger says what is wrong."""
    try:
        document = json.loads(stored)
        if document["version"] != VERSION:
            raise UnreadableLedger(f"the stored ledger has version {document['version']}, not {VERSION}")
        return _ledger(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableLedger(f"the stored ledger cannot be read: {error!r}") from error


def wish_document(wish: Wish | None) -> dict[str, Any] | None:
    """The wish as JSON-able data."""
    return None if wish is None else {"targets": counts(wish.targets), "reasons": dict(wish.reasons)}


def completed_document(completed: Completed | None) -> dict[str, Any] | None:
    """What was carried out, as JSON-able data."""
    if completed is None:
        return None
    return {"decision_id": completed.decision_id, "targets": counts(completed.targets)}


def failure_document(failure: Failure | None) -> dict[str, Any] | None:
    """The last failure as JSON-able data."""
    if failure is None:
        return None
    return {"decision_id": failure.decision_id, "reason": failure.reason, "at_s": failure.at_s}


def _decision(decision: ScalingDecision | None) -> dict[str, Any] | None:
    return None if decision is None else decision.document()


def _ledger(document: Mapping[str, Any]) -> Ledger:
    decision, completed = document["decision"], document["completed"]
    failure, wish = document["failure"], document["wish"]
    return Ledger(
        decision=decision and ScalingDecision.of(decision),
        waiting_since_s=float(document["waiting_since_s"]),
        acknowledged_id=int(document["acknowledged_id"]),
        overtaken=tuple(map(ScalingDecision.of, document["overtaken"])),
        completed=completed
        and Completed(decision_id=completed["decision_id"], targets=roles(completed["targets"])),
        failure=failure and Failure(**failure),
        wish=wish and Wish(targets=roles(wish["targets"]), reasons=wish["reasons"]),
    )
