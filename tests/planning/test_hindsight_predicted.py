"""Predictors beside the levels: what was said is kept, turned into work, and judged."""

import numpy as np
import pytest

from headway.planning.forecasting import AHEAD
from headway.planning.hindsight.backtest import FORECASTS, backtest
from headway.planning.hindsight.choice import choose
from headway.planning.hindsight.history import HORIZONS, PoolHistory, Predicted
from headway.planning.replay import LossCurve
from headway.planning.types import Role

NAN = float("nan")
LEAD, INTERVAL_S, HALF_LIFE = 7, 30.0, 240.0


def heard(requests, say, most=960):
    """What was kept of a predictor that says `say(i)` after interval i: a path, or None."""
    predicted = Predicted()
    for i, each in enumerate(requests):
        path = say(i)
        predicted = predicted.add(each, {} if path is None else {"seer": np.asarray(path, float)}, most)
    return predicted


def test_requests_become_work_by_the_ratio_of_late():
    predicted = heard([100.0] * 50, lambda i: np.arange(1.0, AHEAD + 1.0) * 10.0)
    work = np.full(50, 3.0)
    assert predicted.of_work(work, 8)["seer"] == pytest.approx(np.full(50, 3.0 * 80.0 / 100.0))
    # Between two horizons that are kept a straight line, beyond the last one its value.
    assert predicted.of_work(work, 7)["seer"][-1] == pytest.approx(3.0 * 70.0 / 100.0)
    assert predicted.of_work(work, 500)["seer"][-1] == pytest.approx(3.0 * HORIZONS[-1] * 10.0 / 100.0)


def test_where_nothing_was_said_the_level_stands():
    predicted = heard([100.0] * 20, lambda i: None if i < 15 else np.full(AHEAD, 50.0))
    work = np.linspace(1.0, 2.0, 30)
    expected = predicted.of_work(work, LEAD)["seer"]
    assert expected[:25].tolist() == work[:25].tolist()
    assert expected[25:] == pytest.approx(work[25:] / 2.0)


def test_a_predictor_that_is_silent_now_is_no_candidate():
    predicted = heard([100.0] * 20, lambda i: np.full(AHEAD, 50.0) if i < 15 else None)
    assert predicted.of_work(np.ones(20), LEAD) == {}
    forgotten = heard([100.0] * 40, lambda i: np.full(AHEAD, 50.0) if i < 15 else None, most=20)
    assert forgotten.said == {}


def test_unmeasured_and_zero_requests_say_nothing_wrong():
    unmeasured = heard([NAN] * 5 + [100.0, NAN], lambda i: np.full(AHEAD, 50.0))
    assert unmeasured.of_work(np.ones(7), 3)["seer"][-1] == pytest.approx(0.5)
    none = heard([0.0] * 9, lambda i: np.zeros(AHEAD))
    assert none.of_work(np.ones(9), 3)["seer"].tolist() == [1.0] * 9


def test_the_memory_is_bounded():
    predicted = heard([100.0] * 50, lambda i: np.full(AHEAD, 50.0), most=30)
    assert predicted.said["seer"].shape == (30, len(HORIZONS))
    assert len(predicted.level) == 30


def stairs(ticks):
    """Work that is three times as much in a quarter of every 40 intervals."""
    return np.where(np.arange(ticks) % 40 < 30, 4.0, 12.0)


def past(work):
    history = PoolHistory()
    for each in work:
        lost = np.full(int(each) + 1, 100)
        lost[-1] = 0
        history = history.add(each, LossCurve(requests=100, lost=lost), 960)
    return history


def chosen(say, ticks=400):
    work = stairs(ticks)
    tested = backtest(
        past(work), LEAD, INTERVAL_S, HALF_LIFE, heard(100.0 * work, lambda i: 100.0 * np.asarray(say(i)))
    )
    return tested, choose({Role.PREFILL: tested}, {Role.PREFILL: 1}, 0.01)[Role.PREFILL]


def test_a_predictor_that_would_have_paid_is_chosen_and_named():
    tested, option = chosen(lambda i: stairs(i + 1 + AHEAD)[i + 1 :])
    assert option.forecast == "seer"
    assert tested.names == (*FORECASTS, "seer")
    _, without = chosen(lambda i: np.full(AHEAD, NAN))
    assert option.cost < without.cost


def test_a_predictor_that_errs_is_not():
    _, option = chosen(lambda i: 16.0 - stairs(i + 1 + AHEAD)[i + 1 :])
    assert option.forecast in FORECASTS


def test_without_predictors_the_others_are_judged_as_ever():
    history = past(stairs(200))
    alone = backtest(history, LEAD, INTERVAL_S, HALF_LIFE)
    beside, _ = chosen(lambda i: stairs(i + 1 + AHEAD)[i + 1 :], ticks=200)
    assert np.array_equal(alone.lost, beside.lost[: len(FORECASTS)])
    assert np.array_equal(alone.cost, beside.cost[: len(FORECASTS)])


NIGHTLY = np.where(np.arange(200) % 50 == 40, 9, 0)
"""Requests in one interval of fifty."""


def seen_at(last, *, said=NIGHTLY, came=NIGHTLY, lead=4, within=3):
    """What is foreseen after that interval, by a seer that says `said`."""
    padded = np.append(said, np.zeros(AHEAD))
    predicted = heard(came[: last + 1], lambda i: padded[i + 1 : i + 1 + AHEAD])
    return predicted.foreseen(came[: last + 1], lead, within)


def test_requests_are_foreseen_a_lead_before_they_come():
    assert [last for last in range(140, 200) if seen_at(last)] == [186]
    assert seen_at(186) == "seer"


def test_who_was_wrong_more_often_than_right_is_not_believed():
    late = np.roll(NIGHTLY, 2)
    # What comes within the time for which a replica stays is in time.
    assert seen_at(186, came=late) == "seer"
    assert seen_at(186, came=late, within=2) == ""
    once = np.where(np.arange(200) < 50, NIGHTLY, 0)
    assert [last for last in range(200) if seen_at(last, came=once)] == [36, 86, 136]


def test_few_requests_or_as_many_as_now_are_no_reason_to_wake():
    assert seen_at(186, said=NIGHTLY / 30.0) == ""
    assert seen_at(186, said=np.full(200, 9.0)) == ""
