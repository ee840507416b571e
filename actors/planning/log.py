"""The decision log: records under ids that begin at 0 and rise by one, never repeated, across any crash.

A record, its id and the planner's memory are one put under `planner/decisions/ID`: there is no second place
to disagree with it. The next id is one above the highest key, so it is used up exactly when its record is
there. The oldest records are deleted beyond `keep`; since the highest always stays, no id comes back. A
record may be written again under its id, as when its targets are reached. Only the newest memory is read, and
it may be large: the two newest records have one, the second should the first become unreadable.

An entry that cannot be read any more keeps its id and is left out of answers.
"""

import base64
import json
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from actors.collector.measured import Measured
from actors.store import UNPICKLING_ERRORS, Store
from headway.planning.records import DecisionRecord

logger = logging.getLogger(__name__)

PREFIX = "planner/decisions/"
WIDTH = 12
KEEP = 1000
MEMORIES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerMemory:
    """The memory that one tick leaves to the next, also to that of a restarted planner.

    `state` is that of the policy named; `ended` and `met` count the requests that have ended so far and those
    that met their SLO.
    """

    policy: str = ""
    state: Any = None
    ended: float = 0.0
    met: float = 0.0

    @property
    def attainment(self) -> float | None:
        """The share of all requests that met their SLO; None before any has ended."""
        return self.met / self.ended if self.ended > 0 else None

    def counting(self, measured: Measured) -> "PlannerMemory":
        """With one more interval's requests, if it is known how many of them met the SLO.

        An interval weighs as many requests as completed in it or arrived, whichever is more: nothing
        completes in an outage, and it must count all the same.
        """
        counts = [count for count in (measured.completed, measured.requests) if isfinite(count)]
        if not isfinite(measured.attainment) or not counts:
            return self
        ended = max(counts)
        return replace(self, ended=self.ended + ended, met=self.met + measured.attainment * ended)

    def dump(self) -> bytes:
        """Bytes for the store."""
        return pickle.dumps(self)


def load_memory(data: bytes) -> PlannerMemory:
    """The stored memory; empty when this version of Headway cannot read it, which is logged."""
    try:
        memory = pickle.loads(data) if data else PlannerMemory()
        pickle.dumps(memory)  # AttributeError where a class has got a field since, which it would lack
    except UNPICKLING_ERRORS as error:
        logger.warning("the planner's stored state cannot be read, it begins anew: %s", error)
        return PlannerMemory()
    return memory if isinstance(memory, PlannerMemory) else PlannerMemory()


class DecisionLog:
    """Records in a store, with a copy in memory, so that reading costs nothing."""

    def __init__(self, store: Store, keep: int = KEEP) -> None:
        self._store = store
        self._keep = max(1, keep)
        ids = sorted(int(key.removeprefix(PREFIX)) for key in store.keys(PREFIX))
        self._next = ids[-1] + 1 if ids else 0
        self._ids = ids
        self._records: dict[int, DecisionRecord] = {}
        self.memory = b""
        """The memory that was stored with the newest readable record."""
        for number in ids:
            self._restore(number)
        self._prune()

    @property
    def next_id(self) -> int:
        """The id of the next record."""
        return self._next

    @property
    def last(self) -> DecisionRecord | None:
        """The newest record."""
        return self._records[max(self._records)] if self._records else None

    def append(self, record: DecisionRecord, memory: bytes = b"") -> DecisionRecord:
        """Store a record under the next id, which it gets as `id`."""
        numbered = record.model_copy(update={"id": self._next})
        self._put(numbered, memory)
        self._records[self._next] = numbered
        self._ids.append(self._next)
        self.memory = memory
        self._next += 1
        # Written again to drop its memory: only the newest is read, and it may be large.
        self.update(numbered.id - MEMORIES, {})
        self._prune()
        return numbered

    def update(self, number: int, changes: Mapping[str, Any]) -> DecisionRecord | None:
        """Store a record again with changed fields; None when it is no longer kept."""
        if (record := self._records.get(number)) is None:
            return None
        changed = record.model_copy(update=changes)
        self._put(changed, self.memory if number == self._next - 1 else b"")
        self._records[number] = changed
        return changed

    def get(self, number: int) -> DecisionRecord | None:
        """The record of that id, None when there is none."""
        return self._records.get(number)

    def after(self, number: int, limit: int) -> list[DecisionRecord]:
        """At most `limit` records with higher ids, lowest first."""
        ids = sorted(key for key in self._records if key > number)
        return [self._records[key] for key in ids[: max(0, limit)]]

    def _put(self, record: DecisionRecord, memory: bytes) -> None:
        entry = {"record": record.document(), "memory": base64.b64encode(memory).decode()}
        text = json.dumps(entry, allow_nan=False, separators=(",", ":"))
        self._store.put(_key(record.id), text.encode())

    def _restore(self, number: int) -> None:
        data = self._store.get(_key(number))
        try:
            entry = json.loads(data or b"")
            self._records[number] = DecisionRecord.model_validate({**entry["record"], "id": number})
            self.memory = base64.b64decode(entry["memory"])
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("decision %d cannot be read: %s", number, error)

    def _prune(self) -> None:
        while len(self._ids) > self._keep:
            self._store.delete(_key(self._ids[0]))
            self._records.pop(self._ids.pop(0), None)


def _key(number: int) -> str:
    return f"{PREFIX}{number:0{WIDTH}d}"
