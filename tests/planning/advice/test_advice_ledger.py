"""The ledger's rows and hours, and summaries of them."""

import json
from dataclasses import replace
from functools import cache

import pytest

from headway.planning import Role
from headway.planning.advice.ledger import (
    FINE,
    MOST_POINTS,
    SUMS,
    Ledger,
    Row,
    points,
    summarise,
    total,
    window,
)
from headway.planning.types import NAN
from tests.planning.advice.advice_cases import INTERVAL_S, row


@cache
def filled(count: int, fine: int = FINE) -> Ledger:
    ledger = Ledger()
    for number in range(count):
        ledger = ledger.add(row(number), fine)
    return ledger


def test_old_intervals_become_hours_and_nothing_is_lost() -> None:
    ledger = filled(1000, fine=240)
    assert 120 < len(ledger.rows) <= 240
    assert [each.seconds for each in ledger.hours[1:]] == [3600.0] * (len(ledger.hours) - 1)
    whole = total(ledger.since(0.0))
    assert whole is not None
    assert (whole.seconds, whole.requests) == (1000 * INTERVAL_S, 100_000.0)
    assert whole.stood_gpu_s == pytest.approx(10.0 * whole.seconds)
    assert whole.planned_replica_s == {Role.MIXED: pytest.approx(7.0 * whole.seconds)}
    starts = [each.start_s for each in (*ledger.hours, *ledger.rows)]
    assert starts == sorted(starts)


def test_rows_come_back_from_the_store() -> None:
    odd = replace(row(3), planned_replica_s={Role.PREFILL: 1.5, Role.DECODE: 2.25}, starting_gpu_s=1.125)
    assert Row.load(json.loads(json.dumps(odd.dump()))) == odd
    for broken in ({}, {"t": [1, 2], "sums": [1.0], "replicas": [{}, {}]}, {"t": [1, 2], "sums": None}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            Row.load(broken)


def test_windows_begin_where_most_of_a_row_is_later() -> None:
    ledger = filled(10)
    assert [each.start_s for each in ledger.since(250.0)] == [240.0, 270.0]
    assert ledger.since(1e9) == []


def test_the_same_in_every_stretch_has_no_spread() -> None:
    found = summarise([row(number) for number in range(200)], start_up_known=True)
    assert found is not None
    assert (found.saved_share.value, found.saved_share.low, found.saved_share.high) == pytest.approx(
        (0.3,) * 3
    )
    assert found.saved_gpu_hours.value == pytest.approx(3.0 * 6000.0 / 3600.0)
    assert (found.stood_attainment, found.planned_attainment.value, found.replay_error) == (1.0, 1.0, 0.0)
    assert summarise([], start_up_known=True) is None


def test_what_differs_from_stretch_to_stretch_spreads() -> None:
    rows = [row(number, planned=2.0 if number % 40 < 20 else 8.0) for number in range(240)]
    found = summarise(rows, start_up_known=True)
    assert found is not None
    assert found.saved_share.value == pytest.approx(0.5)
    assert 0.3 < found.saved_share.low < 0.42
    assert 0.58 < found.saved_share.high < 0.7
    assert found == summarise(rows, start_up_known=True)


def test_a_guess_of_the_start_up_widens_the_range() -> None:
    rows = [row(number, starting_gpu_s=30.0) for number in range(200)]
    known, guessed = (summarise(rows, start_up_known=sure) for sure in (True, False))
    assert known is not None
    assert guessed is not None
    assert guessed.saved_share.low == pytest.approx(known.saved_share.low - 0.1)
    assert guessed.saved_share.high == pytest.approx(known.saved_share.high + 0.05)


def test_what_replays_do_not_know_is_carried_over() -> None:
    rows = [row(n, calm_measured_met=95.0, measured_met=95.0, planned_met=99.0) for n in range(200)]
    found = summarise(rows, start_up_known=True)
    assert found is not None
    assert found.planned_attainment.value == pytest.approx(0.99 * 0.95)
    assert found.planned_attainment.high == pytest.approx(0.99)
    assert found.replay_error == pytest.approx(-0.05)


def test_nothing_measured_is_said_by_replay() -> None:
    unknown = dict.fromkeys(("measured", "measured_met", "calm_measured", "calm_measured_met"), 0.0)
    found = summarise([row(n, stood_met=90.0, **unknown) for n in range(200)], start_up_known=True)
    assert found is not None
    assert (found.stood_attainment, found.is_measured) == (0.9, False)
    nothing = replace(row(0), **dict.fromkeys(SUMS, 0.0))
    empty = window([nothing], price=None, start_up_known=True)
    assert empty is not None
    assert empty["saved_share"] == {"value": None, "low": None, "high": None}
    assert empty["planned"]["attainment"]["value"] is None


def test_a_short_time_has_no_range() -> None:
    found = summarise([row(number) for number in range(60)], start_up_known=False)
    assert found is not None
    assert found.saved_share.value == pytest.approx(0.3)
    assert str(found.saved_share.low) == str(NAN)


def test_money_is_told_where_there_is_a_price() -> None:
    rows = [row(number) for number in range(240)]
    priced, unpriced = (window(rows, price=price, start_up_known=True) for price in (2.5, None))
    assert priced is not None
    assert unpriced is not None
    assert priced["saved_cost"]["value"] == pytest.approx(2.5 * 3.0 * 2.0)
    assert priced["stood"]["cost"] == pytest.approx(2.5 * 20.0)
    assert (unpriced["saved_cost"], unpriced["planned"]["cost"]) == (None, None)


def test_the_course_has_few_points() -> None:
    found = points([row(number) for number in range(1000)])
    assert len(found) <= MOST_POINTS
    assert (found[0].stood_gpus, found[0].planned_gpus) == (pytest.approx(10.0), pytest.approx(7.0))
    assert found[0].planned_replicas == {Role.MIXED: pytest.approx(7.0)}
    assert sum(each.requests for each in found) == 100_000.0
    assert points([]) == ()
    week = filled(7 * 2880).since(0.0)
    spans = [each.end_at - each.start_at for each in points(week)]
    assert len(spans) <= MOST_POINTS
    assert max(spans) <= 2.0 * 3600.0
