"""The stored ledger of advice: written apart from being added to, whole again after a store that failed."""

import json

import pytest

from actors.planning.advice import StoredLedger
from headway.planning.advice.ledger import HOUR_S, Ledger, Row
from tests.stores import FailingStore, MemoryStore

PLACE = "planner/advice"


def row(end_s: float) -> Row:
    return Row(start_s=end_s - 30.0, end_s=end_s, seconds=30.0, stood_gpu_s=240.0, planned_gpu_s=120.0)


def stored(store: MemoryStore) -> list[float]:
    return [each.end_s for each in StoredLedger(store, PLACE).ledger.rows]


def test_rows_are_stored_when_they_are_kept_and_come_back() -> None:
    store = MemoryStore()
    ledger = StoredLedger(store, PLACE)
    assert ledger.last_s is None
    ledger.add(row(30.0))
    assert store.keys() == []
    ledger.keep()
    ledger.add(row(60.0))
    ledger.keep()
    assert stored(store) == [30.0, 60.0]
    assert StoredLedger(store, PLACE).last_s == 60.0
    assert StoredLedger(store, "planner/elsewhere").last_s is None


def test_what_a_store_did_not_take_comes_with_the_next_row_also_of_the_hour_before() -> None:
    store = FailingStore()
    ledger = StoredLedger(store, PLACE)
    ledger.add(row(HOUR_S - 30.0))
    ledger.keep()
    store.fault = OSError("the GCS is away")
    for end_s in (HOUR_S - 1.0, HOUR_S + 29.0):
        ledger.add(row(end_s))
        with pytest.raises(OSError, match="the GCS is away"):
            ledger.keep()
    assert stored(store) == [HOUR_S - 30.0]
    store.fault = None
    ledger.add(row(HOUR_S + 59.0))
    ledger.keep()
    assert stored(store) == [HOUR_S - 30.0, HOUR_S - 1.0, HOUR_S + 29.0, HOUR_S + 59.0]


def test_hours_that_were_put_together_move_once_the_store_is_back() -> None:
    store = FailingStore()
    ledger = StoredLedger(store, PLACE)
    ledger.ledger = Ledger(rows=[row(30.0 + 30.0 * number) for number in range(5759)])
    ledger.add(row(5760 * 30.0))
    ledger.keep()
    assert f"{PLACE}/hours/48" in store.keys(PLACE)
    store.put(f"{PLACE}/hours/0", json.dumps([row(30.0).dump()]).encode())
    store.fault = OSError("the GCS is away")
    ledger.add(row(48.0 * HOUR_S + 30.0))
    with pytest.raises(OSError, match="away"):
        ledger.keep()
    store.fault = None
    # The next hour, so that what could not be moved at this one's first row is.
    ledger.add(row(49.0 * HOUR_S + 30.0))
    ledger.keep()
    assert f"{PLACE}/hours/0" not in store.keys(PLACE)
    found = StoredLedger(store, PLACE).ledger
    assert [each.end_s for each in found.hours] == [HOUR_S - 30.0]
    assert found.hours[0].seconds == pytest.approx(119 * 30.0)
