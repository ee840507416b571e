"""The rules for decisions, one by one; what any sequence of events keeps is in test_virtual_properties."""

import json

import pytest
from virtual_cases import RULES, TIMEOUT_S, new_ledger

from actors.virtual_connector.coordinator import KEY
from actors.virtual_connector.ledger import (
    BadProposal,
    Rules,
    ScalingDecision,
    UnknownDecision,
    pool_counts,
)
from headway.planning import Role
from tests.clocks import Clock
from tests.stores import MemoryStore


def targets(prefill: int, decode: int) -> dict[str, int]:
    return {"prefill": prefill, "decode": decode}


def complete(kept, decision_id):
    return kept.answer(decision_id)


def fail(kept, decision_id, reason="no nodes"):
    return kept.answer(decision_id, reason)


def issued(kept) -> tuple[int, dict[str, int]]:
    decision = kept.ledger.decision
    return decision.decision_id, {role.value: count for role, count in decision.targets.items()}


def test_a_decision_carries_time_and_reasons():
    kept = new_ledger(clock=Clock(1234.5))
    kept.propose(targets(2, 5), {"summary": "more load", "headroom_s": float("nan")})
    assert kept.ledger.decision.document() == {
        "decision_id": 0,
        "num_prefill": 2,
        "num_decode": 5,
        "targets": targets(2, 5),
        "created_at": 1234.5,
        "reasons": {"summary": "more load", "headroom_s": None},
        "status": "pending",
    }


@pytest.mark.parametrize("answered", [True, False])
def test_equal_targets_make_no_new_decision(answered):
    kept = new_ledger()
    kept.propose(targets(2, 3), {})
    if answered:
        complete(kept, 0)
    assert kept.propose(targets(2, 3), {"summary": "again"}) == {"status": "unchanged", "decision_id": 0}
    assert kept.propose({"decode": 3}, {})["status"] == "unchanged"


def test_a_partial_update_before_any_decision_takes_the_minimum_for_the_rest():
    rules = Rules(floor={Role.PREFILL: 4, Role.DECODE: 2}, scaling_timeout_s=TIMEOUT_S)
    kept = new_ledger(rules=rules)
    kept.propose({"decode": 7}, {})
    assert issued(kept) == (0, targets(4, 7))


def test_a_pending_decision_blocks_and_the_newest_wish_follows_its_answer():
    clock = Clock(100.0)
    kept = new_ledger(clock=clock)
    kept.propose(targets(1, 1), {})
    assert kept.propose(targets(2, 2), {})["status"] == "pending"
    reply = kept.propose(targets(3, 3), {"summary": "newest"})
    assert reply == {
        "status": "pending",
        "decision_id": 0,
        "wish": targets(3, 3),
        "free_at_s": 100.0 + TIMEOUT_S,
    }
    assert issued(kept) == (0, targets(1, 1))
    complete(kept, 0)
    assert issued(kept) == (1, targets(3, 3))
    assert kept.ledger.decision.reasons == {"summary": "newest"}
    assert kept.ledger.wish is None


def test_a_wish_that_returns_to_the_pending_targets_is_taken_back():
    kept = new_ledger()
    kept.propose(targets(1, 1), {})
    kept.propose(targets(2, 2), {})
    assert kept.propose(targets(1, 1), {})["status"] == "unchanged"
    complete(kept, 0)
    assert issued(kept) == (0, targets(1, 1))


def test_the_timeout_frees_the_way_to_the_second():
    clock = Clock(100.0)
    kept = new_ledger(clock=clock)
    kept.propose(targets(1, 1), {})
    kept.propose(targets(2, 2), {})
    assert kept.due_in_s == TIMEOUT_S
    clock.now_s += TIMEOUT_S - 0.001
    kept.elapse()
    assert issued(kept)[0] == 0
    clock.now_s = 100.0 + TIMEOUT_S
    kept.elapse()
    assert issued(kept) == (1, targets(2, 2))
    assert kept.ledger.pending
    assert kept.due_in_s is None


def test_a_timed_out_decision_is_not_issued_again_for_the_same_targets():
    clock = Clock()
    kept = new_ledger(clock=clock)
    kept.propose(targets(1, 1), {})
    clock.now_s += 2 * TIMEOUT_S
    assert kept.propose(targets(1, 1), {})["status"] == "unchanged"
    assert kept.ledger.pending


def test_an_overtaken_decision_may_still_be_answered_and_leaves_the_newer_one_pending():
    clock = Clock()
    kept = new_ledger(clock=clock)
    kept.propose(targets(1, 2), {})
    clock.now_s += TIMEOUT_S
    kept.propose(targets(1, 3), {})
    assert complete(kept, 0) == {"decision_id": 0, "counted": True, "acknowledged_id": 0}
    assert kept.ledger.pending
    assert kept.ledger.completed.targets == {Role.PREFILL: 1, Role.DECODE: 2}


def test_many_overtaken_decisions_are_bounded():
    clock = Clock()
    kept = new_ledger(clock=clock)
    for number in range(40):
        kept.propose(targets(1, number), {"text": "x" * 1000})
        clock.now_s += TIMEOUT_S
    assert len(kept.ledger.overtaken) == 16
    assert complete(kept, 0)["counted"]
    assert kept.ledger.completed is None
    complete(kept, 38)
    assert kept.ledger.completed.targets == {Role.PREFILL: 1, Role.DECODE: 38}
    assert kept.ledger.overtaken == ()


def test_an_old_id_never_lowers_the_acknowledged_one():
    kept = new_ledger()
    for number in range(3):
        kept.propose(targets(1, number), {})
        complete(kept, number)
    assert complete(kept, 0) == {"decision_id": 0, "counted": False, "acknowledged_id": 2}
    assert fail(kept, 1) == {"decision_id": 1, "counted": False, "acknowledged_id": 2}
    assert kept.ledger.failure is None


@pytest.mark.parametrize("decision_id", [-1, 1, 99, True, "0", 0.0, None])
def test_an_id_that_was_never_issued_is_an_error(decision_id):
    kept = new_ledger()
    kept.propose(targets(1, 1), {})
    with pytest.raises(UnknownDecision, match=r"was never issued: the newest is 0$"):
        complete(kept, decision_id)
    assert kept.ledger.acknowledged_id == -1


def test_before_the_first_decision_every_id_is_unknown():
    with pytest.raises(UnknownDecision, match="decision 0 was never issued: there is none yet"):
        fail(new_ledger(), 0)


def test_a_failure_frees_the_way_and_is_seen():
    kept = new_ledger(clock=Clock(50.0))
    kept.propose(targets(1, 1), {})
    kept.propose(targets(2, 2), {})
    assert fail(kept, 0, "quota")["counted"]
    assert issued(kept) == (1, targets(2, 2))
    failure = kept.ledger.failure
    assert (failure.decision_id, failure.reason, failure.at_s) == (0, "quota", 50.0)


def test_the_first_answer_counts():
    kept = new_ledger()
    kept.propose(targets(1, 1), {})
    fail(kept, 0)
    assert not complete(kept, 0)["counted"]
    assert (kept.ledger.decision.status, kept.ledger.completed) == ("failed", None)


def test_a_failure_is_forgotten_when_a_later_decision_is_carried_out():
    kept = new_ledger()
    kept.propose(targets(1, 1), {})
    fail(kept, 0)
    kept.propose(targets(1, 1), {})
    complete(kept, 1)
    assert kept.ledger.failure is None


def test_an_unchanged_ledger_is_not_written_again():
    class Counting(MemoryStore):
        puts = 0

        def put(self, key: str, value: bytes) -> None:
            self.puts += 1
            super().put(key, value)

    store = Counting()
    kept = new_ledger(store)
    kept.propose(targets(1, 1), {})
    for _ in range(3):
        kept.propose(targets(1, 1), {})
        kept.elapse()
    assert store.puts == 1


@pytest.mark.parametrize("stored", [b"nonsense", b"[]", b"{}", b'{"version": 1}', b'{"version": 99}'])
def test_after_a_ledger_that_cannot_be_read_ids_are_above_all_that_were_issued(stored):
    store = MemoryStore()
    store.put(KEY, stored)
    kept = new_ledger(store)
    assert kept.propose(targets(1, 1), {})["decision_id"] == int(kept._clock()) + 1
    assert [key.rpartition("/")[2] for key in store.keys("aside/")] == ["ledger"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mixed": 1}, "there is no mixed pool; the pools are prefill, decode"),
        ({"prefil": 1}, "there is no prefil pool; the pools are prefill, decode"),
        ({"decode": -1}, "targets.decode: -1 is no replica count"),
        ({"decode": 1.5}, "targets.decode: 1.5 is no replica count"),
        ({"decode": True}, "targets.decode: True is no replica count"),
        ({"decode": 10**9}, "is no replica count"),
    ],
)
def test_targets_that_make_no_sense_are_refused(asked, message):
    kept = new_ledger()
    with pytest.raises(BadProposal, match=message):
        kept.propose(asked, {})
    assert kept.ledger.decision is None


def test_a_mixed_pool_has_neither_of_the_two_numbers():
    kept = new_ledger(rules=Rules(floor={Role.MIXED: 1}, scaling_timeout_s=TIMEOUT_S))
    kept.propose({"mixed": 3}, {})
    document = kept.ledger.decision.document()
    assert (document["num_prefill"], document["num_decode"]) == (None, None)
    assert document["targets"] == {"mixed": 3}


def test_a_change_of_pools_goes_on_with_the_next_id():
    store = MemoryStore()
    old = new_ledger(store)
    old.propose(targets(2, 2), {})
    old.propose(targets(3, 3), {})
    kept = new_ledger(store, rules=Rules(floor={Role.MIXED: 2}, scaling_timeout_s=TIMEOUT_S))
    assert kept.propose({}, {})["status"] == "pending"
    complete(kept, 0)
    assert issued(kept) == (1, {"mixed": 2})


def test_a_decision_is_the_same_after_a_trip_through_json():
    decision = ScalingDecision(
        decision_id=7, targets={Role.MIXED: 3}, created_at=12.25, reasons={"a": [1]}, status="failed"
    )
    assert ScalingDecision.of(json.loads(json.dumps(decision.document()))) == decision


def counts(kept) -> dict[str, tuple[int, int, int, int]]:
    found = pool_counts(kept.ledger, RULES)
    return {role.value: (c.desired, c.starting, c.ready, c.draining) for role, c in found.items()}


def test_answers_stand_for_replicas():
    kept = new_ledger()
    assert counts(kept) == {"prefill": (1, 0, 1, 0), "decode": (1, 0, 1, 0)}
    kept.propose(targets(1, 4), {})
    assert counts(kept)["decode"] == (4, 3, 1, 0)
    complete(kept, 0)
    assert counts(kept)["decode"] == (4, 0, 4, 0)
    kept.propose(targets(1, 2), {})
    assert counts(kept)["decode"] == (2, 0, 2, 2)
    fail(kept, 1)
    assert counts(kept)["decode"] == (4, 0, 4, 0)
