"""GPUs that the cluster does not have: replicas wait for them in order, starting, and cost nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.planning.types import PoolLimits, Role
from headway.simulation.scenario import GpuCapacity, PlannedCrash, StartUp
from tests.simulation.worlds import Schedule, fleet, points, roofline_profile, run, scenario, sparse_trace

PROFILE = roofline_profile()


def counted(result, *columns):
    """Times at which any pool's counts changed, and the sum of these columns over all pools from then on."""
    times = np.unique(np.concatenate([series.time_s for series in result.replicas.values()]))
    total = np.zeros(len(times), int)
    for series in result.replicas.values():
        points = np.searchsorted(series.time_s, times, side="right") - 1
        total += sum(np.array(getattr(series, column))[points] for column in columns)
    return times, total


def limited(steps, targets, until_s=60.0, *, initial=(1, 1), **changes):
    changes = {"start_up": StartUp(delay_s=4.0), "capacity": GpuCapacity(steps=steps), **changes}
    plan = Schedule([fleet(*each) for each in targets], interval_s=10.0)
    return run(scenario(PROFILE, fleet(*initial), **changes), sparse_trace(until_s), plan)[0]


def test_what_finds_no_gpu_stays_starting_until_there_is_one():
    result = limited(((0.0, 3), (25.0, 4)), [(1, 4)])
    decode = result.replicas[Role.DECODE]
    assert points(decode, "ready") == [(0.0, 1), (10.0, 1), (14.0, 2), (29.0, 3)]
    assert points(decode, "starting") == [(0.0, 0), (10.0, 3), (14.0, 2), (29.0, 1)]
    assert decode.desired[-1] == 4


def test_a_replica_that_waits_costs_nothing():
    held = limited(((0.0, 2),), [(1, 9)]).gpu_hours
    assert held == pytest.approx(2 * 60.0 / 3600.0, rel=0.05)
    assert limited((), [(1, 9)]).gpu_hours > 2 * held


def test_a_drained_replica_makes_room_for_the_one_that_was_ordered_first():
    result = limited(((0.0, 4),), [(1, 4), (3, 4), (3, 2)], initial=(1, 3))
    assert points(result.replicas[Role.DECODE], "ready")[-1] == (30.0, 2)
    assert points(result.replicas[Role.PREFILL], "ready")[-1] == (34.0, 2)


def test_what_waits_is_cancelled_before_what_starts_or_serves():
    decode = limited(((0.0, 3),), [(1, 6), (1, 3)]).replicas[Role.DECODE]
    assert points(decode, "starting")[1:] == [(10.0, 5), (14.0, 4), (20.0, 1)]
    assert decode.ready[-1] == 2


def test_a_capacity_that_falls_takes_nothing_but_a_crash_is_not_replaced():
    result = limited(
        ((20.0, 2),), [(1, 3)], initial=(1, 3), crashes=[PlannedCrash(at_s=30.0, role=Role.DECODE)]
    )
    decode = result.replicas[Role.DECODE]
    assert points(decode, "ready") == [(0.0, 3), (30.0, 2)]
    assert points(decode, "starting")[-1] == (30.0, 1)


def test_a_first_fleet_beyond_the_capacity_waits_too():
    result = limited(((0.0, 3), (20.0, 9)), [(2, 2)], initial=(2, 2))
    assert points(result.replicas[Role.PREFILL], "ready") == [(0.0, 2)]
    assert points(result.replicas[Role.DECODE], "ready") == [(0.0, 1), (24.0, 2)]


def test_a_replica_of_many_gpus_lets_smaller_ones_pass():
    pools = {Role.PREFILL: PoolLimits(gpus_per_replica=4), Role.DECODE: PoolLimits()}
    result = limited(((0.0, 8),), [(2, 4)], pools=pools)
    assert result.replicas[Role.PREFILL].ready[-1] == 1
    assert result.replicas[Role.DECODE].ready[-1] == 4


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6),
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
)
def test_no_more_gpus_are_held_than_ever_were_there_and_no_replica_is_forgotten(targets, gpus):
    steps = tuple((15.0 * place, each) for place, each in enumerate(gpus))
    result = limited((*steps, (120.0, 100)), targets, until_s=140.0)
    for role in (Role.PREFILL, Role.DECODE):
        series = result.replicas[role]
        assert series.ready[-1] == series.desired[-1] == targets[-1][role is Role.DECODE]
        assert series.starting[-1] == 0
        assert np.min(series.starting) >= 0
    times, held = counted(result, "ready", "draining")
    assert held[times < 120.0].max() <= max(gpus)
