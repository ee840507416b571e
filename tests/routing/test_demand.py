"""Critical demand: the room that it is left."""

from math import sqrt

import pytest

from headway.routing.predict.corrections import DEVIATIONS, MEMORY_S, CriticalDemand

STAY_S = 4.0


def after(rate_rps: float, *, seconds: float = 200.0) -> CriticalDemand:
    """A steady critical rate for so long."""
    demand = CriticalDemand()
    for number in range(int(seconds * rate_rps)):
        demand.seen(number / rate_rps)
    return demand


def test_room_is_a_multiple_of_the_spread_of_those_running() -> None:
    expected = DEVIATIONS * sqrt(5.0 * STAY_S) / 4
    assert after(5.0).room(200.0, STAY_S, 4) == pytest.approx(expected, rel=0.03)


def test_no_room_is_kept_for_nobody() -> None:
    assert CriticalDemand().room(0.0, STAY_S, 4) == 0.0


def test_room_shrinks_when_critical_requests_stop() -> None:
    demand = after(5.0)
    now, later = demand.room(200.0, STAY_S, 4), demand.room(200.0 + MEMORY_S, STAY_S, 4)
    assert later == pytest.approx(now * sqrt(0.3679), rel=0.03)


def test_a_burst_of_seconds_is_not_taken_for_the_load() -> None:
    burst, steady = after(50.0, seconds=2.0), after(50.0)
    assert burst.room(2.0, STAY_S, 4) < 0.6 * steady.room(200.0, STAY_S, 4)


def test_few_critical_requests_are_left_no_more_room_than_they_take() -> None:
    assert after(0.1).room(200.0, STAY_S, 4) == pytest.approx(0.1 * STAY_S / 4, rel=0.4)
