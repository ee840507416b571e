"""The waiting queue against a plain model, and its stated order."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.routing import RequestSlo, RouteRequest, RoutingError
from headway.routing.queue.fair_shares import ALLOWANCE, TenantShares
from headway.routing.queue.held_lines import RequestPattern, UrgencyQueue, WaitingRequest
from tests.memory import grown_bytes

PATTERNS = [RequestPattern("m", 5, 5), RequestPattern("m", 9, 5), RequestPattern("m", 9, 2)]


def empty(**weights: float) -> UrgencyQueue:
    return UrgencyQueue(TenantShares(lambda tenant: weights.get(tenant, 1.0)))


def entry(
    name: str, *, pattern=0, enqueued=0.0, start_by=inf, expires=inf, critical=False, tenant=""
) -> WaitingRequest:
    request = RouteRequest(
        tenant=tenant,
        request_id=name,
        arrival_s=enqueued,
        input_tokens=10,
        max_tokens=10,
        slo=RequestSlo(ttft_s=1.0),
        critical=critical,
    )
    return WaitingRequest(
        request=request,
        pattern=PATTERNS[pattern],
        enqueued_s=enqueued,
        start_by_s=start_by,
        expires_s=expires,
    )


def waiting(*entries: WaitingRequest) -> UrgencyQueue:
    queue = empty()
    for one in entries:
        queue.push(one)
    return queue


def names(entries: Iterable[WaitingRequest]) -> list[str]:
    return [one.request.request_id for one in entries]


def drained(queue: UrgencyQueue, now_s: float) -> list[str]:
    """The order in which all leave when there is room for everybody."""
    left = []
    for one in queue.ordered(now_s):
        queue.remove(one.request.request_id)
        left.append(one)
    return names(left)


def test_the_least_slack_goes_first_across_patterns():
    queue = waiting(
        entry("late", start_by=9.0),
        entry("soon", pattern=1, start_by=2.0),
        entry("middle", pattern=2, start_by=5.0),
        entry("soonest", start_by=1.0),
    )
    assert names(queue.ordered(0.0)) == ["soonest", "soon", "middle"]
    assert drained(queue, 0.0) == ["soonest", "soon", "middle", "late"]


def test_what_is_lost_goes_after_what_can_be_saved_in_order_of_coming():
    entries = [
        entry("lost second", enqueued=1.0, start_by=2.0),
        entry("lost first", pattern=1, enqueued=0.5, start_by=4.0),
        entry("saved", pattern=2, enqueued=3.0, start_by=50.0),
        entry("no slo", pattern=2, enqueued=3.5),
    ]
    assert drained(waiting(*entries), 5.0) == ["saved", "no slo", "lost first", "lost second"]


def test_the_last_moment_still_counts_as_saved():
    assert drained(waiting(entry("a", start_by=2.0), entry("b", pattern=1, start_by=9.0)), 2.0) == ["a", "b"]
    assert drained(waiting(entry("a", start_by=2.0), entry("b", pattern=1, start_by=9.0)), 2.1) == ["b", "a"]


def test_without_an_slo_the_end_of_patience_is_the_deadline():
    queue = waiting(entry("promised", start_by=8.0), entry("patient", pattern=1, expires=6.0))
    assert names(queue.ordered(0.0)) == ["patient", "promised"]


def test_equals_go_by_coming():
    entries = [entry(str(number), pattern=number % 3, start_by=7.0) for number in range(12)]
    assert drained(waiting(*entries), 0.0) == [str(number) for number in range(12)]


def test_a_queue_whose_head_stays_is_passed_over_and_comes_again():
    queue = waiting(
        entry("big", start_by=1.0),
        entry("behind big", start_by=2.0),
        entry("small", pattern=1, start_by=3.0),
        entry("next small", pattern=1, start_by=4.0),
    )
    asked = []
    for one in queue.ordered(0.0):
        asked.append(one)
        if one.pattern == PATTERNS[1]:
            queue.remove(one.request.request_id)
    assert names(asked) == ["big", "small", "next small"]
    assert names(queue.ordered(0.0)) == ["big"]


def test_an_iteration_that_was_left_hides_nothing():
    queue = waiting(entry("a", start_by=1.0), entry("b", pattern=1, start_by=2.0))
    left = queue.ordered(0.0)
    assert names([next(left), next(left)]) == ["a", "b"]
    assert names(queue.ordered(0.0)) == ["a", "b"]


def test_critical_ones_go_first_while_they_can_be_saved():
    queue = waiting(
        entry("plain", start_by=4.0),
        entry("lost", start_by=1.0, critical=True),
        entry("critical", start_by=5.0, critical=True),
    )
    assert names(queue.ordered(2.0)) == ["critical", "plain", "lost"]


def test_a_tenant_that_is_ahead_goes_last_however_urgent():
    shares = TenantShares(lambda _: 1.0)
    queue = UrgencyQueue(shares)
    queue.push(entry("greedy", start_by=1.0, tenant="a", critical=True))
    queue.push(entry("modest", start_by=9.0, tenant="b"))
    assert names(queue.ordered(0.0)) == ["greedy", "modest"]
    shares.served("a", 1e6)
    queue.served("a")
    assert names(queue.ordered(0.0)) == ["modest", "greedy"]


def served_of_keys(queue: UrgencyQueue, shares: TenantShares, rounds: int) -> Counter[str]:
    """How much of what there was each tenant got."""
    got: Counter[str] = Counter()
    for _ in range(rounds):
        found = queue.first()
        assert found is not None
        one = found[1].request
        queue.remove(one.request_id)
        shares.served(one.tenant, 1000.0)
        queue.served(one.tenant)
        got[one.tenant] += 1
    return got


def test_a_key_that_makes_up_users_gets_no_more_than_another():
    shares = TenantShares(lambda _: 1.0)
    queue = UrgencyQueue(shares)
    for number in range(1000):
        queue.push(entry(f"many-{number}", start_by=1.0, tenant=f"many/{number}", critical=True))
        queue.push(entry(f"one-{number}", start_by=9.0, tenant="one/only"))
    got = served_of_keys(queue, shares, 400)
    assert got["one/only"] >= 200 - ALLOWANCE / 1000.0
    assert max(got[name] for name in got if name != "one/only") == 1


def test_users_of_a_key_share_evenly():
    shares = TenantShares(lambda tenant: 3.0 if tenant.startswith("key") else 1.0)
    queue = UrgencyQueue(shares)
    for number in range(300):
        queue.push(entry(f"a-{number}", start_by=1.0, tenant="key/a"))
        queue.push(entry(f"b-{number}", start_by=9.0, tenant="key/b"))
        queue.push(entry(f"c-{number}", start_by=5.0, tenant="other"))
    got = served_of_keys(queue, shares, 400)
    few = ALLOWANCE / 1000.0 + 1.0
    assert got["key/a"] + got["key/b"] == pytest.approx(300.0, abs=4 * few)
    assert got["key/a"] == pytest.approx(got["key/b"], abs=3 * few + 1.0)


def test_of_a_full_queue_the_youngest_of_the_longest_line_makes_way():
    queue = waiting(
        entry("old", tenant="a"),
        entry("young", tenant="a"),
        entry("other", pattern=1, tenant="a"),
        entry("b", tenant="b"),
    )
    assert queue.last_of("a") == "young"


def test_due_takes_out_whose_patience_has_ended():
    queue = waiting(
        entry("b", expires=4.0), entry("a", pattern=1, expires=3.0), entry("c", expires=5.0), entry("d")
    )
    assert queue.next_due_s == 3.0
    assert names(queue.due(2.9)) == []
    assert names(queue.due(4.0)) == ["a", "b"]
    assert (queue.next_due_s, len(queue), "a" in queue, "c" in queue) == (5.0, 2, False, True)
    assert names(queue.due(9.0)) == ["c"]
    assert (queue.next_due_s, len(queue), "d" in queue) == (inf, 1, True)


def test_nobody_waits_twice_and_strangers_are_none():
    queue = waiting(entry("a"))
    with pytest.raises(RoutingError, match="'a' waits already"):
        queue.push(entry("a"))
    assert queue.remove("stranger") is None
    assert queue.remove("a") is not None
    assert queue.remove("a") is None
    queue.push(entry("a"))
    assert len(queue) == 1


def test_garbage_is_bounded():
    """Whoever leaves from the middle, nothing of it stays but a multiple of who waits."""
    queue = empty()

    def come(first: int, last: int) -> None:
        for number in range(first, last):
            queue.push(entry(str(number), pattern=number % 3, start_by=float(number), expires=1e4 + number))
            if number >= 100:
                assert queue.remove(str(number - 1)) is not None

    held = grown_bytes(lambda: come(0, 100))

    assert grown_bytes(lambda: come(100, 5000)) < held
    assert len(queue) == 100


TIMES = st.one_of(st.floats(0, 20), st.just(inf), st.integers(0, 20).map(float))


class AgainstPlainLists(RuleBasedStateMachine):
    """The same events on the queue and on a list that is sorted anew for each question."""

    @initialize()
    def begin(self):
        self.now, self.count = 0.0, 0
        self.queue = empty()
        self.plain: dict[str, WaitingRequest] = {}

    @rule(
        pattern=st.integers(0, 2),
        start_in=TIMES,
        patience=TIMES,
        critical=st.booleans(),
        output_tokens=st.sampled_from([1.0, 100.0, 1e4]),
    )
    def push(self, pattern, start_in, patience, critical, output_tokens):
        self.count += 1
        one = entry(
            f"{self.count}",
            pattern=pattern,
            enqueued=self.now,
            start_by=self.now + start_in - 5.0,
            expires=self.now + patience,
            critical=critical,
        )
        one = replace(one, output_tokens=output_tokens)
        self.queue.push(one)
        self.plain[one.request.request_id] = one

    @rule(choice=st.integers(0, 10**6))
    def remove(self, choice):
        name = str(choice % (self.count + 1))
        assert self.queue.remove(name) == self.plain.pop(name, None)

    @rule(passes=st.floats(0, 4))
    def wait(self, passes):
        self.now += passes
        due = [one for one in self.plain.values() if one.expires_s <= self.now]
        assert list(self.queue.due(self.now)) == sorted(due, key=lambda one: one.expires_s)
        for one in due:
            del self.plain[one.request.request_id]

    @rule(fits=st.lists(st.booleans(), max_size=8))
    def pull(self, fits):
        """Some heads find room, the others do not; an iteration may be left."""
        places = iter(fits)
        barred: set[tuple[object, ...]] = set()
        for one in self.queue.ordered(self.now):
            assert one == self.expected(barred)
            fit = next(places, None)
            if fit is None:
                break
            if fit:
                self.queue.remove(one.request.request_id)
                del self.plain[one.request.request_id]
            else:
                barred.add(self.queue_of(one))
        else:
            assert self.expected(barred) is None

    def expected(self, barred) -> WaitingRequest | None:
        open_ones = [one for one in self.plain.values() if self.queue_of(one) not in barred]
        return min(open_ones, key=self.rank, default=None)

    def lost(self, one: WaitingRequest) -> bool:
        return one.latest_start_s < self.now

    def queue_of(self, one: WaitingRequest) -> tuple[object, ...]:
        return one.pattern, one.request.critical, self.lost(one)

    def rank(self, one: WaitingRequest) -> tuple[object, ...]:
        tier = 2 if self.lost(one) else 1 if not one.request.critical else 0
        name = one.request.request_id
        return tier, one.enqueued_s if self.lost(one) else self.queue.due_s(name), int(name)

    @invariant()
    def agrees(self):
        assert len(self.queue) == len(self.plain)
        assert all(name in self.queue for name in self.plain)
        assert self.queue.next_due_s == min((one.expires_s for one in self.plain.values()), default=inf)


TestAgainstPlainLists = AgainstPlainLists.TestCase
TestAgainstPlainLists.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=30), st.floats(0, 20))
def test_a_lost_one_never_goes_before_one_that_can_be_saved(times, now):
    entries = [
        entry(str(number), pattern=number % 3, enqueued=enqueued, start_by=enqueued + slack)
        for number, (enqueued, slack) in enumerate(times)
    ]
    queue = waiting(*entries)
    lost = [queue_entry.start_by_s < now for queue_entry in queue.ordered(now)]
    assert lost == sorted(lost)
