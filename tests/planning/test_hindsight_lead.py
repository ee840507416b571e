"""The lead is what starts were seen to take, never less than an order has waited."""

from headway.planning.hindsight.state import ReplicaStarts, lead_intervals
from headway.planning.types import PoolState


def pool(ready, starting=0, desired=None):
    return PoolState(
        desired=ready + starting if desired is None else desired, starting=starting, ready=ready, draining=0
    )


def test_a_start_counts_to_the_middle_of_the_interval_that_it_was_seen_in():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(1)).order(0.0, pool(1), 3)
    starts = starts.observe(30.0, 30.0, pool(1, starting=2)).observe(60.0, 30.0, pool(3))
    assert starts.seen_s == (45.0,)
    assert starts.lead_s(60.0, guess_s=10.0) == 45.0


def test_replicas_that_come_one_by_one_are_one_order():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(1)).order(0.0, pool(1), 3)
    starts = starts.observe(30.0, 30.0, pool(2, starting=1)).observe(90.0, 30.0, pool(3))
    assert starts.seen_s == (15.0, 75.0)
    assert starts.orders == ()


def test_until_a_start_is_seen_the_guess_stands_and_waiting_is_never_forgotten():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(1)).order(0.0, pool(1), 2)
    assert starts.lead_s(20.0, guess_s=60.0) == 60.0
    assert starts.lead_s(100.0, guess_s=60.0) == 100.0


def test_a_lower_target_takes_back_the_latest_order_first():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(1)).order(0.0, pool(1), 3)
    starts = starts.order(30.0, pool(1, starting=2), 4).order(60.0, pool(1, starting=3), 2)
    assert [(order.at_s, order.replicas) for order in starts.orders] == [(0.0, 1)]


def test_orders_of_replicas_that_never_came_are_forgotten():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(1)).order(0.0, pool(1), 2).observe(30.0, 30.0, pool(1))
    assert starts.orders == ()


def test_a_replica_that_changes_its_role_is_no_start():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(2)).change(1, 0).order(0.0, pool(2, desired=3), 4)
    starts = starts.observe(30.0, 30.0, pool(3, starting=1))
    assert (starts.seen_s, starts.changing) == ((), 0)
    starts = starts.observe(60.0, 30.0, pool(4))
    assert starts.seen_s == (45.0,)


def test_a_lower_target_takes_back_changes_before_orders():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(2)).change(2, 0).order(0.0, pool(2, desired=4), 5)
    starts = starts.order(30.0, pool(2, starting=1, desired=5), 3)
    assert (starts.changing, len(starts.orders)) == (0, 1)


def test_who_leaves_for_another_pool_does_not_hide_who_comes():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(4)).order(0.0, pool(4), 5).change(0, 1)
    assert starts.observe(30.0, 30.0, pool(4)).seen_s == (15.0,)


def test_only_the_latest_starts_count():
    starts = ReplicaStarts().observe(0.0, 30.0, pool(1)).order(0.0, pool(1), 2).observe(300.0, 30.0, pool(2))
    for tick in range(10):
        now_s = 300.0 + 60.0 * tick
        starts = (
            starts.order(now_s, pool(2), 3)
            .observe(now_s + 30.0, 30.0, pool(3))
            .observe(now_s + 60.0, 30.0, pool(2))
        )
    assert starts.lead_s(1000.0, guess_s=60.0) == 15.0


def test_an_order_serves_whole_intervals_from_the_next_boundary_on():
    assert [lead_intervals(lead_s, 30.0) for lead_s in (0.0, 15.0, 30.0, 45.0, 180.0)] == [1, 2, 2, 3, 7]
