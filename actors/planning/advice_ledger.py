"""The ledgers of advice in the store, read once and written beside the event loop.

`PLACE/hours/H` has the rows of the hour H since 1970, put again with each row; hours that the ledger has put
together since lie under `PLACE/old`. What the store did not take is put with the next row.
"""

import json
import logging
from collections.abc import Mapping, Sequence

from actors.store import Store
from headway.config import HeadwayConfig
from headway.planning import PoolState, Role
from headway.planning.advice.ledger import Ledger, Row, hour_of

logger = logging.getLogger(__name__)


class StoredLedger:
    """The ledger at a place of `store`; without a store in memory alone. `add` is quick, `keep` writes."""

    def __init__(self, store: Store | None, place: str) -> None:
        self._store = store
        self._hours, self._old = f"{place}/hours/", f"{place}/old"
        self._unkept: frozenset[int] = frozenset()
        self._rolled_up: int | None = None
        self._begun_anew = False
        self.ledger = Ledger()
        if store is not None:
            keys = sorted(store.keys(self._hours), key=self._hour)
            rows = [row for key in keys for row in _rows(store, key)]
            old = [row for row in _rows(store, self._old) if not rows or row.end_s <= rows[0].start_s]
            self.ledger = Ledger(hours=old, rows=rows)

    @property
    def last_s(self) -> float | None:
        """When the last row ended; None before the first."""
        rows = self.ledger.rows or self.ledger.hours
        return rows[-1].end_s if rows else None

    def add(self, row: Row) -> None:
        """One more row, which `keep` stores."""
        self.ledger = self.ledger.add(row)
        self._unkept |= {hour_of(row)}

    def begin_anew(self) -> None:
        """Drop every row."""
        self.ledger, self._unkept, self._begun_anew = Ledger(), frozenset(), True

    def keep(self) -> None:
        """Have the store take what it has not taken yet. Raises what the store raises."""
        if self._store is None:
            return
        if self._begun_anew:
            for key in (*self._store.keys(self._hours), self._old):
                self._store.delete(key)
            self._begun_anew = False
        if not self._unkept:
            return
        ledger, hours = self.ledger, self._unkept
        for hour in sorted(hours):
            mine = [each.dump() for each in ledger.rows if hour_of(each) == hour]
            self._store.put(f"{self._hours}{hour}", json.dumps(mine).encode())
        if self._rolled_up != max(hours):
            self._roll_up(ledger)
            self._rolled_up = max(hours)
        if self.ledger is ledger:
            self._unkept = frozenset()

    def _roll_up(self, ledger: Ledger) -> None:
        """Once an hour: what the ledger has put together meanwhile moves."""
        assert self._store is not None
        self._store.put(self._old, json.dumps([each.dump() for each in ledger.hours]).encode())
        first = hour_of(ledger.rows[0])
        for key in self._store.keys(self._hours):
            if self._hour(key) < first:
                self._store.delete(key)

    def _hour(self, key: str) -> int:
        return int(key.removeprefix(self._hours))


def _rows(store: Store, key: str) -> Sequence[Row]:
    """The stored rows; none where they cannot be read, which is logged."""
    try:
        return [Row.load(each) for each in json.loads(store.get(key) or b"[]")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read and is left out: %s", key, error)
        return []


Fleet = Mapping[Role, int]


class ActedLedger:
    """What acting is compared with, and the rows of it, at `place` of a store.

    The fleet `against` is the one that settings name; else the one that stood there when the dry run ended
    that came before the first action. A planner that acted from its beginning has none. With another fleet
    the rows begin anew.
    """

    def __init__(self, store: Store | None, place: str) -> None:
        self.rows = StoredLedger(store, place)
        self._store, self._key = store, f"{place}/against"
        self._stood: Fleet | None = None
        self.against: Fleet = {}
        if store is not None and (data := store.get(self._key)) is not None:
            self._stood, self.against = _fleets(data, self._key)
        self._kept = self._fleets

    def choose(self, config: HeadwayConfig, pools: Mapping[Role, PoolState], *, watched: bool) -> Fleet:
        """The fleet to compare with; empty where there is none. `watched`: until now it was a dry run."""
        named = {Role(role): count for role, count in config.planner.advice.against.items()}
        if self._stood is None:
            self._stood = {role: pool.desired for role, pool in pools.items()} if watched else {}
        found = named or self._stood
        if set(found) != set(pools) or not any(found.values()):
            return {}
        if found != self.against:
            self.against = found
            self.rows.begin_anew()
        return found

    def keep(self) -> None:
        """Have the store take what it has not taken yet. Raises what the store raises."""
        if self._store is not None and (fleets := self._fleets) != self._kept:
            self._store.put(self._key, json.dumps(fleets).encode())
            self._kept = fleets
        self.rows.keep()

    @property
    def _fleets(self) -> Sequence[Fleet | None]:
        return [self._stood, self.against]


def _fleets(data: bytes, key: str) -> tuple[Fleet | None, Fleet]:
    """What was stored; none where it cannot be read, which is logged."""
    try:
        stood, against = json.loads(data)
        return None if stood is None else _fleet(stood), _fleet(against)
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("%s cannot be read and is left out: %s", key, error)
        return {}, {}


def _fleet(data: Mapping[str, int]) -> Fleet:
    return {Role(role): int(count) for role, count in data.items()}
