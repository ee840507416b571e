"""Outputs of requests under way are drawn from what ended lately, by input length."""

import numpy as np

from headway.planning.hindsight.state import MOST_OUTPUTS, OutputSample


def sample(*pairs):
    inputs, outputs = np.array(pairs, float).T
    return OutputSample().add(inputs, outputs)


def test_nothing_is_known_at_first():
    assert not OutputSample().known
    assert OutputSample().add(np.zeros(0), np.zeros(0)).known is False


def test_each_class_of_inputs_has_its_own_outputs():
    known = sample((100, 10), (100, 12), (5000, 800))
    drawn, _ = known.draw(np.array([90.0, 100.0, 120.0, 6000.0]))
    assert set(drawn[:3]) <= {10.0, 12.0}
    assert drawn[3] == 800.0


def test_an_unknown_class_takes_the_nearest():
    drawn, _ = sample((100, 10), (100_000, 900)).draw(np.array([60_000.0, 8.0]))
    assert drawn.tolist() == [900.0, 10.0]


def test_draws_follow_the_distribution():
    known = sample(*[(100, output) for output in range(1, 101)])
    drawn, after = known.draw(np.full(1000, 100.0))
    assert abs(np.mean(drawn) - 50.5) < 1.0
    assert abs(np.quantile(drawn, 0.9) - 90.0) < 2.0
    assert after.drawn == 1000


def test_going_on_draws_others_and_the_same_again():
    known = sample(*[(100, output) for output in range(1, 101)])
    first, after = known.draw(np.full(5, 100.0))
    second, _ = after.draw(np.full(5, 100.0))
    again, _ = known.draw(np.full(5, 100.0))
    assert first.tolist() == again.tolist() != second.tolist()


def test_the_oldest_are_forgotten():
    known = sample(*[(100, 1)] * MOST_OUTPUTS).add(np.full(MOST_OUTPUTS, 100.0), np.full(MOST_OUTPUTS, 7.0))
    assert set(known.draw(np.full(50, 100.0))[0]) == {7.0}


def test_adding_leaves_the_earlier_value_alone():
    before = sample((100, 1))
    before.add(np.array([100.0]), np.array([9.0]))
    assert set(before.draw(np.full(9, 100.0))[0]) == {1.0}
