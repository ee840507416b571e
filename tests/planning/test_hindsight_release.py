"""A raise applies at once; a release waits, and goes to the most that was needed meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from headway.planning.hindsight.state import CONFIRM, ReleaseDelay

HOLD_S = 300.0


def run(hold, needs, interval_s=30.0, start_s=0.0):
    targets = []
    for tick, replicas in enumerate(needs):
        hold = hold.after(start_s + tick * interval_s, replicas, replicas, HOLD_S)
        targets.append(hold.target)
    return targets


def test_a_raise_is_not_waited_for():
    assert run(ReleaseDelay(target=2), [5, 9]) == [5, 9]


def test_a_release_needs_a_streak():
    assert run(ReleaseDelay(target=5), [3] * CONFIRM) == [5] * (CONFIRM - 1) + [3]
    assert run(ReleaseDelay(target=5), [3, 3, 5] + [3] * CONFIRM) == [5] * (CONFIRM + 2) + [3]


def test_it_goes_to_the_most_of_the_streak():
    assert run(ReleaseDelay(target=9), [3, 7] + [2] * (CONFIRM - 2))[-1] == 7
    assert run(ReleaseDelay(target=53), [52] * CONFIRM + [40] * CONFIRM)[-1] == 40


def test_after_a_raise_it_is_held():
    targets = run(ReleaseDelay(target=2), [6] + [2] * 12)
    assert targets[:10] == [6] * 10
    assert targets[-1] == 2


def test_a_release_of_next_to_nothing_is_not_worth_a_start():
    assert run(ReleaseDelay(target=100), [98] * 20)[-1] == 100
    assert run(ReleaseDelay(target=100), [97] * 20)[-1] == 97


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60))
def test_a_target_is_never_below_the_need(needs):
    assert all(target >= need for target, need in zip(run(ReleaseDelay(target=1), needs), needs, strict=True))


@given(st.lists(st.integers(1, 50), min_size=CONFIRM, max_size=60))
def test_it_never_asks_for_more_than_was_ever_needed(needs):
    assert max(run(ReleaseDelay(target=1), needs)) == max(needs)


def test_a_count_that_is_needed_at_the_edge_is_kept():
    hold = ReleaseDelay(target=3)
    for tick in range(20):
        hold = hold.after(tick * 30.0, 2, 3, HOLD_S)
    assert hold.target == 3
