"""The search for a loss curve: few replays, exact where it looked, never rising."""

import numpy as np
import pytest

from headway.planning.replay.curve import least_replicas, loss_curve


def searched(lose, requests, least=1, guess=1):
    """The curve, and the counts that were replayed."""
    asked = []

    def counting(replicas):
        asked.append(replicas)
        return lose(replicas)

    return loss_curve(counting, requests, least, guess), asked


def falling(scale):
    """Losses that fall exponentially from 1000 above `scale` replicas."""
    return lambda replicas: min(1000, int(1000 * np.exp(-20 * max(0.0, replicas / scale - 1))))


@pytest.mark.parametrize("scale", [1, 3, 20, 300, 3000])
@pytest.mark.parametrize("off", [0.5, 1.0, 1.4])
def test_few_replays_find_the_curve(scale, off):
    lose = falling(scale)
    needed = next(count for count in range(1, 10 * scale + 10) if lose(count) == 0)
    curve, asked = searched(lose, 1000, least=scale // 2, guess=max(1, int(off * needed)))
    assert len(asked) == len(set(asked)) <= 14
    nearly = next(count for count in range(1, needed + 1) if lose(count) <= 1)
    assert nearly <= len(curve.lost) - 1 <= needed * 1.3 + 1
    much = next(count for count in range(1, needed + 1) if lose(count) <= 300)
    for count in range(much, needed):
        assert curve.at(count) == pytest.approx(lose(count), abs=120)


@pytest.mark.parametrize("guess", [1, 4, 12, 90])
def test_a_thin_tail_does_not_hide_where_most_are_saved(guess):
    """Short outputs lose by bad luck in fleets of any size; that says nothing of the fleet's need."""

    def lose(replicas):
        return 1600 if replicas < 4 else 4 + 90 // (10 * replicas)

    curve, asked = searched(lose, 1600, least=3, guess=guess)
    assert [curve.at(count) for count in (3, 4)] == [1600, lose(4)]
    assert all(curve.at(count) == pytest.approx(lose(count), abs=2) for count in range(5, 200))
    assert len(asked) <= 14


def test_counts_that_were_replayed_are_exact_and_luck_is_smoothed():
    values = {1: 90, 2: 20, 3: 25, 4: 2, 5: 0}
    curve, asked = searched(lambda n: values.get(n, 0), 100, guess=3)
    assert sorted(asked) == [1, 2, 3, 4, 5]
    assert curve.lost.tolist()[2:] == [20, 20, 2, 0]


def test_what_replicas_do_not_help_is_not_searched_for():
    curve, asked = searched(lambda n: 500 if n < 10 else 100, 1000, guess=8)
    assert max(asked) < 40
    assert curve.at(10) == curve.at(1000) == 100
    assert curve.at(8) == 500


def test_all_is_lost_below_the_least_count_which_is_not_replayed():
    curve, asked = searched(lambda n: 0, 7, least=5, guess=2)
    assert asked == [5]
    assert curve.lost.tolist() == [7, 7, 7, 7, 7, 0]


def test_a_first_guess_far_below_the_need_is_left_behind():
    """Nothing is known at first; a curve that ends where nearly all is lost would order no more than that."""
    curve, asked = searched(falling(300), 1000, least=30, guess=1)
    assert curve.at(10_000) <= 1
    assert len(asked) <= 14


def test_the_least_fleet_that_keeps_a_share_is_found_however_far_it_is():
    least = least_replicas(lambda guess: loss_curve(falling(5000), 1000, 1, guess), 0.01)
    assert falling(5000)(least) <= 14
    assert falling(5000)(round(0.98 * least)) > 10


def test_where_no_fleet_keeps_the_share_the_least_fleet_is_the_one_from_which_more_do_not_help():
    least = least_replicas(lambda guess: loss_curve(lambda n: 500 if n < 10 else 100, 1000, 1, guess), 0.01)
    assert 10 <= least < 40
    assert least_replicas(lambda guess: loss_curve(lambda n: 0, 0, 1, guess), 0.01) == 1
