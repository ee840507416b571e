"""The decision log under crashes: ids from 0, rising by one, no gap, no repeat, nothing half written."""

import pickle

from hypothesis import given
from hypothesis import strategies as st

from actors.planning.log import PREFIX, DecisionLog, PlannerMemory, load_memory
from headway.planning.records import DecisionRecord, IntervalSpan
from tests.stores import MemoryStore


class CrashError(Exception):
    """The process is gone."""


class CrashingStore(MemoryStore):
    """Loses the process before or after the given write, counting puts and deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.after = False

    def plan(self, left: int | None, after: bool) -> None:
        self.left, self.after = left, after

    def put(self, key: str, value: bytes) -> None:
        self._write(lambda: MemoryStore.put(self, key, value))

    def delete(self, key: str) -> None:
        self._write(lambda: MemoryStore.delete(self, key))

    def _write(self, write) -> None:
        if self.left == 0:
            if self.after:
                write()
            raise CrashError
        if self.left is not None:
            self.left -= 1
        write()


def record(number: int = 0) -> DecisionRecord:
    interval = IntervalSpan(start_s=0.0, end_s=1.0)
    return DecisionRecord(tick=number, created_at=1.0, interval=interval, targets={}, reached_at=None)


lives = st.lists(
    st.tuples(st.integers(0, 12), st.booleans(), st.lists(st.sampled_from(["append", "update"]), max_size=9)),
    max_size=8,
)


@given(lives=lives, keep=st.integers(1, 5))
def test_ids_rise_by_one_across_any_crash(lives, keep: int) -> None:
    store, ever = CrashingStore(), dict[int, int]()
    made = 0
    for left, after, steps in lives:
        store.plan(left, after)
        try:
            log = DecisionLog(store, keep=keep)
            for step in steps:
                if step == "append":
                    made += 1
                    appended = log.append(record(made), PlannerMemory(ended=float(made)).dump())
                    assert ever.setdefault(appended.id, made) == made
                elif log.last is not None:
                    log.update(log.last.id, {"reached_at": 1.0})
        except CrashError:
            pass
        store.plan(None, False)
        seen = DecisionLog(store, keep=keep)
        for item in seen.after(-1, 100):
            assert ever.setdefault(item.id, item.tick) == item.tick
        assert sorted(ever) == list(range(seen.next_id))
        assert len(store.keys(PREFIX)) <= keep
        if seen.last is not None:
            assert seen.last.id == seen.next_id - 1
            assert load_memory(seen.memory).ended == seen.last.tick


def test_old_records_go_and_their_ids_never_come_back() -> None:
    store = MemoryStore()
    log = DecisionLog(store, keep=3)
    for number in range(5):
        assert log.append(record(number)).id == number
    assert [item.id for item in log.after(-1, 10)] == [2, 3, 4]
    assert log.get(1) is None
    assert log.update(1, {"reached_at": 2.0}) is None
    assert DecisionLog(store, keep=1).next_id == 5
    assert [item.id for item in DecisionLog(store, keep=1).after(-1, 10)] == [4]


def test_pages_are_lowest_first_and_bounded() -> None:
    log = DecisionLog(MemoryStore())
    for number in range(6):
        log.append(record(number))
    assert [item.id for item in log.after(1, 3)] == [2, 3, 4]
    assert log.after(5, 3) == []
    assert log.after(-1, 0) == []


def test_an_unreadable_entry_keeps_its_id_and_is_left_out() -> None:
    store = MemoryStore()
    log = DecisionLog(store)
    for number in range(3):
        log.append(record(number), PlannerMemory(ended=float(number)).dump())
    store.put(f"{PREFIX}{2:012d}", b"\x00 not json")
    again = DecisionLog(store)
    assert [item.id for item in again.after(-1, 10)] == [0, 1]
    assert again.append(record(9)).id == 3


def test_the_store_does_not_grow_by_the_planners_memory() -> None:
    store, large = MemoryStore(), b"x" * 100_000
    log = DecisionLog(store)
    for number in range(20):
        log.append(record(number), large)
    assert sum(len(store.get(key) or b"") for key in store.keys(PREFIX)) < 3 * len(large)
    again = DecisionLog(store)
    assert again.memory == large
    assert [item.tick for item in again.after(-1, 100)] == list(range(20))
    store.put(f"{PREFIX}{19:012d}", b"\x00 not json")
    assert DecisionLog(store).memory == large


def test_a_memory_that_cannot_be_read_is_an_empty_one() -> None:
    assert load_memory(b"") == PlannerMemory()
    assert load_memory(b"\x80\x04nonsense") == PlannerMemory()
    assert load_memory(pickle.dumps(PlannerMemory(policy="headway"))) == PlannerMemory()
    assert load_memory(PlannerMemory(policy="static", met=2.0).dump()).met == 2.0
