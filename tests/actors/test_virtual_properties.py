"""Any sequence of events, with the process dying anywhere in it: what must hold whatever happens.

The model knows what was last asked for and what anyone was told; it restates the promises, not the code. A
death takes place before the put, between put and reply, or between two events; then a new ledger reads the
store.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from virtual_cases import RULES, TIMEOUT_S, Killed, MortalStore

from actors.virtual_connector.coordinator import StoredLedger
from actors.virtual_connector.ledger import UnknownDecision
from tests.clocks import Clock

POOLS = ("prefill", "decode")
COUNTS = st.integers(0, 3)
TARGETS = st.fixed_dictionaries({}, optional=dict.fromkeys(POOLS, COUNTS))
DEATHS = st.sampled_from([None, None, None, "before", "after"])
IDS = st.integers(-2, 40)


class VirtualConnector(RuleBasedStateMachine):
    """One ledger, the events that reach it, and what everybody has seen of it."""

    @initialize()
    def begin(self) -> None:
        self.store = MortalStore()
        self.clock = Clock(1_000_000.0)
        self.ledger = self.opened()
        self.asked = {role.value: count for role, count in RULES.floor.items()}
        self.proposed = False
        self.told: dict[int, tuple[dict[str, int], float]] = {}
        self.acknowledged = -1
        self.since_s = self.clock.now_s
        self.look()

    def opened(self) -> StoredLedger:
        return StoredLedger(self.store, RULES, self.clock)

    def step(self, dies: str | None, event) -> bool:
        """Run the event; whether it reached the store if the process died of it, else True."""
        self.store.dies = dies
        try:
            event()
        except Killed:
            self.ledger = self.opened()
            return dies == "after"
        finally:
            self.store.dies = None
        return True

    def look(self) -> None:
        """What any client sees now is remembered: it must never be contradicted."""
        ledger = self.ledger.ledger
        if ledger.decision is None:
            assert not self.told
            return
        document = ledger.decision.document()
        newest, seen = document["decision_id"], (document["targets"], document["created_at"])
        assert newest in (len(self.told) - 1, len(self.told)), "ids rise by one"
        if newest == len(self.told):
            answered = ledger.acknowledged_id >= newest - 1
            assert answered or self.clock.now_s >= self.since_s + TIMEOUT_S, "one at a time"
            self.since_s = self.clock.now_s
        assert self.told.setdefault(newest, seen) == seen, "an id means one decision for ever"
        assert ledger.acknowledged_id >= self.acknowledged, "answers are never taken back"
        self.acknowledged = ledger.acknowledged_id

    @rule(named=TARGETS, dies=DEATHS)
    def propose(self, named, dies) -> None:
        before = self.ledger.ledger
        if not self.step(dies, lambda: self.ledger.propose(named, {"named": named})):
            assert self.ledger.ledger == before
            return
        self.asked |= named
        self.proposed = True
        issued = self.ledger.ledger.last_id - before.last_id
        first_or_failed = before.decision is None or before.decision.status == "failed"
        assert issued == 1 if first_or_failed else issued in (0, 1)
        self.look()

    @rule(decision_id=IDS, reason=st.none() | st.text(max_size=5), dies=DEATHS)
    def answer(self, decision_id, reason, dies) -> None:
        before = self.ledger.ledger
        if not 0 <= decision_id <= before.last_id:
            try:
                self.ledger.answer(decision_id, reason)
            except UnknownDecision:
                assert self.ledger.ledger == before
                return
            raise AssertionError(f"{decision_id} was never issued")
        if self.step(dies, lambda: self.ledger.answer(decision_id, reason)):
            assert self.ledger.ledger.acknowledged_id == max(decision_id, before.acknowledged_id)
        else:
            assert self.ledger.ledger == before
        self.look()

    @precondition(lambda self: self.ledger.ledger.pending)
    @rule(failed=st.booleans(), dies=DEATHS)
    def answer_the_newest(self, failed, dies) -> None:
        self.answer(self.ledger.ledger.last_id, "broken" if failed else None, dies)

    @rule(seconds=st.sampled_from([0.0, 0.5, TIMEOUT_S / 2, TIMEOUT_S - 0.5, TIMEOUT_S, 1e6]), dies=DEATHS)
    def time_passes(self, seconds, dies) -> None:
        self.clock.now_s += seconds
        self.step(dies, self.ledger.elapse)
        self.look()

    @rule(seconds=st.sampled_from([0.001, TIMEOUT_S / 2, 1e5]), dies=DEATHS)
    def the_clock_is_set_back(self, seconds, dies) -> None:
        self.clock.now_s -= seconds
        self.since_s = min(self.since_s, self.clock.now_s)
        self.step(dies, self.ledger.elapse)
        self.look()

    @rule()
    def killed(self) -> None:
        before = self.ledger.ledger
        self.ledger = self.opened()
        assert self.ledger.ledger == before

    @invariant()
    def what_was_asked_for_is_issued_or_wished(self) -> None:
        ledger = self.ledger.ledger
        latest = ledger.wish or ledger.decision
        assert (latest is None) == (not self.proposed)
        if latest is not None:
            assert {role.value: count for role, count in latest.targets.items()} == self.asked

    @invariant()
    def a_wish_waits_only_while_something_is_pending(self) -> None:
        ledger = self.ledger.ledger
        if ledger.wish is not None:
            assert ledger.pending
            assert ledger.wish.targets != ledger.decision.targets

    @invariant()
    def no_wait_is_longer_than_the_timeout(self) -> None:
        self.ledger.elapse()
        self.look()
        if self.ledger.due_in_s is not None:
            assert 0.0 < self.ledger.due_in_s <= TIMEOUT_S

    @invariant()
    def nothing_is_pending_below_an_answer(self) -> None:
        ledger = self.ledger.ledger
        assert all(one.decision_id > ledger.acknowledged_id for one in ledger.overtaken)
        if ledger.decision is not None:
            assert (ledger.decision.status == "pending") == ledger.pending


VirtualConnector.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestVirtualConnector = VirtualConnector.TestCase
