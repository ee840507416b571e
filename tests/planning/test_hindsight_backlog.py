"""A queue adds replicas where it cannot drain in time, never more than double, never fewer."""

from math import nan

from hypothesis import given
from hypothesis import strategies as st

from headway.planning.hindsight.needs import overdue_prompts, replicas_for_queue
from headway.planning.types import PoolState


def pool(waiting, ready=2):
    return PoolState(desired=ready, starting=0, ready=ready, draining=0, running=0.0, waiting=waiting)


def test_a_queue_that_drains_in_time_adds_nothing():
    assert replicas_for_queue(pool(10.0), 0.1, ttft_s=2.0, needed=4) == 0


def test_work_beyond_that_is_spread_over_a_minute():
    assert replicas_for_queue(pool(2000.0), 0.1, ttft_s=2.0, needed=9) == 4


def test_at_most_as_many_again():
    assert replicas_for_queue(pool(1e6), 0.1, ttft_s=2.0, needed=3) == 3


def test_what_is_not_measured_adds_nothing():
    assert replicas_for_queue(pool(nan), 0.1, 2.0, 3) == replicas_for_queue(pool(50.0), nan, 2.0, 3) == 0


@given(st.floats(0.0, 1e6), st.floats(0.0, 1e6))
def test_a_longer_queue_never_adds_fewer(one, other):
    less, more = sorted((one, other))
    assert replicas_for_queue(pool(less), 0.2, 1.0, 50) <= replicas_for_queue(pool(more), 0.2, 1.0, 50)


def test_prompts_beyond_the_harmless_come_to_the_decode_pool():
    # Two replicas clear 20 prompts of 0.1 s within half of the TTFT target.
    assert overdue_prompts(pool(120.0), 0.1, ttft_s=2.0) == 100.0
    assert overdue_prompts(pool(15.0), 0.1, ttft_s=2.0) == 0.0
    assert overdue_prompts(pool(nan), 0.1, 2.0) == overdue_prompts(pool(9.0), nan, 2.0) == 0.0
