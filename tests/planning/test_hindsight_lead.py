"""The lead is what starts were seen to take, or what a timely order has waited; the others are missing."""

from hypothesis import given
from hypothesis import strategies as st

from headway.planning.hindsight.starts import (
    GUESS_PATIENCE,
    SEEN_PATIENCE,
    MissingReplicas,
    ReplicaStarts,
    lead_intervals,
)
from headway.planning.types import PoolState

GUESS_S = 60.0


def pool(ready, starting=0, desired=None):
    return PoolState(
        desired=ready + starting if desired is None else desired, starting=starting, ready=ready, draining=0
    )


def ordered(ready, target):
    """A pool of so many replicas whose target has just become that."""
    return ReplicaStarts().observe(0.0, 30.0, pool(ready), GUESS_S).order(0.0, pool(ready), target)


def test_a_start_takes_until_it_is_seen():
    starts = ordered(1, 3)
    starts = starts.observe(30.0, 30.0, pool(1, starting=2), GUESS_S).observe(60.0, 30.0, pool(3), GUESS_S)
    assert starts.seen_s == (60.0,)
    assert starts.lead_s(60.0, guess_s=10.0) == 60.0


def test_replicas_that_come_one_by_one_are_one_order():
    starts = ordered(1, 3)
    starts = starts.observe(30.0, 30.0, pool(2, starting=1), GUESS_S).observe(90.0, 30.0, pool(3), GUESS_S)
    assert starts.seen_s == (30.0, 90.0)
    assert starts.orders == ()


def test_until_a_start_is_seen_the_guess_stands_and_waiting_is_never_forgotten():
    starts = ordered(1, 2)
    assert starts.lead_s(20.0, guess_s=60.0) == 60.0
    assert starts.lead_s(100.0, guess_s=60.0) == 100.0


def test_a_lower_target_takes_back_the_latest_order_first():
    starts = ordered(1, 3)
    starts = starts.order(30.0, pool(1, starting=2), 4).order(60.0, pool(1, starting=3), 2)
    assert [(order.at_s, order.replicas) for order in starts.orders] == [(0.0, 1)]


def test_orders_of_replicas_that_never_came_are_forgotten():
    starts = ordered(1, 2).observe(30.0, 30.0, pool(1), GUESS_S)
    assert starts.orders == ()


def test_only_the_latest_starts_count():
    starts = ordered(1, 2).observe(300.0, 30.0, pool(2), GUESS_S)
    for tick in range(10):
        now_s = 300.0 + 60.0 * tick
        starts = (
            starts.order(now_s, pool(2), 3)
            .observe(now_s + 30.0, 30.0, pool(3), GUESS_S)
            .observe(now_s + 60.0, 30.0, pool(2), GUESS_S)
        )
    assert starts.lead_s(1000.0, guess_s=60.0) == 30.0


def test_an_order_serves_whole_intervals_from_the_next_boundary_on():
    assert [lead_intervals(lead_s, 30.0) for lead_s in (0.0, 15.0, 30.0, 45.0, 180.0)] == [1, 2, 2, 3, 7]


def follow(starts, ticks, count, *, interval_s=30.0):
    """As after so many intervals from tick to tick in which the pool stays as it is."""
    for tick in ticks:
        starts = starts.observe(tick * interval_s, interval_s, count, GUESS_S)
    return starts


def used_to_60_s():
    """Two replicas, the second of which took 60 s to start."""
    starts = ordered(1, 2)
    return follow(starts, (1,), pool(1, starting=1)).observe(60.0, 30.0, pool(2), GUESS_S)


def test_an_order_that_does_not_come_is_missing_and_raises_the_lead_no_more():
    starts = used_to_60_s().order(60.0, pool(2), 6)
    leads, missing = [], []
    for tick in range(3, 40):
        starts = follow(starts, (tick,), pool(2, starting=4))
        leads.append(starts.lead_s(tick * 30.0, GUESS_S))
        missing.append(starts.missing(tick * 30.0))
    assert max(leads) <= SEEN_PATIENCE * GUESS_S
    assert leads[-1] == 60.0
    assert missing[:5] == [None] * 5
    assert missing[-1] == MissingReplicas(replicas=4, since_s=60.0)


def test_what_comes_after_all_says_nothing_of_the_lead():
    starts = follow(used_to_60_s().order(60.0, pool(2), 4), range(3, 60), pool(2, starting=2))
    starts = starts.observe(1800.0, 30.0, pool(3, starting=1), GUESS_S)
    assert starts.missing(1800.0).replicas == 1
    starts = starts.observe(1830.0, 30.0, pool(4), GUESS_S)
    assert (starts.missing(1830.0), starts.lead_s(1830.0, GUESS_S)) == (None, 60.0)


def test_after_a_clock_was_set_back_an_order_is_overdue_as_soon():
    starts = used_to_60_s().order(60.0, pool(2), 6)
    starts = follow(starts, range(-120, -110), pool(2, starting=4))
    assert starts.missing(-111 * 30.0).replicas == 4


def slow_starts(starts, count, takes_ticks):
    """Orders of one replica after another, each of which takes so many intervals."""
    tick, ready = 100, starts.ready
    for _ in range(count):
        starts = starts.order(tick * 30.0, pool(ready), ready + 1)
        starts = follow(starts, range(tick + 1, tick + takes_ticks), pool(ready, starting=1))
        tick, ready = tick + takes_ticks, ready + 1
        starts = starts.observe(tick * 30.0, 30.0, pool(ready), GUESS_S)
    return starts, tick * 30.0


def test_a_first_start_that_takes_far_longer_than_guessed_is_learnt():
    first = ReplicaStarts().observe(0.0, 30.0, pool(1), GUESS_S)
    starts, now_s = slow_starts(first, 1, 40)
    assert starts.lead_s(now_s, GUESS_S) == GUESS_PATIENCE * GUESS_S
    starts, now_s = slow_starts(first, 3, 40)
    assert starts.lead_s(now_s, GUESS_S) == 1200.0


def test_starts_that_became_slower_for_good_are_learnt():
    starts, now_s = slow_starts(used_to_60_s(), 1, 10)
    assert starts.lead_s(now_s, GUESS_S) == 60.0
    starts, now_s = slow_starts(used_to_60_s(), 4, 10)
    assert starts.lead_s(now_s, GUESS_S) == 300.0


def test_after_an_empty_start_the_first_timely_one_counts():
    starts = ordered(1, 2)
    starts = follow(starts, range(1, 50), pool(1, starting=1)).observe(1500.0, 30.0, pool(2), GUESS_S)
    assert starts.lead_s(1500.0, GUESS_S) == GUESS_PATIENCE * GUESS_S
    starts = starts.order(1500.0, pool(2), 3).observe(1530.0, 30.0, pool(3), GUESS_S)
    assert starts.lead_s(1530.0, GUESS_S) == 30.0


def test_ready_replicas_that_are_lost_and_not_replaced_are_missing():
    starts = follow(used_to_60_s(), range(3, 20), pool(1, starting=1))
    assert starts.missing(570.0) == MissingReplicas(replicas=1, since_s=90.0)
    assert starts.lead_s(570.0, GUESS_S) == 60.0


def test_replicas_that_somebody_else_takes_back_are_missing_and_no_pile_of_orders():
    starts = used_to_60_s().order(60.0, pool(2), 8)
    starts = starts.observe(90.0, 30.0, pool(8), GUESS_S)
    for tick in range(4, 20):
        starts = starts.order((tick - 1) * 30.0, pool(4 if tick > 4 else 8), 8)
        starts = starts.observe(tick * 30.0, 30.0, pool(3, starting=1), GUESS_S)
    assert starts.missing(570.0) == MissingReplicas(replicas=5, since_s=120.0, revoked=4)
    assert sum(order.replicas for order in (*starts.orders, *starts.lost)) == 1
    assert starts.observe(600.0, 30.0, pool(8), GUESS_S).missing(600.0) is None


def test_a_target_that_nobody_ever_took_is_no_missing_capacity():
    starts = used_to_60_s()
    for tick in range(3, 30):
        starts = starts.order((tick - 1) * 30.0, pool(2), 5)
        starts = starts.observe(tick * 30.0, 30.0, pool(2), GUESS_S)
        assert starts.missing(tick * 30.0) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), max_size=60))
def test_whatever_comes_the_lead_is_bounded_and_missing_replicas_are_starting_or_revoked(steps):
    starts, ready, wanted, longest = ReplicaStarts(), 1, 1, GUESS_S
    for tick, (target, came, lost) in enumerate(steps):
        now_s = tick * 30.0
        ready = min(wanted, max(0, ready - lost) + came)
        seen = pool(ready, starting=wanted - ready)
        starts = starts.observe(now_s, 30.0, seen, GUESS_S)
        missing = starts.missing(now_s)
        assert missing is None or 0 < missing.replicas <= wanted - ready
        assert starts.lead_s(now_s, GUESS_S) <= max(GUESS_PATIENCE, SEEN_PATIENCE) * longest
        longest = max(longest, *starts.seen_s, starts.assumed_s)
        starts, wanted = starts.order(now_s, seen, target), target
