"""Which engines may sleep."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from headway.planning import Role
from headway.planning.sharing import Demand, GpuLosses, Standing, share
from headway.planning.sleeping import Bidder, Engine, SleepingPool, kept_for_sleep, risen, sleepers

HALF = Engine(gpus=0.5, memory=10.0)


def bidder(name: str, *worth: float, awake: int = 0, kept: int = 0, priority: int = 0) -> Bidder:
    pool = SleepingPool(
        role=Role.MIXED,
        engine=HALF,
        gpus_awake=1,
        most=len(worth),
        wanted=awake,
        held=awake,
        kept=kept,
        risen=worth,
    )
    return Bidder(name, priority, 1.0, awake, awake, (pool,))


def kept(*bidders: Bidder, gpus: float = 100.0, memory: float = inf) -> dict[str, int]:
    return {name: pools[Role.MIXED] for name, pools in sleepers(bidders, gpus, memory).items()}


def test_the_worthiest_sleep_within_host_memory():
    fleet = (bidder("a", 1.0, 1.0), bidder("b", 3.0, 0.5), bidder("c", 2.0))
    assert kept(*fleet) == {"a": 2, "b": 2, "c": 1}
    assert kept(*fleet, memory=40.0) == {"a": 2, "b": 1, "c": 1}
    assert kept(*fleet, memory=25.0) == {"a": 0, "b": 1, "c": 1}
    assert kept(*fleet, memory=0.0) == {"a": 0, "b": 0, "c": 0}


def test_priority_goes_before_worth_and_what_is_loaded_counts_more():
    assert kept(bidder("a", 9.0), bidder("b", 0.1, priority=1), memory=10.0) == {"a": 0, "b": 1}
    assert kept(bidder("a", 1.9), bidder("b", 1.0, kept=1), memory=10.0) == {"a": 0, "b": 1}
    assert kept(bidder("a", 2.1), bidder("b", 1.0, kept=1), memory=10.0) == {"a": 1, "b": 0}


def test_the_second_engine_is_worth_what_it_saves_and_needs_the_first():
    # From one to two it rose often, from none to one never.
    assert kept(bidder("a", 0.0, 5.0), bidder("b", 4.0), memory=20.0) == {"a": 2, "b": 0}
    assert kept(bidder("a", 0.0, 5.0), bidder("b", 4.0), memory=10.0) == {"a": 1, "b": 0}


def test_what_sleeps_gives_way_to_what_is_awake_on_the_gpus():
    # Two GPUs hold four engines of which each takes half of one.
    fleet = [bidder(name, worth) for name, worth in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0))]
    assert kept(*fleet, gpus=2.0) == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert kept(*fleet, bidder("e", 5.0, awake=1), gpus=2.0) == {"a": 0, "b": 1, "c": 1, "d": 1, "e": 1}
    whole = Bidder("plain", 0, 1.0, 1, 1, ())
    assert kept(*fleet, whole, gpus=2.0) == {"a": 0, "b": 0, "c": 1, "d": 1}
    # Awake beyond its sleepers it takes no more than its parts.
    assert kept(bidder("a", 1.0, awake=3), bidder("b", 1.0), gpus=2.0) == {"a": 1, "b": 1}


@pytest.mark.parametrize("gpus", [2, 4])
def test_of_engines_of_several_gpus_parts_of_all_are_counted(gpus: int):
    def large(name: str, worth: float, awake: int = 0) -> Bidder:
        (pool,) = bidder(name, worth, awake=awake).pools
        pool = replace(pool, engine=Engine(gpus / 2, 10.0), gpus_awake=gpus)
        return Bidder(name, 0, 1.0, gpus * awake, gpus * awake, (pool,))

    fleet = [large("a", 1.0), large("b", 3.0), large("c", 2.0)]
    assert kept(*fleet, gpus=gpus) == {"a": 0, "b": 1, "c": 1}
    assert kept(*fleet, gpus=1.5 * gpus) == {"a": 1, "b": 1, "c": 1}
    # What is awake takes all of its GPUs, of which the half is another's to sleep on.
    assert kept(large("a", 1.0, awake=1), *fleet[1:], gpus=gpus) == {"a": 1, "b": 1, "c": 0}
    # What never sleeps leaves only the GPUs beside it.
    assert kept(*fleet, Bidder("plain", 0, 1.0, 1, 1, ()), gpus=gpus) == {"a": 0, "b": 1, "c": 0}


def test_what_came_with_a_rise_fades():
    assert risen((), 0.5, 0, 2, 6.0) == (3.0, 3.0)
    assert risen((3.0, 3.0), 0.5, 1, 3, 6.0) == (1.5, 3.5, 2.0)
    assert risen((4.0,), 0.5, 2, 1, 6.0) == (2.0,)


@pytest.mark.parametrize(("memory", "expected"), [(inf, 1), (5.0, 0)])
def test_grants_say_how_many_may_sleep(memory: float, expected: int):
    (pool,) = bidder("a", 1.0).pools
    asleep = GpuLosses(minimum_gpus=0, lost_rps=np.zeros(1), sleeping=(pool,))
    other = GpuLosses(minimum_gpus=1, lost_rps=np.zeros(1))
    grants = share(
        [Demand(name="a", losses=asleep, standing=Standing()), Demand(name="b", losses=other)], 2, memory
    )
    assert grants["a"].sleepers == {Role.MIXED: expected}
    assert grants["b"].sleepers == {}
    assert kept_for_sleep({"grant": {"sleepers": {"mixed": expected}}}) == grants["a"].sleepers
