"""The waiting queue against a plain model, and its stated order."""

from collections import Counter
from collections.abc import Iterable, Iterator
from math import exp, inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headway.routing import RequestSlo, RouteRequest, RoutingError
from headway.routing.fleet.records import Record
from headway.routing.queue.fair_shares import ALLOWANCE, TenantShares
from headway.routing.queue.heads import CRITICAL_WORTH, FREE, HeadRow
from headway.routing.queue.held_lines import LENIENCE, HeldQueue, HeldRequest, alike
from tests.memory import grown_bytes


def empty(**weights: float) -> HeldQueue:
    return HeldQueue(TenantShares(lambda tenant: weights.get(tenant, 1.0)))


def entry(
    name: str,
    *,
    pattern=0,
    enqueued=0.0,
    start_by=inf,
    expires=inf,
    critical=False,
    tenant="",
    output_tokens=1,
    cached_tokens=0.0,
) -> HeldRequest:
    """A request; those of one `pattern` and length are of one line."""
    request = RouteRequest(
        tenant=tenant,
        request_id=name,
        arrival_s=enqueued,
        input_tokens=10,
        max_tokens=10,
        slo=RequestSlo(ttft_s=1.0),
        critical=critical,
        model=f"model {pattern}",
    )
    record = Record(request, 0, output_tokens, request.slo, "slo", judged=True)
    record.home = -1, cached_tokens
    return HeldRequest(record=record, held_s=enqueued, start_by_s=start_by, expires_s=expires)


def waiting(*entries: HeldRequest) -> HeldQueue:
    queue = empty()
    for one in entries:
        queue.push(one)
    return queue


def name_of(one: HeldRequest) -> str:
    return one.record.request.request_id


def names(entries: Iterable[HeldRequest]) -> list[str]:
    return [name_of(one) for one in entries]


def ordered(queue: HeldQueue, now_s: float) -> Iterator[HeldRequest]:
    """The heads, the next one first. One that the caller removes makes room for the next of its line."""
    queue.give_up(now_s)
    opened = queue.heads[HeadRow.ROLE] != FREE
    while (column := queue.first(opened)) is not None:
        head = queue.later(column)
        assert head is not None
        yield head
        if name_of(head) in queue:
            opened[column] = False


def drained(queue: HeldQueue, now_s: float) -> list[str]:
    """The order in which all leave when there is room for everybody."""
    left = []
    for one in ordered(queue, now_s):
        queue.remove(name_of(one))
        left.append(one)
    return names(left)


def test_the_last_moment_still_counts_as_saved():
    assert drained(waiting(entry("a", start_by=2.0), entry("b", pattern=1, start_by=9.0)), 2.0) == ["a", "b"]
    assert drained(waiting(entry("a", start_by=2.0), entry("b", pattern=1, start_by=9.0)), 2.1) == ["b", "a"]


def test_without_an_slo_the_end_of_patience_is_the_deadline():
    queue = waiting(entry("promised", start_by=8.0), entry("patient", pattern=1, expires=6.0))
    assert names(ordered(queue, 0.0)) == ["patient", "promised"]


def test_a_tenant_that_is_ahead_goes_last_however_urgent():
    shares = TenantShares(lambda _: 1.0)
    queue = HeldQueue(shares)
    queue.push(entry("greedy", start_by=1.0, tenant="a", critical=True))
    queue.push(entry("modest", start_by=9.0, tenant="b"))
    assert names(ordered(queue, 0.0)) == ["greedy", "modest"]
    shares.served("a", 1e6)
    queue.served("a")
    assert names(ordered(queue, 0.0)) == ["modest", "greedy"]


def served_of_keys(queue: HeldQueue, shares: TenantShares, rounds: int) -> Counter[str]:
    """How much of what there was each tenant got."""
    got: Counter[str] = Counter()
    for _ in range(rounds):
        one = next(ordered(queue, 0.0)).record.request
        queue.remove(one.request_id)
        shares.served(one.tenant, 1000.0)
        queue.served(one.tenant)
        got[one.tenant] += 1
    return got


def test_a_key_that_makes_up_users_gets_no_more_than_another():
    shares = TenantShares(lambda _: 1.0)
    queue = HeldQueue(shares)
    for number in range(1000):
        queue.push(entry(f"many-{number}", start_by=1.0, tenant=f"many/{number}", critical=True))
        queue.push(entry(f"one-{number}", start_by=9.0, tenant="one/only"))
    got = served_of_keys(queue, shares, 400)
    assert got["one/only"] >= 200 - ALLOWANCE / 1000.0
    assert max(got[name] for name in got if name != "one/only") == 1


def test_users_of_a_key_share_evenly():
    shares = TenantShares(lambda tenant: 3.0 if tenant.startswith("key") else 1.0)
    queue = HeldQueue(shares)
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
    assert queue.last_of_most().request.request_id == "young"


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
        self.plain: dict[str, HeldRequest] = {}

    @rule(
        pattern=st.integers(0, 2),
        start_in=TIMES,
        patience=TIMES,
        critical=st.booleans(),
        output_tokens=st.sampled_from([1, 100, 10_000]),
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
            output_tokens=output_tokens,
        )
        self.queue.push(one)
        self.plain[name_of(one)] = one

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
            del self.plain[name_of(one)]

    @rule(fits=st.lists(st.booleans(), max_size=8))
    def pull(self, fits):
        """Some heads find room, the others do not; an iteration may be left."""
        places = iter(fits)
        barred: set[tuple[object, ...]] = set()
        for one in ordered(self.queue, self.now):
            assert one == self.expected(barred)
            fit = next(places, None)
            if fit is None:
                break
            if fit:
                self.queue.remove(name_of(one))
                del self.plain[name_of(one)]
            else:
                barred.add(self.queue_of(one))
        else:
            assert self.expected(barred) is None

    def expected(self, barred) -> HeldRequest | None:
        """The head that is next: of each open line the first, of these the one that is due first."""
        lines: dict[tuple[object, ...], list[HeldRequest]] = {}
        for one in self.plain.values():
            if self.queue_of(one) not in barred:
                lines.setdefault(self.queue_of(one), []).append(one)
        heads = [min(line, key=self.rank) for line in lines.values()]
        return min(heads, key=self.due, default=None)

    def due(self, one: HeldRequest) -> tuple[object, ...]:
        """The rank of a head. Its price is the tenant's when that last changed by a step."""
        price = exp(self.queue.log_price("")) / (CRITICAL_WORTH if one.record.request.critical else 1.0)
        key_s = one.held_s if self.lost(one) else one.latest_start_s + LENIENCE * price * one.cost
        return self.lost(one), key_s, self.number(one)

    def number(self, one: HeldRequest) -> int:
        return int(name_of(one))

    def lost(self, one: HeldRequest) -> bool:
        return one.latest_start_s < self.now

    def queue_of(self, one: HeldRequest) -> tuple[object, ...]:
        return alike(one.record), self.lost(one)

    def rank(self, one: HeldRequest) -> tuple[object, ...]:
        """Of a line the one that is due first; between lines the heads' ranks, which the table has."""
        return self.lost(one), one.held_s if self.lost(one) else one.latest_start_s, self.number(one)

    @invariant()
    def agrees(self):
        assert len(self.queue) == len(self.plain)
        assert all(name in self.queue for name in self.plain)
        assert self.queue.next_due_s == min((one.expires_s for one in self.plain.values()), default=inf)


TestAgainstPlainLists = AgainstPlainLists.TestCase
TestAgainstPlainLists.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
