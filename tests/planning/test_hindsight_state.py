"""What the policy remembers: releases that wait, and the outputs of what ended lately by input length."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning.hindsight.state import CONFIRM, MOST_OUTPUTS, OutputSample, ReleaseDelay

HOLD_S = 300.0


def run(hold, needs, interval_s=30.0, start_s=0.0):
    targets = []
    for tick, replicas in enumerate(needs):
        hold = hold.after(start_s + tick * interval_s, replicas, replicas, HOLD_S)
        targets.append(hold.target)
    return targets


@pytest.mark.parametrize(
    ("target", "needs", "last"),
    [
        (2, [5, 9], [5, 9]),  # a raise is not waited for
        (5, [3] * CONFIRM, [5, 3]),  # a release needs a streak
        (5, [3, 3, 5] + [3] * CONFIRM, [5, 3]),
        (9, [3, 7] + [2] * (CONFIRM - 2), [9, 7]),  # and goes to the most of it
        (53, [52] * CONFIRM + [40] * CONFIRM, [53, 40]),
        (100, [98] * 20, [100, 100]),  # one of next to nothing is not worth a start
        (100, [97] * 20, [97, 97]),
    ],
)
def test_a_raise_is_taken_at_once_and_a_release_after_a_streak(target, needs, last):
    assert run(ReleaseDelay(target=target), needs)[-2:] == last


def test_after_a_raise_it_is_held():
    targets = run(ReleaseDelay(target=2), [6] + [2] * 12)
    assert targets[:10] == [6] * 10
    assert targets[-1] == 2


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


def sample(*pairs):
    inputs, outputs = np.array(pairs, float).T
    return OutputSample().add(inputs, outputs)


def test_nothing_is_known_at_first():
    assert not OutputSample().known
    assert OutputSample().add(np.zeros(0), np.zeros(0)).known is False


def test_each_class_of_inputs_has_its_own_outputs():
    known = sample((100, 10), (100, 12), (5000, 800))
    drawn = known.draw(np.array([90.0, 100.0, 120.0, 6000.0]))[0].output_tokens
    assert set(drawn[:3]) <= {10.0, 12.0}
    assert drawn[3] == 800.0


def test_an_unknown_class_takes_the_nearest():
    drawn, _ = sample((100, 10), (100_000, 900)).draw(np.array([60_000.0, 8.0]))
    assert drawn.output_tokens.tolist() == [900.0, 10.0]


def test_draws_follow_the_distribution():
    known = sample(*[(100, output) for output in range(1, 101)])
    drawn, after = known.draw(np.full(1000, 100.0))
    assert abs(np.mean(drawn.output_tokens) - 50.5) < 1.0
    assert abs(np.quantile(drawn.output_tokens, 0.9) - 90.0) < 2.0
    assert after.drawn == 1000


def test_going_on_draws_others_and_the_same_again():
    known = sample(*[(100, output) for output in range(1, 101)])
    first, after = known.draw(np.full(5, 100.0))
    second, _ = after.draw(np.full(5, 100.0))
    again, _ = known.draw(np.full(5, 100.0))
    one, repeated, other = (each.output_tokens.tolist() for each in (first, again, second))
    assert one == repeated != other


def test_the_oldest_are_forgotten():
    known = sample(*[(100, 1)] * MOST_OUTPUTS).add(np.full(MOST_OUTPUTS, 100.0), np.full(MOST_OUTPUTS, 7.0))
    assert set(known.draw(np.full(50, 100.0))[0].output_tokens) == {7.0}


def test_what_was_cached_comes_with_the_output_it_belongs_to():
    inputs = np.full(100, 1000.0)
    cached = np.where(np.arange(100) % 4 == 0, 800.0, 0.0)
    known = OutputSample().add(inputs, np.where(cached > 0, 7.0, 90.0), cached)
    drawn, _ = known.draw(np.full(1000, 1100.0))
    assert set(zip(drawn.output_tokens, drawn.cached_share, strict=True)) == {(7.0, 0.8), (90.0, 0.0)}
    assert drawn.cached_share.mean() == pytest.approx(0.2, abs=0.01)
    assert set(drawn.usual_share) == {0.2}


def test_nothing_is_cached_where_nobody_says():
    known = sample((100, 10)).add(np.array([100.0]), np.array([10.0]), np.array([np.nan]))
    assert not known.draw(np.full(9, 100.0))[0].cached_share.any()
