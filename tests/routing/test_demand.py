"""Critical demand: the room it is left, and the SLOs that no fleet of this size could keep."""

from math import inf, sqrt

import pytest

from headway.routing.demand import DEVIATIONS, MEMORY_S, MOST_SLOS, CriticalDemand

STAY_S = 4.0


def linear_tpot_s(sequences: float, kv_tokens: float, duty: float) -> float:
    """10 ms and 1 ms a sequence, whatever their context."""
    del kv_tokens
    return (0.010 + 0.001 * sequences) / (1.0 - duty)


def after(
    rate_rps: float, *, slo_s: float = 0.02, seconds: float = 200.0, work_s: float = 0.0
) -> CriticalDemand:
    """A steady critical rate for so long, 100 tokens each."""
    demand = CriticalDemand()
    for number in range(int(seconds * rate_rps)):
        demand.seen(number / rate_rps, slo_s, 100.0, 1000.0, work_s)
    return demand


def test_room_is_a_multiple_of_the_spread_of_those_running() -> None:
    expected = DEVIATIONS * sqrt(5.0 * STAY_S) / 4
    assert after(5.0).room(200.0, STAY_S, 4) == pytest.approx(expected, rel=0.03)


def test_no_room_is_kept_for_nobody() -> None:
    assert CriticalDemand().room(0.0, STAY_S, 4) == 0.0


def test_room_shrinks_when_critical_requests_stop() -> None:
    demand = after(5.0)
    now, later = demand.room(200.0, STAY_S, 4), demand.room(200.0 + 2 * MEMORY_S, STAY_S, 4)
    assert later == pytest.approx(now * sqrt(0.1353), rel=0.03)


def test_what_the_fleet_can_keep_is_not_void() -> None:
    """4 rps x 100 tokens x 20 ms are 8 sequences, 2 at each of 4 replicas: 12 ms."""
    demand = after(4.0)
    demand.check(200.0, 4, linear_tpot_s)
    assert demand.void_s == -1.0


def test_what_the_fleet_cannot_keep_is_void_and_needs_no_room() -> None:
    """50 rps are 100 sequences, 25 at each of 4 replicas: 35 ms."""
    demand = after(50.0)
    demand.check(200.0, 4, linear_tpot_s)
    assert demand.void_s == 0.02
    assert demand.room(200.0, STAY_S, 4) == 0.0


def test_prefill_duty_counts() -> None:
    """2 sequences a replica are kept, but not with 0.6 of the time gone to prompts."""
    demand = after(4.0, work_s=0.6)
    demand.check(200.0, 4, linear_tpot_s)
    assert demand.void_s == 0.02


def test_a_burst_of_seconds_voids_nothing() -> None:
    demand = after(50.0, seconds=2.0)
    demand.check(2.0, 4, linear_tpot_s)
    assert demand.void_s == -1.0


@pytest.mark.parametrize(("others", "void_s"), [(False, -1.0), (True, 0.02)])
def test_in_doubt_the_more_numerous_decide(others: bool, void_s: float) -> None:
    """18 rps are 36 sequences, 9 of the 10 that each of 4 replicas may have: within 2 deviations."""
    demand = after(18.0)
    for number in range(200 * 30 if others else 0):
        demand.other(number / 30)
    demand.check(200.0, 4, linear_tpot_s)
    assert demand.void_s == void_s


def test_it_recovers_when_the_load_is_gone() -> None:
    demand = after(50.0)
    demand.check(200.0, 4, linear_tpot_s)
    demand.check(200.0 + 5 * MEMORY_S, 4, linear_tpot_s)
    assert demand.void_s == -1.0


def test_without_a_tpot_slo_nothing_is_void() -> None:
    demand = after(50.0, slo_s=inf)
    demand.check(200.0, 4, linear_tpot_s)
    assert demand.void_s == -1.0


def test_clients_cannot_fill_the_memory_with_slos() -> None:
    demand = CriticalDemand()
    for number in range(2 * MOST_SLOS):
        demand.seen(0.0, 0.01 + number * 1e-4, 100.0, 1000.0, 0.0)
    expected = DEVIATIONS * sqrt(MOST_SLOS / MEMORY_S / (1 - 2.718281828 ** (-10.0 / MEMORY_S)) * STAY_S)
    assert demand.room(0.0, STAY_S, 1) == pytest.approx(expected)
