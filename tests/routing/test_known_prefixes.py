"""Prefix caches by what engines say of them: in the index, and in the router's choices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import Role
from headway.engine import EngineRules
from headway.routing.fleet.affinity import CONFIRM_S, STALE_S, PrefixIndex
from headway.routing.types import KnownBlocks, ReplicaLoad, ReplicaUpdate
from tests.routing.routers import finish, placed, request, router

keys = st.frozensets(st.integers(0, 9))


def index(*known: int, capacity: int = 100) -> PrefixIndex:
    made = PrefixIndex(capacity)
    assert made.report(0, KnownBlocks(sequence=1, held=known))
    return made


def settle(made: PrefixIndex, now_s: float, wait_s: float = CONFIRM_S) -> None:
    """One look, and another so much later."""
    made.settle(now_s)
    made.settle(now_s + wait_s)


def test_what_an_engine_says_takes_the_place_of_the_estimate() -> None:
    made = PrefixIndex(100)
    made.insert(0, (1, 2, 3))
    assert (made.source(0), made.run_at(0, (1, 2, 3))) == ("estimate", 3)
    assert made.report(0, KnownBlocks(sequence=7, held=(1, 9)))
    # What was placed may be on its way; an engine that is silent of it for long does not have it.
    assert (made.source(0), made.run_at(0, (1, 2, 3))) == ("events", 3)
    settle(made, 0.0)
    assert made.run_at(0, (1, 2, 3)) == 1
    assert made.run_at(0, (9,)) == 1
    made.forget(0)
    assert (len(made), made.source(0)) == (0, "estimate")


def test_a_prompt_is_coming_until_it_is_confirmed_or_late() -> None:
    made = index(1)
    made.insert(0, (1, 2, 3))
    settle(made, 0.0, 1000.0)
    assert made.run_at(0, (1, 2, 3)) == 3, "it waits its turn there"
    made.computed(0, (1, 2, 3))
    assert made.report(0, KnownBlocks(sequence=2, since=1, held=(2,)))
    settle(made, 2000.0)
    assert made.run_at(0, (1, 2, 3)) == 2
    assert made.report(0, KnownBlocks(sequence=3, since=2, dropped=(1,)))
    assert made.run_at(0, (1, 2, 3)) == 0
    assert made.runs((1, 2, 3), 64) is None


def test_news_is_taken_once_from_whoever_brings_it() -> None:
    made = index(1)
    for _ in range(2):
        assert made.report(0, KnownBlocks(sequence=5, since=1, held=(2,), dropped=(1,)))
    # Another gateway, which has asked less often, and has an old snapshot besides.
    assert made.report(0, KnownBlocks(sequence=3, since=1, held=(1, 2)))
    assert made.report(0, KnownBlocks(sequence=4, held=(1, 2)))
    assert made.report(0, KnownBlocks(sequence=6, since=2, held=(2, 3), dropped=(1,)))
    assert [made.run_at(0, (key,)) for key in (1, 2, 3)] == [0, 1, 1]
    assert not made.report(0, KnownBlocks(sequence=9, since=8, held=(4,))), "a gap"
    assert made.report(0, KnownBlocks(sequence=9, held=(4,)))
    assert [made.run_at(0, (key,)) for key in (2, 3, 4)] == [0, 0, 1]


@pytest.mark.parametrize("silent", [True, False])
def test_an_engine_that_no_longer_knows_is_estimated_from_what_it_knew(silent: bool) -> None:
    made = index(1, 2)
    made.heard(10.0, 0, 1)
    settle(made, 10.0, STALE_S)
    assert made.source(0) == "events", "there was no news"
    made.heard(50.0, 0, 2 if silent else None)
    settle(made, 50.0, STALE_S)
    assert (made.source(0), made.run_at(0, (1, 2))) == ("estimate", 2)
    made.insert(0, (5, 6))
    assert made.run_at(0, (5, 6)) == 2
    assert made.report(0, KnownBlocks(sequence=4, held=(5,)))
    assert made.source(0) == "events"


def test_the_estimate_has_the_size_that_the_engine_said() -> None:
    made = PrefixIndex(0, block_tokens=10)
    made.insert(0, (1, 2))
    assert (made.source(0), len(made)) == ("", 0)
    assert made.report(0, KnownBlocks(sequence=1, held=(1, 2, 3, 4), capacity_tokens=30))
    made.heard(0.0, 0, None)
    assert (made.source(0), len(made)) == ("estimate", 3)


def test_a_size_below_nothing_is_not_believed() -> None:
    made = PrefixIndex(1)
    assert made.report(0, KnownBlocks(sequence=1, held=(1, 2), capacity_tokens=-5))
    made.heard(0.0, 0, None)
    assert (made.source(0), len(made)) == ("estimate", 1)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("icrhns"), keys, keys), max_size=40))
def test_no_order_of_events_leaves_bits_behind(
    steps: list[tuple[int, str, frozenset[int], frozenset[int]]],
) -> None:
    made = PrefixIndex(4)
    for number, (slot, what, some, others) in enumerate(steps, start=1):
        match what:
            case "i":
                made.insert(slot, sorted(some))
            case "c":
                made.computed(slot, sorted(some))
            case "r":
                made.report(slot, KnownBlocks(sequence=number, held=tuple(some)))
            case "n":
                news = KnownBlocks(
                    sequence=number,
                    since=max(0, number - 3),
                    held=tuple(some - others),
                    dropped=tuple(others),
                )
                made.report(slot, news)
            case "h":
                made.heard(float(number), slot, None if len(some) == 1 else number)
            case "s":
                made.settle(10.0 * number)
        runs = [made.runs((key,), 64) for key in range(10)]
        columns = np.array([np.zeros(64) if run is None else run for run in runs])
        assert columns[:, :4].tolist() == [[made.run_at(at, (key,)) for at in range(4)] for key in range(10)]
    for slot in range(4):
        made.forget(slot)
    assert len(made) == 0


RULES = EngineRules(chunk_tokens=2048, prefix_cache_tokens=100_000)
BLOCKS = (1, 2)


def say(made, now_s: float, replica: str, blocks: KnownBlocks) -> None:
    made.replica_changed(now_s, ReplicaUpdate(replica=replica, role=Role.MIXED, blocks=blocks))


def test_the_router_goes_where_an_engine_says_that_the_prompt_is() -> None:
    made = router("prefix", rules=RULES)
    say(made, 0.0, "mixed-1", KnownBlocks(sequence=3, held=BLOCKS))
    found = placed(made.submit(1.0, request("a", input_tokens=1100, blocks=BLOCKS)))
    assert (found.decode_replica, found.cached_tokens, found.cached_by) == ("mixed-1", 1024, "events")
    finish(made, "a", 2.0)
    say(made, 3.0, "mixed-1", KnownBlocks(sequence=4, since=3, dropped=BLOCKS))
    gone = placed(made.submit(4.0, request("b", input_tokens=1100, blocks=BLOCKS)))
    assert gone.cached_tokens == 0
    by_name = {gone.decode_replica: gone.cached_by, found.decode_replica: found.cached_by}
    assert by_name["mixed-1"] == "events"


def test_a_request_that_left_before_its_prompt_was_computed_is_not_expected_for_ever() -> None:
    made = router("prefix", count=1, rules=RULES)
    say(made, 0.0, "mixed-0", KnownBlocks(sequence=0))
    made.submit(1.0, request("a", input_tokens=1100, blocks=BLOCKS))
    made.failed(2.0, "a", retry=False)
    made.expire(10.0)
    assert placed(made.submit(10.5, request("b", input_tokens=1100, blocks=BLOCKS))).cached_tokens == 1024
    made.failed(11.0, "b", retry=False)
    made.expire(20.0)
    made.expire(30.0)
    assert placed(made.submit(31.0, request("c", input_tokens=1100, blocks=BLOCKS))).cached_tokens == 0


def test_news_that_cannot_be_used_is_asked_for_in_full() -> None:
    made = router("prefix", rules=RULES)
    say(made, 0.0, "mixed-1", KnownBlocks(sequence=3, since=2, held=BLOCKS))
    assert made.take_unread() == ["mixed-1"]
    assert made.take_unread() == []


def test_a_load_report_without_a_sequence_ends_it() -> None:
    made = router("prefix", count=1, rules=RULES)
    say(made, 0.0, "mixed-0", KnownBlocks(sequence=3, held=BLOCKS))
    load = ReplicaLoad(running=0, waiting=0, kv_usage=0.0)
    update = ReplicaUpdate(replica="mixed-0", role=Role.MIXED, load=load, blocks_at=3)
    made.replica_changed(1.0, update)
    assert placed(made.submit(1.0, request("a", blocks=BLOCKS))).cached_by == "events"
    made.replica_changed(2.0, ReplicaUpdate(replica="mixed-0", role=Role.MIXED, load=load))
    assert placed(made.submit(2.0, request("b", blocks=BLOCKS))).cached_by == "estimate"
